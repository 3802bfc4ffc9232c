"""Extreme classification: probabilistic classifiers over ten thousand to ten million classes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extremax.analysis import analyse as analyse
    from extremax.estimator import ExtremeClassifier as ExtremeClassifier
    from extremax.evaluation import calibrate as calibrate
    from extremax.evaluation import evaluate as evaluate
    from extremax.loading import load_model as load_model
    from extremax.noise import FrequencyNoise as FrequencyNoise
    from extremax.noise import MixtureNoise as MixtureNoise
    from extremax.noise import Noise as Noise
    from extremax.noise import TreeNoise as TreeNoise
    from extremax.noise import UniformNoise as UniformNoise
    from extremax.text_classifier import TextClassifier as TextClassifier
    from extremax.tree import LabelTree as LabelTree

    __version__: str

# The module of each public name, imported when the name is first used: `extremax --help` needs none of them.
_MODULES = {
    "ExtremeClassifier": "estimator",
    "FrequencyNoise": "noise",
    "LabelTree": "tree",
    "MixtureNoise": "noise",
    "Noise": "noise",
    "TextClassifier": "text_classifier",
    "TreeNoise": "noise",
    "UniformNoise": "noise",
    "analyse": "analysis",
    "calibrate": "evaluation",
    "evaluate": "evaluation",
    "load_model": "loading",
}
# Packages that are attributes without an import of their own: `extremax.data` works at once.
_PACKAGES = (
    *("analysis", "data", "errors", "features", "metrics", "nn"),
    *("noise", "paper", "search", "theory", "tree"),
)

__all__ = [
    "ExtremeClassifier",
    "FrequencyNoise",
    "LabelTree",
    "MixtureNoise",
    "Noise",
    "TextClassifier",
    "TreeNoise",
    "UniformNoise",
    "analyse",
    "calibrate",
    "evaluate",
    "load_model",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(import_module(f"extremax.{_MODULES[name]}"), name)
    elif name in _PACKAGES:
        value = import_module(f"extremax.{name}")
    elif name == "__version__":
        value = _version()
    else:
        raise AttributeError(f"module 'extremax' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES, "__version__"})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("extremax")
    except PackageNotFoundError:  # a source folder on the path
        return "0+unknown"
