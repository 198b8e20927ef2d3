"""A sweep whose runs take a second or two, and what lies in its folder."""

import json

import yaml

TAILS = {"class_path": "weince_lightning.callbacks.TailMonitor", "init_args": {"every_n_steps": 1}}
LAST = {
    "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
    "init_args": {"filename": "last", "enable_version_counter": False},
}
LAYER = {
    "trainer": {
        "accelerator": "cpu",
        "max_epochs": 2,
        "limit_train_batches": 3,
        "limit_val_batches": 1,
        "log_every_n_steps": 1,
        "deterministic": True,
        "callbacks": [TAILS, LAST],
    },
    "data": {
        "class_path": "weince_lightning.data.VisionData",
        "init_args": {"dataset": "digits", "batch_size": 64},
    },
    "model": {
        "class_path": "weince_lightning.ContrastiveModule",
        "init_args": {"backbone": "convnet", "projection_dim": 16, "learning_rate": 1e-3},
    },
}
SWEEP = {
    "layers": ["layer.yaml"],
    "seeds": [7, 21],
    "baseline": "infonce",
    "arms": {
        "infonce": {"layers": ["loss/infonce"]},
        "weince": {"layers": ["loss/weince"], "grid": {"model.loss.gate.aic_margin": [0]}},
    },
    "evaluation": {"linear.epochs": 2, "linear.seeds": [1], "knn.seeds": [1], "knn.k": 10},
}
RUNS = [
    f"{configuration}/seed_{seed}"
    for seed in (7, 21)
    for configuration in ("infonce/default", "weince/aic_margin=0")
]


class WorkingFolder:
    """A working folder with a sweep file ``small.yaml``."""

    def __init__(self, path):
        self.path = path
        self.output = path / "sweeps" / "small"
        self.write("layer.yaml", LAYER)
        self.write("small.yaml", SWEEP)

    def write(self, name, content):
        (self.path / name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")

    def run(self, name):
        return self.output / "runs" / name

    def results(self):
        """Read all results by their names, without what may differ from one time to another."""
        folder, found = self.output / "results", {}
        for path in folder.rglob("*.json"):
            result = json.loads(path.read_text(encoding="utf-8"))
            del result["fit"]["seconds"]
            found[path.relative_to(folder).with_suffix("").as_posix()] = result
        return found
