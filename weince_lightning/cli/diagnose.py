"""``weince diagnose``: is the tail of an encoder's hard negatives Weibull?"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from weince_lightning.checkpoints.files import whole_file
from weince_lightning.cli.arguments import UsageError
from weince_lightning.cli.encoder_arguments import (
    Given,
    add_encoder_arguments,
    build,
    check_data_given,
    encoder_parser,
    read_options,
    saved_settings,
    show_help_if_asked,
    sort_arguments,
)
from weince_lightning.cli.messages import say
from weince_lightning.cli.parser import ConciseParser
from weince_lightning.cli.run_files import shown
from weince_lightning.diagnostics.diagnosis import Diagnosis, diagnose
from weince_lightning.diagnostics.embedding_files import (
    holds_embeddings,
    in_words_of_files,
    read_embeddings,
)
from weince_lightning.diagnostics.embeddings import Embeddings
from weince_lightning.diagnostics.encoders import (
    HUBS,
    Encoder,
    build_hub_encoder,
    embed,
    read_checkpoint_encoder,
)
from weince_lightning.diagnostics.figures import draw
from weince_lightning.diagnostics.page import render_page
from weince_lightning.diagnostics.verdict import Verdict, pronounce
from weince_lightning.evaluation.progress import progress_bar
from weince_lightning.functional.layouts import Layout

_DESCRIPTION = """\
Find out whether the tail of the hard negatives' similarities is what WEINCE takes it for: Weibull,
with an end. Fits peaks over a threshold, compares their shape with that of Gaussian scores and of
uniform directions, looks at batches as WEINCE would, and fits the link where positives are known.

SOURCE is a file of embeddings (.npy, .npz, .pt, .safetensors), a checkpoint (of `weince fit`, the
paper's released code or lightly's SimCLR), torchvision:NAME or timm:NAME. An encoder embeds two
views of the test images of the data, by its projection head where the checkpoint has one.

In a file with several arrays: embeddings (or features, z0), positives (or z1) with the positive of
each row, pairs with an index of positive rows, ids (or labels) with what each row shows. Rows with
equal ids, and equal rows, are no negatives of each other.
"""
_EPILOG = """\
examples:
  weince diagnose embeddings.npy
  weince diagnose images.npy --positives captions.npy --layout pairs --temperature 0.07
  weince diagnose runs/digits/version_0/checkpoints/last.ckpt
  weince diagnose torchvision:resnet18 -c data/cifar100

Writes report.html, diagnosis.json and the figures to ./diagnosis; a second run replaces the first.
"""

_OF_LAYERS = ("data", "device", "backbone", "v1_stride")
KINDS: tuple[Literal["png", "svg"], ...] = ("png", "svg")
_SIDES = ("positives", "pairs", "ids")
_EXPECTED = (OSError, ValueError, TypeError, RuntimeError, ImportError)


def diagnose_source(arguments: Sequence[str]) -> None:
    """Run ``weince diagnose``.

    Args:
        arguments: What stands after ``diagnose``.

    Raises:
        UsageError: If the arguments or the embeddings make no sense.
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
        embeddings, what, options = _embeddings(parser, source, given)
        folder = Path(options["output"])
        _check_folder(folder)
        found = diagnose(
            embeddings, options["temperature"], options["quantile"], options["seed"], progress_bar
        )
    except ValueError as error:
        raise UsageError(f"{source}: {in_words_of_files(error)}") from error
    except KeyboardInterrupt:
        sys.stderr.write("\nweince: interrupted; nothing was written.\n")
        raise SystemExit(130) from None
    verdict = pronounce(found)
    title = source if source.startswith(HUBS) else Path(source).name
    try:
        _write(folder, found, verdict, source, what)
    except OSError as error:
        raise UsageError(
            f"--output must be a folder that can be written to, got {folder}: {error.strerror}."
        ) from error
    say(_summary(found, verdict, title, folder))


def _parser() -> ConciseParser:
    parser = encoder_parser("diagnose", "SOURCE [-c LAYER ...] [options]", _DESCRIPTION, _EPILOG)
    parser.add_argument("--output", type=str, default="diagnosis", help="the folder to write to")
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
    parser.add_argument(
        "--pretrained", type=bool, default=True,
        help="whether torchvision:NAME and timm:NAME have their published weights",
    )  # fmt: skip
    add_encoder_arguments(parser, "a test_dataloader of (views, labels)")
    return parser


