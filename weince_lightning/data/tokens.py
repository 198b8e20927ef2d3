"""From sentences to the tensor of their word pieces."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weince_lightning.data.lines import wrong_encoding


class Tokens:
    """Turns sentences into one tensor of token numbers, with the tokenizer of a local path.

    Args:
        tokenizer: A folder that transformers' ``AutoTokenizer`` reads, or the vocabulary of a BERT
            tokenizer: a text file with one word piece a line, ``[PAD]``, ``[UNK]``, ``[CLS]`` and
            ``[SEP]`` among them; text is then put in lower case.

    Attributes:
        vocab_size: How many tokens there are.
        pad_token_id: The token that fills a short sentence up.

    Raises:
        FileNotFoundError: If there is no such path.
        ModuleNotFoundError: If transformers is not installed.
        ValueError: If it is no tokenizer, or a special token is missing.
    """

    def __init__(self, tokenizer: str | Path) -> None:
        path = Path(tokenizer).expanduser()
        try:
            transformers = import_module("transformers")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "a tokenizer needs transformers: pip install weince-lightning[text]"
            ) from error
        if path.is_dir():
            try:
                found = transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True)
            except (OSError, ValueError) as error:
                raise ValueError(
                    "tokenizer must be a folder that save_pretrained of transformers has written, "
                    f"got {path}: {str(error).splitlines()[0]}"
                ) from error
        elif path.is_file():
            found = _word_pieces(transformers, path)
        else:
            raise FileNotFoundError(
                "tokenizer must be a folder with a tokenizer of transformers or the file of a "
                f"vocabulary, got {path}, which is not there."
            )
        if found.pad_token_id is None:
            raise ValueError(
                f"tokenizer must have a token for padding, got {path} without one. Set its "
                "pad_token and save it to a folder of its own."
            )
        self._tokenizer = found
        self.vocab_size: int = len(found)
        self.pad_token_id: int = found.pad_token_id

    def __call__(self, sentences: Sequence[str], max_length: int) -> Tensor:
        """Return the tokens of sentences, filled up to the longest, shape ``(batch, length)``."""
        options: dict[str, Any] = {"truncation": True, "max_length": max_length}
        rows = self._tokenizer(list(sentences), return_attention_mask=False, **options)["input_ids"]
        tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, True, self.pad_token_id)


def _word_pieces(transformers: Any, path: Path) -> Any:
    """Return BERT's tokenizer with a vocabulary."""
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    try:
        with path.open(encoding="utf-8-sig") as file:
            # Line feeds end lines, and nothing else: pieces may be other characters that do.
            lines = [line.removesuffix("\n") for line in file]
    except UnicodeDecodeError:
        raise wrong_encoding(path) from None
    missing = sorted(set(special.values()) - set(lines))
    if missing:
        raise ValueError(
            f"tokenizer must be a vocabulary with {', '.join(sorted(special.values()))}, one word "
            f"piece a line, got {path} without {', '.join(missing)}."
        )
    pieces = {piece: number for number, piece in enumerate(lines)}
    backend = import_module("tokenizers").BertWordPieceTokenizer(pieces, lowercase=True)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend._tokenizer, **special)
