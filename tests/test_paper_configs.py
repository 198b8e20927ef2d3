"""The paper's runs: files over base and data that state what differs, and take a training step."""

import itertools
import re
from typing import NamedTuple

import data_files
import pytest
import torch
from cases import few
from jsonargparse import capture_parser

from weince_lightning.cli.arguments import complete_arguments, find_config
from weince_lightning.cli.lightning_cli import WeinceCLI
from weince_lightning.layers import merged, packaged_configs, read_layers

CONFIGS = packaged_configs()
PAPER = [name for name in CONFIGS if name.startswith("paper/")]
LOSSES = [name for name in CONFIGS if name.startswith("loss/")]
CHEAPEST = "paper/cifar100_resnet18"
# One loss for the others: a step takes seconds, and a loss layer does not know what lies under it.
PAIRS = [(CHEAPEST, loss) for loss in LOSSES]
PAIRS += [(name, "loss/weince") for name in PAPER if name != CHEAPEST]
# The written images are black but for two pixels, and InfoNCE has no tail to monitor.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The features have collapsed"),
    pytest.mark.filterwarnings("ignore:TailMonitor logs nothing"),
]
NAMED = ("data.init_args.dataset", "model.init_args.backbone", "model.init_args.backbone_options")


class Step(NamedTuple):
    """What a training step of a run left behind; not the model, which is large."""

    global_step: int
    metrics: dict[str, float]
    optimizer: type
    groups: list[tuple[float, float]]
    stem: tuple[int, int]
    image_size: int


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Two threads wait for each other longer than so few images take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def parser():
    return capture_parser(lambda: WeinceCLI(["fit"]))


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """A function that lets a configuration with a loss take one step; each pair once."""
    taken, folders = {}, {}
    with pytest.MonkeyPatch.context() as monkeypatch:

        def take(name, loss):
            dataset = load(name)["data"]["init_args"]["dataset"]
            if dataset not in folders:
                folders[dataset] = tmp_path_factory.mktemp(dataset)
                data_files.write(dataset, folders[dataset], monkeypatch)
            if (name, loss) not in taken:
                taken[name, loss] = train_one_step(name, loss, folders[dataset])
            return taken[name, loss]

        yield take


def train_one_step(name, loss, data_dir):
    options = ["--trainer.fast_dev_run=1", "--trainer.enable_progress_bar=false"]
    options += ["--trainer.accelerator=cpu", "--trainer.enable_model_summary=false"]
    options += [f"--data.data_dir={data_dir}", "--data.batch_size=3", "--data.num_workers=0"]
    cli = WeinceCLI(complete_arguments(["fit", "-c", name, "-c", loss, *options]))
    metrics = dict(cli.trainer.callback_metrics)
    (optimizer,) = cli.trainer.optimizers
    stem = next(m for m in cli.model.backbone.modules() if isinstance(m, torch.nn.Conv2d))
    global_step = cli.trainer.global_step
    cli.trainer.validate(cli.model, cli.datamodule, verbose=False)
    return Step(
        global_step,
        metrics | cli.trainer.callback_metrics,
        type(optimizer),
        [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups],
        (stem.kernel_size[0], stem.stride[0]),
        cli.datamodule.image_size,
    )


def settings(config):
    """All settings of a parsed command line but the names of the layers."""
    return {key: value for key, value in config.fit.as_dict().items() if key != "config"}


def load(name):
    return merged(read_layers(CONFIGS[name]))


def leaves(part, path=""):
    """Settings by dotted path; lists and backbone_options count as one setting."""
    if not isinstance(part, dict) or path.endswith(".backbone_options"):
        return {path: part}
    found = {}
    for key, value in part.items():
        found |= leaves(value, f"{path}.{key}" if path else key)
    return found


def parse(parser, *layers):
    layers = [part for name in layers for part in ("-c", find_config(name))]
    return settings(parser.parse_args(["fit", *layers]))


def without_loss(config):
    return {path: value for path, value in leaves(config).items() if ".loss" not in path}


@pytest.mark.parametrize("name", PAPER)
def test_file_holds_every_setting_of_the_base_and_agrees_but_for_the_backbone(name):
    base, own = leaves(load("base")), leaves(load(name))
    differing = {path for path in base if own.get(path, "absent") != base[path]}
    assert differing <= {"model.init_args.backbone"}


@pytest.mark.parametrize("name", PAPER)
def test_file_holds_every_setting_of_its_data_file_and_agrees(name):
    own = leaves(load(name))
    data = leaves(load(f"data/{own['data.init_args.dataset']}"))
    assert {path: own.get(path, "absent") for path in data} == data


