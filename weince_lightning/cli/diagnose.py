"""``weince diagnose``: is WEINCE worth trying for an encoder or its embeddings?"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from weince_lightning.cli.arguments import UsageError, in_words_of_command
from weince_lightning.cli.encoder_arguments import (
    EXPECTED,
    Given,
    build,
    encoder_parser,
    read_encoder_options,
    read_options,
    show_help_if_asked,
    sort_arguments,
)
from weince_lightning.cli.messages import say
from weince_lightning.cli.parser import ConciseParser
from weince_lightning.cli.run_files import shown
from weince_lightning.cli.wording import in_words_of_options
from weince_lightning.data.images import MissingDataError
from weince_lightning.diagnostics import Diagnosis, diagnose, diagnose_encoder, pronounce
from weince_lightning.diagnostics.embedding_files import (
    NO_IDS,
    holds_embeddings,
    open_source,
    read_embeddings,
)
from weince_lightning.diagnostics.embeddings import Embeddings
from weince_lightning.diagnostics.encoders import read_checkpoint_encoder
from weince_lightning.diagnostics.report import report_folder, write_report
from weince_lightning.diagnostics.untrained import UNTRAINED, as_untrained
from weince_lightning.evaluation.encoders import images_of, is_encoder_name
from weince_lightning.evaluation.progress import progress_bar
from weince_lightning.evaluation.saved_run import warn_of_normalization
from weince_lightning.functional.layouts import Layout

_DESCRIPTION = """\
Find out without training whether WEINCE is worth trying: "worth trying", "no reason to expect a
gain" or "cannot tell", with the reason and the next command. The numbers behind it follow: the tail
of the hard negatives' similarities beside those of random directions and of a second encoder, the
gradient in batches and, where positives are known, the link.

SOURCE is a file of embeddings (.npy, .npz, .pt, .safetensors, .csv, .parquet), a checkpoint (of
`weince fit`, the paper's released code or lightly's SimCLR), torchvision:NAME or timm:NAME, or
without weights a name such as resnet18 or a class path. An encoder embeds two views of the test
images of the data, by its projection head where the checkpoint has one.

In a file with several arrays: embeddings (or features, z0), positives (or z1) with the positive of
each row, pairs with an index of positive rows, ids (or labels) with what each row shows, -1 where
that is unknown. Rows with equal ids, and equal rows, are no negatives of each other. Whatever else
lies in the file, such as paths, is passed over.
"""
_EPILOG = """\
examples:
  weince diagnose embeddings.npy
  weince diagnose trained.npy --against untrained.npy
  weince diagnose images.npy --positives captions.npy --layout pairs --temperature 0.07
  weince diagnose runs/digits/version_0/checkpoints/last.ckpt --against untrained
  weince diagnose torchvision:resnet18 -c data/cifar100

Writes report.html, diagnosis.json and the figures to a folder beside SOURCE, such as
embeddings.npy.diagnosis; a second run replaces the first.
"""

_OF_LAYERS = ("data", "device", "backbone", "v1_stride")
_ARGUMENTS = {
    "first": "embeddings",
    "second": "positives",
    "name": "SOURCE",
    "output": "--output",
    "against": "--against",
}
"""Names of the functions' arguments, and the names that people gave them by."""
_SIDES = ("positives", "pairs", "ids")


def diagnose_source(arguments: Sequence[str]) -> None:
    """Run ``weince diagnose``.

    Args:
        arguments: What stands after ``diagnose``.

    Raises:
        UsageError: If the arguments make no sense.
        SystemExit: With status 1 if the embeddings or images cannot be diagnosed, 130 after Ctrl-C.
    """
    parser = _parser()
    show_help_if_asked(parser, arguments)
    given = sort_arguments(arguments, _OF_LAYERS)
    if len(given.positionals) != 1:
        raise UsageError(
            "diagnose must know what: give one SOURCE, a file of embeddings, a checkpoint, "
            f"torchvision:NAME or timm:NAME, got {' '.join(given.positionals) or 'none'}. See "
            "weince diagnose --help."
        )
    source = given.positionals[0]
    try:
        found, folder = _diagnose(parser, source, given)
        page = write_report(found, folder, source)
    except EXPECTED as error:
        text = in_words_of_options(in_words_of_command(error, _ARGUMENTS), parser.keys)
        text = text if source in text else f"{source}: {text}"
        is_of_data = Path(source).is_file() and not isinstance(error, OSError)
        if is_of_data and not text.startswith(("--", f"{source}: --")):
            sys.stderr.write(f"weince: error: {text}\n")
            raise SystemExit(1) from error
        raise (error if isinstance(error, MissingDataError) else UsageError(text)) from error
    except KeyboardInterrupt:
        sys.stderr.write("\nweince: interrupted; nothing was written.\n")
        raise SystemExit(130) from None
    title = source if is_encoder_name(source) else Path(source).name
    verdict = pronounce(found, source)
    lines = [f"\n{title}: {verdict.headline}\n"]
    lines += [f"Next: {verdict.next}  ({verdict.purpose})\n"]
    lines += [f"  - {finding}\n" for finding in verdict.findings]
    say("".join([*lines, f"Report: {shown(page)}\n"]))


