"""Sentences of text files: read where they are needed, in an order that a seed decides."""

import pickle
import tracemalloc

import numpy as np
import pytest
import sentences
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from weince_lightning.data import SentenceData
from weince_lightning.data.lines import Lines
from weince_lightning.data.tokens import Tokens

pytest.importorskip("transformers")


@pytest.fixture
def files(tmp_path):
    """Arguments of a data module whose files are there."""
    pairs = [
        f"{a}\t{b}" for a, b in zip(sentences.SENTENCES, sentences.SENTENCES[1:], strict=False)
    ]
    return {
        "train_file": sentences.write_lines(tmp_path / "train.txt", sentences.SENTENCES),
        "tokenizer": sentences.write_vocabulary(tmp_path),
        "sts_file": sentences.write_lines(
            tmp_path / "sts.tsv", [f"{k / 4}\t{pair}" for k, pair in enumerate(pairs[:10])]
        ),
        "retrieval_file": sentences.write_lines(tmp_path / "pairs.tsv", pairs[:12]),
    }


def text_of(tokens):
    """Sentences back from their tokens."""
    words = [[sentences.VOCABULARY[i] for i in row if i >= len(sentences.SPECIAL)]
             for row in tokens.tolist()]  # fmt: skip
    return [" ".join(row) for row in words]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_those_of_the_file_but_for_blank_ones(tmp_path, end):
    path = tmp_path / "lines.txt"
    texts = ["first", "", "zwölf Übungen", "", " ", " \t ", " led by a space", "last\twith tab"]
    path.write_bytes(end.join(texts).encode())
    lines = Lines(path)
    assert [lines[i] for i in range(len(lines))] == [text for text in texts if text.strip()]


def test_lines_are_the_same_across_the_chunks_of_the_search(tmp_path, monkeypatch):
    monkeypatch.setattr("weince_lightning.data.lines._CHUNK", 7)
    lines = Lines(sentences.write_lines(tmp_path / "lines.txt", sentences.SENTENCES))
    assert [lines[i] for i in range(len(lines))] == sentences.SENTENCES


def test_copy_for_a_worker_does_not_carry_the_file(tmp_path):
    path = sentences.write_lines(tmp_path / "lines.txt", ["x" * 1000] * 1000)
    lines = Lines(path)
    copy = pickle.dumps(lines)
    assert len(copy) < 20_000
    assert pickle.loads(copy)[999] == lines[999]


def write_a_million(path):
    with path.open("w", encoding="utf-8") as file:
        for number in range(1_000_000):
            file.write(f"sentence number {number} with as many words as people write on average\n")
    return path


@pytest.mark.slow
def test_a_million_lines_take_no_more_memory_than_their_places(tmp_path):
    path = write_a_million(tmp_path / "lines.txt")
    tracemalloc.start()
    lines = Lines(path)
    for number in range(0, 1_000_000, 1000):
        assert lines[number].startswith(f"sentence number {number} ")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 70e6  # while searching four arrays of eight bytes a line; the texts are 70 MB


