"""Extreme classification: softmax over very many classes, trained and queried at a cost that grows with log C."""

from importlib.metadata import PackageNotFoundError, version

from extremax.estimator import ExtremeClassifier, load_model
from extremax.noise import FrequencyNoise, MixtureNoise, Noise, TreeNoise, UniformNoise
from extremax.tree import LabelTree

try:
    __version__ = version("extremax")
except PackageNotFoundError:  # a source folder on the path
    __version__ = "0+unknown"

__all__ = [
    "ExtremeClassifier",
    "FrequencyNoise",
    "LabelTree",
    "MixtureNoise",
    "Noise",
    "TreeNoise",
    "UniformNoise",
    "load_model",
]