def _embeddings(
    parser: ConciseParser, source: str, given: Given
) -> tuple[Embeddings, str, dict[str, Any]]:
    """Read or compute the embeddings; say what they are, and return the options."""
    is_hub = source.startswith(HUBS)
    path = Path(source)
    try:
        if not is_hub and not path.is_file():
            raise UsageError(
                f"SOURCE must be a file, torchvision:NAME or timm:NAME, got {source}, which "
                f"{'is a folder' if path.is_dir() else 'is not there'}."
            )
        if not is_hub and holds_embeddings(path):
            if given.layers or any(option.startswith("--data") for option in given.options):
                raise UsageError(
                    f"-c and --data must not be given for {source}, which holds embeddings."
                )
            config, _ = read_options(parser, given)
            options = _options(config, None)
            files = {
                name: None if getattr(config, name) is None else Path(getattr(config, name))
                for name in _SIDES
            }
            embeddings = read_embeddings(path, options["layout"] or "views", **files)
            if options["layout"] is not None and embeddings.second is None:
                raise UsageError(
                    f"--layout must not be given where no positives are known, got "
                    f"{options['layout']} for {source}."
                )
            return embeddings, "embeddings", options
        return _embed(parser, source, given)
    except UsageError:
        raise
    except _EXPECTED as error:
        text = in_words_of_files(error)
        raise UsageError(text if source in text else f"{source}: {text}") from error


def _embed(
    parser: ConciseParser, source: str, given: Given
) -> tuple[Embeddings, str, dict[str, Any]]:
    """Embed test images by an encoder."""
    saved, settings = (None, {}) if source.startswith(HUBS) else saved_settings(Path(source), given)
    check_data_given(source, given, settings)
    config, _ = read_options(parser, given, saved, settings)
    for name in _SIDES:
        if getattr(config, name) is not None:
            raise UsageError(f"--{name} must not be given for an encoder, whose views are known.")
    built = build(parser, config)
    if source.startswith(HUBS):
        encoder = build_hub_encoder(source, config.pretrained)
    else:
        encoder = read_checkpoint_encoder(Path(source), built.backbone, built.v1_stride)
    options = _options(config, encoder)
    embeddings = embed(encoder, built.data, config.device, options["layout"], config.seed)
    return embeddings, encoder.what, options


def _options(config: Any, encoder: Encoder | None) -> dict[str, Any]:
    temperature = config.temperature
    if temperature is None:
        temperature = encoder.temperature if encoder and encoder.temperature else 0.5
    layout: Layout | None = config.layout
    return {
        "output": config.output,
        "layout": layout,
        "temperature": temperature,
        "quantile": config.quantile,
        "seed": config.seed,
    }


def _check_folder(folder: Path) -> None:
    """Refuse to mix the report with files of other kinds."""
    there = next(each for each in (folder, *folder.parents) if each.exists() or each.is_symlink())
    if not there.is_dir() or not os.access(there, os.W_OK):
        what = "can not be written to" if there.is_dir() else "is no folder"
        raise UsageError(
            f"--output must be a folder that can be written to, got {folder}: {there} {what}."
        )
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "diagnosis.json").is_file():
        raise UsageError(
            f"--output must be a new folder, an empty one or that of an earlier diagnosis, got "
            f"{folder}, which holds other files."
        )


def _write(folder: Path, diagnosis: Diagnosis, verdict: Verdict, source: str, what: str) -> None:
    """Write the report in the place of an earlier one, once all of it is there."""
    numbers = {
        "source": source,
        "embeddings": what,
        **diagnosis.numbers(),
        "verdict": {"headline": verdict.headline, "findings": verdict.findings},
    }
    pictures = draw(diagnosis)
    files = {
        f"figures/{name}.{kind}": picture.render(kind)
        for name, picture in pictures.items()
        for kind in KINDS
    }
    files["report.html"] = render_page(diagnosis, verdict, pictures, source).encode()
    # First: by it the folder is known as that of a diagnosis.
    content = json.dumps(numbers, indent=2, allow_nan=False).encode() + b"\n"
    files = {"diagnosis.json": content, **files}
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    # An earlier report may have figures that this one has not.
    for earlier in (folder / "figures").iterdir():
        if f"figures/{earlier.name}" not in files and earlier.suffix[1:] in KINDS:
            earlier.unlink()
    for name, content in files.items():
        with whole_file(folder / name) as file:
            file.write(content)


def _summary(diagnosis: Diagnosis, verdict: Verdict, title: str, folder: Path) -> str:
    lines = [f"\n{title}: {verdict.headline}\n"]
    lines += [f"  - {finding}\n" for finding in verdict.findings]
    return "".join([*lines, f"Report: {shown(folder / 'report.html')}\n"])