@pytest.mark.slow
def test_training_on_a_million_lines_takes_no_more_memory_than_their_places_and_order(tmp_path):
    path = write_a_million(tmp_path / "lines.txt")
    data = SentenceData(path, sentences.write_vocabulary(tmp_path))
    _ = data.tokens
    tracemalloc.start()
    batches = iter(data.train_dataloader())
    found = [next(batches)[0][0] for _ in range(20)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all(len(tokens) == 64 for tokens in found)
    assert peak < 70e6  # that of finding the lines; kept are four arrays of eight bytes a line


@pytest.mark.parametrize("contents", [b"", b"\n\n\r\n", b"  \n\t"])
def test_file_without_text_is_refused(tmp_path, contents):
    path = tmp_path / "lines.txt"
    path.write_bytes(contents)
    with pytest.raises(ValueError, match=r"lines\.txt must hold at least one text"):
        Lines(path)


def test_vocabulary_file_gives_the_tokenizer_of_a_folder(tmp_path):
    folder = sentences.write_bert(tmp_path / "bert")
    texts = ["The Dog sees a cat", "unknown words", "our teacher"]
    by_folder, by_file = Tokens(folder), Tokens(folder / "vocab.txt")
    assert torch.equal(by_folder(texts, 8), by_file(texts, 8))
    assert by_folder.vocab_size == by_file.vocab_size == len(sentences.VOCABULARY)


def test_tokens_end_at_the_longest_sentence_or_the_maximum(tmp_path):
    tokens = Tokens(sentences.write_vocabulary(tmp_path))
    assert tokens(["a cat", "the old man likes the moon"], 16).shape == (2, 8)
    cut = tokens(["a cat", "the old man likes the moon"], 5)
    assert text_of(cut) == ["a cat", "the old man"]
    assert cut[1, -1] == sentences.VOCABULARY.index("[SEP]")


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(ValueError, match=f"tokenizer must be a folder that .*, got {tmp_path}"):
        Tokens(tmp_path)


def test_one_sentence_is_nothing_to_train_on(files):
    sentences.write_lines(files["train_file"], ["a cat", " "])
    with pytest.raises(
        ValueError, match="train_file must hold at least 2 sentences, got 1: 'a cat'"
    ):
        SentenceData(**files).train_dataloader()


def test_only_line_feeds_end_the_pieces_of_a_vocabulary(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2028", "\x85", "word"]
    (tmp_path / "vocab.txt").write_bytes("\r\n".join([*pieces, ""]).encode())
    tokens = Tokens(tmp_path / "vocab.txt")
    assert tokens.vocab_size == len(pieces)
    assert tokens(["word"], 8).tolist() == [[2, 6, 3]]


def test_vocabulary_without_a_special_token_is_refused(tmp_path):
    path = sentences.write_lines(tmp_path / "vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "word"])
    with pytest.raises(ValueError, match=r"tokenizer must be a vocabulary .* without \[SEP\]"):
        Tokens(path)


def test_both_views_are_the_same_tokens_and_every_sentence_comes_once(files):
    data = SentenceData(**files, batch_size=16)
    batches = list(data.train_dataloader())
    assert all(first is second for (first, second), _ in batches)
    assert all((labels == -1).all() for _, labels in batches)
    found = [text for (first, _), _ in batches for text in text_of(first)]
    assert sorted(found) == sorted(sentences.SENTENCES)


def orders(files, seed, epochs=2):
    torch.manual_seed(seed)
    loader = SentenceData(**files, batch_size=16).train_dataloader()
    return [[text_of(views[0]) for views, _ in loader] for _ in range(epochs)]


def test_order_follows_from_seed_and_epoch(files):
    first, again, other = orders(files, 1), orders(files, 1), orders(files, 2)
    assert first == again
    assert first[0] != first[1]
    assert first != other


def test_workers_change_nothing(files):
    torch.manual_seed(1)
    data = SentenceData(**files, batch_size=16, num_workers=2)
    assert [text_of(views[0]) for views, _ in data.train_dataloader()] == orders(files, 1, 1)[0]


class Recorder(LightningModule):
    """Notes what it is trained on."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(text_of(batch[0][0]))
        return self.weight * 0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class SaveFourthStep(Callback):
    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 4:
            trainer.save_checkpoint(self.path)


def test_training_resumed_within_an_epoch_sees_what_it_would_have_seen(files, tmp_path):
    files.update(sts_file=None, retrieval_file=None)

    def train(callbacks, ckpt_path=None):
        torch.manual_seed(0)
        recorder = Recorder()
        trainer = Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            callbacks=callbacks,
        )
        trainer.fit(recorder, SentenceData(**files, batch_size=16), ckpt_path=ckpt_path)
        return recorder.seen

    whole = train([SaveFourthStep(tmp_path / "step.ckpt")])
    assert len(whole) == 12
    assert train([], tmp_path / "step.ckpt") == whole[4:]


def test_validation_gives_scores_as_numbers_and_pairs_by_their_place(files):
    sts, retrieval = SentenceData(**files, batch_size=8).val_dataloader()
    views, labels = next(iter(sts))
    assert labels.tolist() == [k / 4 for k in range(8)]
    assert [text_of(view) for view in views] == [sentences.SENTENCES[:8], sentences.SENTENCES[1:9]]
    places = torch.cat([labels for _, labels in retrieval])
    assert places.tolist() == list(range(12))
    assert places.dtype == torch.int64


def test_there_is_a_loader_for_each_file_that_is_given(files):
    files["sts_file"] = None
    assert len(SentenceData(**files).val_dataloader()) == 1
    files["retrieval_file"] = None
    assert SentenceData(**files).val_dataloader() == []


def test_test_pairs_are_read_as_those_of_validation_are(files):
    test = {f"test_{name}": files[name] for name in ("sts_file", "retrieval_file")}
    data = SentenceData(**files, **test, batch_size=8)
    for tested, validated in zip(data.test_dataloader(), data.val_dataloader(), strict=True):
        for (views, labels), (expected, numbers) in zip(tested, validated, strict=True):
            assert torch.equal(labels, numbers)
            assert all(map(torch.equal, views, expected))


def test_prediction_gives_every_sentence_in_its_order_with_its_number(files):
    data = SentenceData(**files, predict_file=files["train_file"], batch_size=7)
    batches = list(data.predict_dataloader())
    assert [text for tokens, _ in batches for text in text_of(tokens)] == sentences.SENTENCES
    numbers = torch.cat([numbers for _, numbers in batches])
    assert numbers.tolist() == list(range(len(sentences.SENTENCES)))


def test_file_that_was_not_given_is_named(files):
    with pytest.raises(ValueError, match="test_sts_file or test_retrieval_file must be a file"):
        SentenceData(**files).test_dataloader()
    with pytest.raises(ValueError, match="predict_file must be a file with a sentence a line"):
        SentenceData(**files).predict_dataloader()


def test_pairs_end_at_line_feeds_alone(files):
    sentences.write_lines(files["retrieval_file"], ["a cat\u2028a bird\tthe moon\x85"])
    _, retrieval = SentenceData(**files).val_dataloader()
    assert [len(labels) for _, labels in retrieval] == [1]


def test_blank_lines_among_pairs_are_passed_over_and_counted_in_errors(files):
    pairs = ["a cat\ta bird", "", "  ", "the moon\ta river", ""]
    sentences.write_lines(files["retrieval_file"], pairs)
    _, retrieval = SentenceData(**files).val_dataloader()
    assert [labels.tolist() for _, labels in retrieval] == [[0, 1]]
    sentences.write_lines(files["retrieval_file"], [*pairs, "a cat"])
    with pytest.raises(ValueError, match=r"pairs\.tsv, line 6, must hold 2 columns"):
        SentenceData(**files).val_dataloader()


def test_validation_may_read_longer_sentences(files):
    _, retrieval = SentenceData(**files, max_length=4, val_max_length=16).val_dataloader()
    assert next(iter(retrieval))[0][0].shape[1] > 4
    assert next(iter(SentenceData(**files, max_length=4).train_dataloader()))[0][0].shape[1] == 4


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("sts_file", "high\ta cat\ta bird", r"sts\.tsv, line 2, must begin with a number"),
        ("sts_file", "nan\ta cat\ta bird", r"sts\.tsv, line 2, must begin with a number"),
        ("sts_file", "0.5\ta cat", r"sts\.tsv, line 2, must hold 3 columns .* got 2"),
        ("retrieval_file", "a cat", r"pairs\.tsv, line 2, must hold 2 columns .* got 1"),
    ],
)
def test_line_of_another_form_is_named(files, name, line, message):
    lines = files[name].read_text(encoding="utf-8").splitlines()
    sentences.write_lines(files[name], [lines[0], line, *lines[1:]])
    with pytest.raises(ValueError, match=message):
        SentenceData(**files).val_dataloader()


@pytest.mark.parametrize(
    ("name", "stage"), [("train_file", "train"), ("tokenizer", "val"), ("retrieval_file", "val")]
)
def test_line_in_another_encoding_is_named(files, name, stage):
    first, *rest = files[name].read_bytes().splitlines(keepends=True)
    files[name].write_bytes(b"".join([first, b"caf\xe9\tbleu\n", *rest]))
    message = rf"{files[name].name}, line 2, must be UTF-8, got the byte 0xe9 at its place 4"
    with pytest.raises(ValueError, match=message):
        list(getattr(SentenceData(**files), f"{stage}_dataloader")())


def test_byte_order_marks_change_nothing(files):
    def batches():
        data = SentenceData(**files)
        loaders = [*data.val_dataloader(), data.predict_dataloader()]
        return [[*loader] for loader in loaders]

    files["predict_file"] = files["train_file"]
    expected = batches()
    for name in ("train_file", "tokenizer", "sts_file", "retrieval_file"):
        files[name].write_bytes(b"\xef\xbb\xbf" + files[name].read_bytes())
    assert str(batches()) == str(expected)


@pytest.mark.parametrize(
    ("name", "stage"),
    [("train_file", "train"), ("tokenizer", "train"), ("sts_file", "val"),
     ("retrieval_file", "val"), ("test_sts_file", "test"), ("test_retrieval_file", "test"),
     ("predict_file", "predict")],
)  # fmt: skip
def test_file_that_is_not_there_is_named(files, name, stage):
    files[name] = files["train_file"].with_name("absent")
    data = SentenceData(**files)
    with pytest.raises(FileNotFoundError, match=rf"{name} must be .*absent"):
        getattr(data, f"{stage}_dataloader")()


def test_folder_in_place_of_a_file_is_named(files, tmp_path):
    files["train_file"] = tmp_path
    with pytest.raises(FileNotFoundError, match=r"train_file must be a text file, .*, a folder"):
        SentenceData(**files).train_dataloader()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"batch_size": 0}, ValueError), ({"max_length": 2}, ValueError),
     ({"val_max_length": 2.5}, TypeError), ({"num_workers": -1}, ValueError)],
)  # fmt: skip
def test_number_out_of_range_is_refused_by_name(files, arguments, error):
    with pytest.raises(error, match=next(iter(arguments))):
        SentenceData(**files, **arguments)


def test_seed_of_the_order_is_drawn_from_the_global_stream_alone(files):
    np_state = np.random.get_state()[1].copy()
    orders(files, 1)
    assert np.array_equal(np.random.get_state()[1], np_state)
