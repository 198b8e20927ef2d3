"""Sweeps: arms x settings x seeds as a list of runs, carried out so that nothing stops them."""

from weince_lightning.sweeps.plan import Arm, Run, Sweep, SweepError, read_sweep

__all__ = ["Arm", "Run", "Sweep", "SweepError", "read_sweep"]
