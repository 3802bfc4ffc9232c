"""Checks of what users pass: features, labels, weights, seeds, parameters.

Kernels do not check bounds, so nothing reaches them unchecked.  Error messages about data and parameters are
worded in this package: what is wrong, where, what was got, what to do.

Names are imported when they are first used: `extremax.validation.constraints` alone needs no numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from extremax.errors import NotEnoughMemoryError

if TYPE_CHECKING:
    from extremax.validation.constraints import BOOLEAN as BOOLEAN
    from extremax.validation.constraints import CALLABLE as CALLABLE
    from extremax.validation.constraints import RANDOM_STATE as RANDOM_STATE
    from extremax.validation.constraints import Choice as Choice
    from extremax.validation.constraints import Constraint as Constraint
    from extremax.validation.constraints import ConstraintTable as ConstraintTable
    from extremax.validation.constraints import Instance as Instance
    from extremax.validation.constraints import Interval as Interval
    from extremax.validation.constraints import check_parameters as check_parameters
    from extremax.validation.features import check_features as check_features
    from extremax.validation.features import copied_bytes as copied_bytes
    from extremax.validation.features import join_pair as join_pair
    from extremax.validation.frames import as_frame as as_frame
    from extremax.validation.frames import as_labels as as_labels
    from extremax.validation.frames import frame_inputs as frame_inputs
    from extremax.validation.frames import frame_texts as frame_texts
    from extremax.validation.labels import LabelIndex as LabelIndex
    from extremax.validation.labels import check_classes as check_classes
    from extremax.validation.labels import encode_labels as encode_labels
    from extremax.validation.labels import join_labels as join_labels
    from extremax.validation.labels import lookup_labels as lookup_labels
    from extremax.validation.random_state import check_random_state as check_random_state
    from extremax.validation.sample_weight import check_sample_weight as check_sample_weight
    from extremax.validation.sample_weight import class_weights as class_weights
    from extremax.validation.targets import encode_targets as encode_targets
    from extremax.validation.targets import indicator_format as indicator_format
    from extremax.validation.targets import lookup_targets as lookup_targets

_MODULES = {
    "BOOLEAN": "constraints",
    "CALLABLE": "constraints",
    "RANDOM_STATE": "constraints",
    "Choice": "constraints",
    "Constraint": "constraints",
    "ConstraintTable": "constraints",
    "Instance": "constraints",
    "Interval": "constraints",
    "LabelIndex": "labels",
    "as_frame": "frames",
    "as_labels": "frames",
    "check_classes": "labels",
    "check_features": "features",
    "check_parameters": "constraints",
    "check_random_state": "random_state",
    "check_sample_weight": "sample_weight",
    "class_weights": "sample_weight",
    "copied_bytes": "features",
    "encode_labels": "labels",
    "encode_targets": "targets",
    "frame_inputs": "frames",
    "frame_texts": "frames",
    "indicator_format": "targets",
    "join_labels": "labels",
    "join_pair": "features",
    "lookup_labels": "labels",
    "lookup_targets": "targets",
}

__all__ = [
    "BOOLEAN",
    "CALLABLE",
    "RANDOM_STATE",
    "Choice",
    "Constraint",
    "ConstraintTable",
    "Instance",
    "Interval",
    "LabelIndex",
    "NotEnoughMemoryError",
    "as_frame",
    "as_labels",
    "check_classes",
    "check_features",
    "check_parameters",
    "check_random_state",
    "check_sample_weight",
    "class_weights",
    "copied_bytes",
    "encode_labels",
    "encode_targets",
    "frame_inputs",
    "frame_texts",
    "indicator_format",
    "join_labels",
    "join_pair",
    "lookup_labels",
    "lookup_targets",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'extremax.validation' has no attribute {name!r}")
    value = getattr(import_module(f"extremax.validation.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