def _parser() -> ConciseParser:
    parser = encoder_parser(
        "diagnose", "SOURCE [-c LAYER ...] [options]", _DESCRIPTION, _EPILOG,
        data_needs="a test_dataloader of (views, labels)",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=str | None, default=None,
        help="the folder to write to; default: SOURCE.diagnosis, beside SOURCE",
    )  # fmt: skip
    parser.add_argument(
        "--against", type=str | None, default=None,
        help="a second encoder of the same samples: a file with the same rows where SOURCE is one, "
        "another checkpoint or encoder where SOURCE is one; untrained: SOURCE's own encoder with "
        "new random weights",
    )  # fmt: skip
    parser.add_argument(
        "--key", type=str | None, default=None,
        help="the name of the array of embeddings where a file holds several",
    )  # fmt: skip
    parser.add_argument(
        "--positives", type=str | None, default=None,
        help="a file with the positive of each row of SOURCE",
    )  # fmt: skip
    parser.add_argument(
        "--pairs", type=str | None, default=None,
        help="a file with an index, shape (pairs, 2), of the rows that are positives",
    )  # fmt: skip
    parser.add_argument(
        "--ids", type=str | None, default=None,
        help="a file with integers, what each row shows, such as class labels; none passes over "
        "those in SOURCE",
    )  # fmt: skip
    parser.add_argument(
        "--layout", type=Literal["views", "pairs", "queries"] | None, default=None,
        help="who is compared with whom where positives are known: views (all embeddings, as in "
        "SimCLR), pairs (the two sides, as in CLIP) or queries (one way); default: that of the "
        "checkpoint's loss, else views",
    )  # fmt: skip
    parser.add_argument(
        "--temperature", type=float | None, default=None,
        help="softmax temperature; default: that of the checkpoint's loss, else 0.5",
    )  # fmt: skip
    parser.add_argument(
        "--quantile", type=float, default=0.99,
        help="part of the similarities below the threshold, 0.98 to 0.9999",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn at random")
    return parser


def _diagnose(parser: ConciseParser, source: str, given: Given) -> tuple[Diagnosis, Path]:
    """Diagnose embeddings or an encoder; return the folder of the report too."""
    path = Path(source)
    if is_encoder_name(source):
        return _diagnose_encoder(parser, source, None, given)
    if not path.is_file():
        raise UsageError(
            f"SOURCE must be a file, torchvision:NAME or timm:NAME, got {source}, which "
            f"{'is a folder' if path.is_dir() else 'is not there'}."
        )
    opened = open_source(path)
    if not holds_embeddings(opened):
        return _diagnose_encoder(parser, source, opened, given)
    if given.layers or given.sets("data"):
        raise UsageError(f"-c and --data must not be given for {source}, which holds embeddings.")
    config = read_options(parser, given)
    folder = report_folder(config.output, source)
    files = {name: config[name] and Path(config[name]) for name in _SIDES}
    layout: Layout = config.layout or "views"
    embeddings = read_embeddings(opened, layout, **files, key=config.key)
    against = _read_against(config, layout, files["pairs"])
    if config.layout is not None and embeddings.second is None:
        raise UsageError(
            f"--layout must not be given where no positives are known, got {config.layout} for "
            f"{source}."
        )
    temperature = 0.5 if config.temperature is None else config.temperature
    found = diagnose(embeddings, temperature, config.quantile, config.seed, progress_bar, against)
    return found, folder


def _read_against(config: Any, layout: Layout, pairs: Path | None) -> Embeddings | None:
    """Read the same rows by a second encoder, whose ids are those of the first."""
    if config.against is None:
        return None
    path = Path(config.against)
    if config.against == UNTRAINED and not path.exists():
        raise UsageError(
            "--against must be a file with the same rows where SOURCE holds embeddings, got "
            f"{UNTRAINED}, which is for encoders. Embed the rows before training, too."
        )
    opened = open_source(path) if path.is_file() else path
    return read_embeddings(opened, layout, pairs=pairs, ids=NO_IDS, key=config.key)


def _diagnose_encoder(
    parser: ConciseParser, source: str, checkpoint: Any, given: Given
) -> tuple[Diagnosis, Path]:
    """Diagnose an encoder by test images; ``checkpoint`` is None for one of a hub."""
    config, _ = read_encoder_options(parser, given, source, checkpoint)
    for name in (*_SIDES, "key"):
        if config[name] is not None:
            raise UsageError(f"--{name} must not be given for an encoder, whose views are known.")
    folder = report_folder(config.output, source)
    built = build(parser, config)
    shape: dict[str, Any] = {"pretrained": config.pretrained, **images_of(built.data)}
    encoder = read_checkpoint_encoder(
        checkpoint or source, built.backbone, built.v1_stride, **shape
    )
    warn_of_normalization(checkpoint or source, built.data)
    second = None
    if config.against == UNTRAINED:
        second = as_untrained(encoder, config.seed)
    elif config.against is not None:
        second = read_checkpoint_encoder(config.against, **shape)
    options = {
        name: config[name] for name in ("temperature", "layout", "quantile", "seed", "device")
    }
    found = diagnose_encoder(encoder, built.data, progress=progress_bar, against=second, **options)
    return found, folder
