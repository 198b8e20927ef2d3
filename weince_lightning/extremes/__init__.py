"""Extreme-value statistics on arrays: is a tail Weibull, Gumbel or Fréchet?"""

from weince_lightning.extremes.noise_floor import NoiseFloor, noise_floor
from weince_lightning.extremes.nulls import Null, gaussian_null, sphere_null
from weince_lightning.extremes.pareto import ParetoFit, fit_pareto
from weince_lightning.extremes.selection import LinkFit, fit_link, link_profile
from weince_lightning.extremes.threshold import (
    MeanExcess,
    Pairs,
    Tail,
    ThresholdFit,
    fit_stability,
    fit_threshold,
    goodness_of_fit,
    mean_excess,
    qq_points,
)

__all__ = [
    "LinkFit",
    "MeanExcess",
    "NoiseFloor",
    "Null",
    "Pairs",
    "ParetoFit",
    "Tail",
    "ThresholdFit",
    "fit_link",
    "fit_pareto",
    "fit_stability",
    "fit_threshold",
    "gaussian_null",
    "goodness_of_fit",
    "link_profile",
    "mean_excess",
    "noise_floor",
    "qq_points",
    "sphere_null",
]