@pytest.mark.parametrize("name", PAPER)
def test_file_states_only_what_differs_from_base_and_data(name):
    *under, own = read_layers(CONFIGS[name])
    data = f"data/{name.partition('/')[2].rpartition('_resnet')[0] or 'tiny_imagenet'}"
    assert [layer.source for layer in under] == [CONFIGS["base"], CONFIGS[data]]
    stated = {"data.init_args.num_workers", *NAMED[1:]}
    assert {*leaves(own.content)} == stated


@pytest.mark.parametrize("name", PAPER)
def test_files_set_the_same_and_differ_in_data_set_and_backbone_alone(name):
    first, own = leaves(load(PAPER[0])), leaves(load(name))
    assert list(own) == list(first)
    assert {path for path in own if own[path] != first[path]} <= set(NAMED)


@pytest.mark.parametrize("name", PAPER)
def test_file_is_named_after_its_data_set_and_backbone_and_says_so(name):
    own, text = leaves(load(name)), CONFIGS[name].read_text(encoding="utf-8")
    dataset, backbone, _ = (own[path] for path in NAMED)
    assert name == f"paper/{dataset}_{backbone}"
    commands = re.findall(r"^#   weince fit -c (\S+) -c (\S+)$", text, flags=re.MULTILINE)
    assert commands == [(name, "loss/weince"), (name, "loss/infonce")]


@pytest.mark.parametrize("name", [*PAPER, "base"])
def test_every_value_of_data_and_model_has_its_source_beside_it(name):
    section = "\nmodel:\n" if name == "base" else "\ndata:\n"
    _, found, text = CONFIGS[name].read_text(encoding="utf-8").partition(section)
    lines = [line for line in text.splitlines() if not line.endswith(":")]
    for before, line in itertools.pairwise(["", *lines]):
        is_explained = "#" in line or before.lstrip().startswith("#")
        assert is_explained or "class_path: weince_lightning." in line, line
    assert found


def test_the_runs_that_the_paper_is_known_to_report_are_there():
    promised = ["cifar10_resnet50", "cifar100_resnet18", "cifar100_resnet50", "imagenet32_resnet18"]
    promised += ["stl10_resnet18", "stl10_resnet50", "tiny_imagenet_resnet18"]
    assert set(PAPER) == {f"paper/{name}" for name in [*promised, "tiny_imagenet_vit_small"]}


@pytest.mark.parametrize(("name", "loss"), few(PAIRS, PAIRS.index((CHEAPEST, "loss/weince"))))
def test_a_step_is_taken_and_scored_on_the_published_format(step, name, loss):
    taken = step(name, loss)
    assert taken.global_step == 1
    assert torch.isfinite(taken.metrics["train/loss"])
    assert 0 <= taken.metrics["knn/top1"] <= 1


@pytest.mark.parametrize("name", few(PAPER, PAPER.index(CHEAPEST)))
def test_a_loss_layer_changes_nothing_but_the_loss(parser, name):
    alone = parse(parser, name)
    assert alone["seed_everything"] == 7
    for loss in LOSSES:
        layered = parse(parser, name, loss)
        assert without_loss(layered) == without_loss(alone)
        chosen = layered["model"]["init_args"]["loss"]
        assert chosen["class_path"] == load(loss)["model"]["loss"]["class_path"]
        assert chosen["init_args"]["temperature"] == 0.5


@pytest.mark.slow
def test_last_of_two_files_counts_alone(parser):
    for first, last in zip(PAPER, [*PAPER[1:], PAPER[0]], strict=True):
        assert leaves(parse(parser, first, last)) == leaves(parse(parser, last)), (first, last)


@pytest.mark.parametrize("name", few(PAPER, PAPER.index(CHEAPEST)))
def test_the_optimizer_is_adam_without_weight_decay(step, name):
    taken = step(name, "loss/weince")
    assert taken.optimizer is torch.optim.Adam
    assert taken.groups == [(3e-4, 0.0)]


@pytest.mark.parametrize(
    ("name", "image_size", "kernel", "stride"),
    few(
        [
            ("cifar10_resnet50", 32, 3, 1),
            ("cifar100_resnet18", 32, 3, 1),
            ("cifar100_resnet50", 32, 3, 1),
            ("imagenet32_resnet18", 32, 3, 1),
            ("stl10_resnet18", 96, 7, 2),
            ("stl10_resnet50", 96, 7, 2),
            ("tiny_imagenet_resnet18", 64, 3, 1),
            ("tiny_imagenet_vit_small", 64, 8, 8),
        ],
        1,
    ),
)
def test_the_first_layer_fits_the_images(step, name, image_size, kernel, stride):
    taken = step(f"paper/{name}", "loss/weince")
    assert (taken.image_size, taken.stem) == (image_size, (kernel, stride))
