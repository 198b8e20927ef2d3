"""Sweeps: arms x settings x seeds as a list of runs, carried out so that nothing stops them."""

from weince_lightning.sweeps.commands import Commands
from weince_lightning.sweeps.plan import Arm, Run, Sweep, SweepError
from weince_lightning.sweeps.reading import read_sweep
from weince_lightning.sweeps.running import list_runs, run_sweep, submit_sweep

__all__ = [
    "Arm",
    "Commands",
    "Run",
    "Sweep",
    "SweepError",
    "list_runs",
    "read_sweep",
    "run_sweep",
    "submit_sweep",
]
