"""Sentences for contrastive pretraining, and pairs of them to see what it learnt."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from weince_lightning.checks import check_integer
from weince_lightning.data.lines import Lines
from weince_lightning.data.pairs import Pair, read_pairs, read_scored_pairs
from weince_lightning.data.seeded import SeededData
from weince_lightning.data.tokens import Tokens


class SentenceData(SeededData):
    r"""Sentences of a text file, one a line, and pairs of sentences for validation and test.

    Training batches are ``(views, labels)``: twice the same int64 tensor of tokens
    ``(batch, length)``, since dropout in the encoder is the augmentation, and labels -1. The file
    is read sentence by sentence as they are needed; memory grows with the number of lines alone.
    The order follows from a seed and the epoch, as that of
    :class:`~weince_lightning.data.VisionData` does: processes share it, and a training that is
    resumed within an epoch sees what it would have seen. A last incomplete batch is dropped, unless
    it is the only one.

    Validation has a loader for each file that is given, with batches ``(views, labels)`` of the
    tokens of the first and of the second sentences. Labels of ``sts_file`` are its scores, float32;
    those of ``retrieval_file`` the numbers of its pairs, int64.
    :class:`~weince_lightning.callbacks.SentenceSimilarityMonitor` tells them apart by that. So do
    test files, those that ``Trainer.test`` and ``weince test`` read. Prediction has batches
    ``(tokens, labels)`` in the order of ``predict_file``; labels are the numbers of its sentences,
    from 0.

    Args:
        train_file: Text file in UTF-8 with a sentence a line. Blank lines are passed over, in all
            files.
        tokenizer: Folder of a tokenizer that transformers reads, or the vocabulary of a BERT
            tokenizer in lower case, one word piece a line; nothing is downloaded.
        sts_file: Lines ``score \t sentence \t sentence``: how similar people find them.
        retrieval_file: Lines ``sentence \t sentence``: the first is to find the second among those
            of other lines.
        batch_size: Sentences (in validation pairs) per batch and process, at least 1.
        max_length: Tokens of a sentence, at least 3; what follows is cut off.
        val_max_length: The same for all but training; None is ``max_length``.
        num_workers: Processes that read and tokenise beside the main one.
        test_sts_file: As ``sts_file``, for test.
        test_retrieval_file: As ``retrieval_file``, for test.
        predict_file: As ``train_file``: sentences whose features are wanted.

    Attributes:
        vocab_size: Number of tokens.
        pad_token_id: Token that fills short sentences up.

    Raises:
        TypeError: If a number is no integer.
        ValueError: If it is out of its range.
    """

    def __init__(
        self,
        train_file: str | Path,
        tokenizer: str | Path,
        sts_file: str | Path | None = None,
        retrieval_file: str | Path | None = None,
        batch_size: int = 64,
        max_length: int = 32,
        val_max_length: int | None = None,
        num_workers: int = 0,
        test_sts_file: str | Path | None = None,
        test_retrieval_file: str | Path | None = None,
        predict_file: str | Path | None = None,
    ) -> None:
        super().__init__(batch_size, num_workers)
        check_integer("max_length", max_length, at_least=3)
        if val_max_length is not None:
            check_integer("val_max_length", val_max_length, at_least=3)
        files = {
            "train_file": train_file,
            "tokenizer": tokenizer,
            "sts_file": sts_file,
            "retrieval_file": retrieval_file,
            "test_sts_file": test_sts_file,
            "test_retrieval_file": test_retrieval_file,
            "predict_file": predict_file,
        }
        self.hparams.update(
            **{name: None if path is None else str(path) for name, path in files.items()},
            batch_size=batch_size,
            max_length=max_length,
            val_max_length=val_max_length,
            num_workers=num_workers,
        )
        self.train_file = Path(train_file).expanduser()
        self.tokenizer = Path(tokenizer).expanduser()
        self.sts_file = _expanded(sts_file)
        self.retrieval_file = _expanded(retrieval_file)
        self.test_sts_file = _expanded(test_sts_file)
        self.test_retrieval_file = _expanded(test_retrieval_file)
        self.predict_file = _expanded(predict_file)
        self.max_length = max_length
        self.val_max_length = val_max_length or max_length

    @cached_property
    def tokens(self) -> Tokens:
        """The tokenizer, read when it is first asked for."""
        return Tokens(self.tokenizer)

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self.tokens.vocab_size

    @property
    def pad_token_id(self) -> int:
        """Token that fills short sentences up."""
        return self.tokens.pad_token_id

    def train_dataloader(self) -> DataLoader[Any]:
        """All sentences in random order."""
        lines = Lines(_existing("train_file", self.train_file))
        if len(lines) < 2:
            raise ValueError(f"train_file must hold at least 2 sentences, got 1: {lines[0]!r}.")
        collate = partial(_train_batch, tokens=self.tokens, max_length=self.max_length)
        return self._seeded_loader(lambda seed: _Sentences(lines), len(lines), collate)

    def val_dataloader(self) -> list[DataLoader[Any]]:
        """The pairs of each file that was given, in its order."""
        return self._pair_loaders("sts_file", "retrieval_file")

    def test_dataloader(self) -> list[DataLoader[Any]]:
        """The pairs of each test file that was given, in its order.

        Raises:
            ValueError: If there is none.
        """
        if self.test_sts_file is None and self.test_retrieval_file is None:
            raise ValueError(
                "test_sts_file or test_retrieval_file must be a file of pairs, got neither."
            )
        return self._pair_loaders("test_sts_file", "test_retrieval_file")

    def predict_dataloader(self) -> DataLoader[Any]:
        """The sentences whose features are wanted, in their order.

        Raises:
            ValueError: If there is no ``predict_file``.
        """
        if self.predict_file is None:
            raise ValueError("predict_file must be a file with a sentence a line, got None.")
        collate = partial(_numbered_batch, tokens=self.tokens, max_length=self.val_max_length)
        lines = Lines(_existing("predict_file", self.predict_file))
        return self._fixed_loader(_Sentences(lines), collate)

    def _pair_loaders(self, sts_file: str, retrieval_file: str) -> list[DataLoader[Any]]:
        """Read the files of two arguments, as far as they were given."""
        collate = partial(_pair_batch, tokens=self.tokens, max_length=self.val_max_length)
        loaders = []
        for name, read in ((sts_file, read_scored_pairs), (retrieval_file, read_pairs)):
            path = getattr(self, name)
            if path is not None:
                loaders.append(self._fixed_loader(read(_existing(name, path)), collate))
        return loaders


def _expanded(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path).expanduser()


def _existing(name: str, path: Path) -> Path:
    """Return the path of a file that is there, or name the argument it was given as."""
    if path.is_file():
        return path
    what = "a folder" if path.is_dir() else "which is not there"
    raise FileNotFoundError(
        f"{name} must be a text file, got {path}, {what}. Nothing is downloaded."
    )


class _Sentences(Dataset[tuple[int, str]]):
    """Lines with their numbers, asked for by line or by (line, seed); nothing here is random."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: tuple[int, int] | int) -> tuple[int, str]:
        line = index[0] if isinstance(index, tuple) else index
        return line, self.lines[line]


def _train_batch(
    lines: Sequence[tuple[int, str]], tokens: Tokens, max_length: int
) -> tuple[list[Tensor], Tensor]:
    """Tokenise a training batch; both views are one tensor."""
    found = tokens([sentence for _, sentence in lines], max_length)
    return [found, found], torch.full((len(found),), -1)


def _numbered_batch(
    lines: Sequence[tuple[int, str]], tokens: Tokens, max_length: int
) -> tuple[Tensor, Tensor]:
    """Tokenise sentences and keep their numbers."""
    numbers, sentences = zip(*lines, strict=True)
    return tokens(sentences, max_length), torch.tensor(numbers)


def _pair_batch(
    pairs: Sequence[Pair], tokens: Tokens, max_length: int
) -> tuple[list[Tensor], Tensor]:
    """Tokenise the two sides of pairs."""
    firsts, seconds, labels = zip(*pairs, strict=True)
    return [tokens(side, max_length) for side in (firsts, seconds)], torch.tensor(labels)
