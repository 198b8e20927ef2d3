"""A sweep whose numbers a person can add up, written as ``weince sweep`` writes it."""

import copy
import json

import pytest
import yaml

SWEEP = {
    "layers": ["digits"],
    "options": {"trainer.max_epochs": 2},
    "seeds": [7, 21, 63],
    "baseline": "infonce",
    "arms": {
        "infonce": {
            "label": "InfoNCE",
            "layers": ["loss/infonce"],
            "grid": {"model.loss.temperature": [0.1, 0.5]},
        },
        "weince": {"label": "WEINCE", "layers": ["loss/weince"]},
    },
    "paper": {
        "infonce": {"linear.test_top1": [0.5001, 0.0019]},
        "weince": {"linear.test_top1": [0.5328, 0.0028], "knn.test_recall_at_1": [0.4294, 0.002]},
    },
}

# Linear accuracies of the three seeds: validation, test. The second is better on test, and worse on
# validation, than the first.
LINEAR = {
    ("infonce", "temperature=0.1"): ([0.60, 0.62, 0.64], [0.50, 0.52, 0.54]),
    ("infonce", "temperature=0.5"): ([0.58, 0.60, 0.62], [0.70, 0.72, 0.74]),
    ("weince", "default"): ([0.63, 0.65, 0.67], [0.53, 0.54, 0.58]),
}
SETTINGS = {"linear": {"epochs": 100, "learning_rate": 3e-4}, "data": {"dataset": "digits"}}


class SweepFolder:
    """A folder of results that a test changes before it reads it."""

    def __init__(self, path):
        self.path = path
        self.plan = copy.deepcopy(SWEEP)
        self.write_plan()
        for (arm, point), (validation, test) in LINEAR.items():
            for seed, val, tested in zip(self.plan["seeds"], validation, test, strict=True):
                self.write(arm, point, seed, record(arm, point, seed, val, tested))

    def write_plan(self):
        text = yaml.safe_dump(self.plan, sort_keys=False)
        (self.path / "sweep.yaml").write_text(text, encoding="utf-8")

    def file(self, arm, point, seed):
        return self.path / "results" / arm / point / f"seed_{seed}.json"

    def write(self, arm, point, seed, content):
        file = self.file(arm, point, seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content), encoding="utf-8")

    def change(self, arm, point, seed, part, metric, value):
        """Put another value, or None for none, into a result."""
        content = json.loads(self.file(arm, point, seed).read_text(encoding="utf-8"))
        metrics = content["evaluation"].setdefault(part, {})
        metrics[metric] = value
        if value is None:
            del metrics[metric]
        self.write(arm, point, seed, content)


def record(arm, point, seed, validation, test):
    temperature = point.partition("=")[2]
    return {
        "arm": arm,
        "point": {"model.loss.temperature": float(temperature)} if temperature else {},
        "seed": seed,
        "evaluation": {
            "checkpoint": "last.ckpt",
            "weights": f"{arm} {point} {seed}",
            "linear": {"val_top1": over_seeds(validation), "test_top1": over_seeds(test)},
            "knn": {
                "val_top1_k50": over_seeds(validation - 0.1),
                "test_top1_k50": over_seeds(test - 0.1),
                "test_recall_at_1": over_seeds(test - 0.2),
            },
            "gradient": {"hardest_1": 0.25},
            "settings": SETTINGS,
        },
        "fit": {"seconds": 1.0, "metrics": {}, "history": {"val/loss": [3, 2]}},
        "versions": {"torch": "2.14"},
    }


def over_seeds(accuracy, spread=0.03):
    """An accuracy as the mean over three probe seeds that differ much more than the encoders."""
    values = [accuracy - spread, accuracy, accuracy + spread]
    return {"mean": sum(values) / 3, "values": values}


@pytest.fixture
def sweep(tmp_path):
    return SweepFolder(tmp_path)


@pytest.fixture(scope="session")
def unchanged(tmp_path_factory):
    """The folder as it is written; nobody may change a result."""
    return SweepFolder(tmp_path_factory.mktemp("unchanged"))
