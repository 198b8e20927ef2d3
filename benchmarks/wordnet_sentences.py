"""Write the sentences of WordNet as the text files of configs/simcse/wordnet_tiny.yaml.

    python benchmarks/wordnet_sentences.py data/wordnet

reads WordNet's data files (of Debian's package wordnet-base; --wordnet names another folder) and
writes

- ``train.txt``, a gloss a line, definition and examples together, but for those held out;
- ``val.tsv`` and ``test.tsv``, a definition and an example a line, of 2,000 and 5,000 synsets;
- ``vocab.txt``, the word pieces of the training lines, in the format of BERT's vocabularies.
"""

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import BertWordPieceTokenizer

PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")
HELD_OUT = {"val": 2000, "test": 5000}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Synset(NamedTuple):
    """A set of synonyms, in sentences."""

    gloss: str
    definition: str
    examples: list[str]


def read_synsets(folder: Path) -> list[Synset]:
    """Read what stands after the bar of each line of WordNet's data files."""
    synsets = []
    for part in PARTS_OF_SPEECH:
        for line in (folder / f"data.{part}").read_text(encoding="utf-8").splitlines():
            entry, bar, gloss = line.partition(" | ")
            if bar and not entry.startswith("  "):  # so begin the lines of the licence
                synsets.append(split_gloss(gloss))
    return synsets


def split_gloss(gloss: str) -> Synset:
    """Tell the definition from the examples, which stand in quotation marks behind it.

    >>> split_gloss('a social unit; "he moved his family"; "the family"  ')
    Synset(gloss='a social unit; "he moved his family"; "the family"', \
definition='a social unit', examples=['he moved his family', 'the family'])
    """
    before, mark, rest = gloss.partition('; "')
    examples = [_clean(text) for text in re.findall(r'"([^"]*)"', mark[2:] + rest)]
    kept = [example for example in examples if " " in example]
    return Synset(" ".join(gloss.split()), _clean(before), kept)


def _clean(text: str) -> str:
    return " ".join(text.replace('"', " ").split()).strip(";, ")


def split(
    synsets: Sequence[Synset], held_out: dict[str, int], seed: int = 0
) -> tuple[list[str], dict[str, list[tuple[str, str]]]]:
    """Hold synsets with examples out, at random, and return the glosses of the others.

    Returns:
        The training glosses, in none of which is a sentence of a held-out synset, and the pairs
        (definition, example) of each part, in which no sentence comes twice.
    """
    generator = np.random.default_rng(seed)
    pairs: dict[str, list[tuple[str, str]]] = {name: [] for name in held_out}
    hidden, seen = set[str](), set[str]()
    for number in generator.permutation(len(synsets)):
        synset = synsets[number]
        part = next((name for name, size in held_out.items() if len(pairs[name]) < size), None)
        if part is None:
            break
        if synset.examples and synset.definition:
            pair = (synset.definition, synset.examples[0])
            if not seen & set(pair):
                pairs[part].append(pair)
                seen |= set(pair)
                hidden |= {synset.definition, *synset.examples}
    glosses = [
        synset.gloss for synset in synsets if not hidden & {synset.definition, *synset.examples}
    ]
    return list(dict.fromkeys(glosses)), pairs


def learn_word_pieces(sentences: Iterable[str], size: int) -> list[str]:
    """Learn a vocabulary of BERT's kind, in lower case, the same in every run."""
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    sentences = list(sentences)
    # Left to itself, the trainer meets the letters within words in an order of chance, and decides
    # by it between pieces that are equally frequent.
    letters = set(tokenizer.normalizer.normalize_str(" ".join(sentences))) - {" "}
    first = [*SPECIAL, *(f"##{letter}" for letter in sorted(letters))]
    tokenizer.train_from_iterator(
        sentences, vocab_size=size, special_tokens=first, show_progress=False
    )
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def write(folder: Path, wordnet: Path, vocab_size: int, held_out: dict[str, int]) -> None:
    """Write all files."""
    sentences, pairs = split(read_synsets(wordnet), held_out)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"train.txt": sentences, "vocab.txt": learn_word_pieces(sentences, vocab_size)}
    texts |= {f"{name}.tsv": ["\t".join(pair) for pair in found] for name, found in pairs.items()}
    for name, lines in texts.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{folder / name}: {len(lines)} lines")


def main() -> None:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--vocab-size", type=int, default=8000, help="number of word pieces")
    options = parser.parse_args()
    write(options.folder, options.wordnet, options.vocab_size, HELD_OUT)


if __name__ == "__main__":
    main()
