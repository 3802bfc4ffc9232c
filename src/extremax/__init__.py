"""Extreme classification: probabilistic classifiers over ten thousand to ten million classes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extremax.classifier import ExtremeClassifier as ExtremeClassifier
    from extremax.evaluation import calibrate as calibrate
    from extremax.evaluation import evaluate as evaluate
    from extremax.report import analyse as analyse
    from extremax.text import TextClassifier as TextClassifier
    from extremax.text import load_model as load_model
    from extremax.tree import LabelTree as LabelTree
    from extremax.tree.noise import FrequencyNoise as FrequencyNoise
    from extremax.tree.noise import MixtureNoise as MixtureNoise
    from extremax.tree.noise import Noise as Noise
    from extremax.tree.noise import TreeNoise as TreeNoise
    from extremax.tree.noise import UniformNoise as UniformNoise

    __version__: str

# The module of each public name, imported when the name is first used: `extremax --help` needs none of them.
_MODULES = {
    "ExtremeClassifier": "classifier",
    "FrequencyNoise": "tree.noise",
    "LabelTree": "tree",
    "MixtureNoise": "tree.noise",
    "Noise": "tree.noise",
    "TextClassifier": "text",
    "TreeNoise": "tree.noise",
    "UniformNoise": "tree.noise",
    "analyse": "report",
    "calibrate": "evaluation",
    "evaluate": "evaluation",
    "load_model": "text",
}
# Packages that are attributes without an import of their own: `extremax.data` works at once.
_PACKAGES = (
    "data",
    "errors",
    "experiments",
    "features",
    "metrics",
    "nn",
    "report",
    "scores",
    "solvers",
    "tree",
)

__all__ = [*_MODULES]


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
