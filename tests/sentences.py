"""Sentences, a vocabulary and a tiny BERT, written by the test that needs them."""

from pathlib import Path
from typing import Any

SUBJECTS = ("the dog", "a cat", "my friend", "the old man", "a bird", "our teacher")
VERBS = ("sees", "likes", "finds", "follows")
OBJECTS = ("the river", "a house", "green trees", "the moon")
SENTENCES = [f"{s} {v} {o}" for s in SUBJECTS for v in VERBS for o in OBJECTS]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL, *sorted({word for sentence in SENTENCES for word in sentence.split()})]

SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}
"""A BERT of a few thousand weights."""


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_vocabulary(folder: Path) -> Path:
    return write_lines(folder / "vocab.txt", VOCABULARY)


def write_bert(folder: Path, **sizes: Any) -> Path:
    """Save a BERT with random weights and its tokenizer, as transformers does."""
    from transformers import AutoTokenizer, BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    BertModel(BertConfig(**{**SIZES, **sizes})).save_pretrained(folder)
    write_vocabulary(folder)
    BertTokenizerFast(vocab=dict(zip(VOCABULARY, range(len(VOCABULARY)), strict=True))
                      ).save_pretrained(folder)  # fmt: skip
    AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return folder
