"""What users hand in, checked once at the door: features, labels, weights, seeds, parameters, memory.

Kernels do not check bounds, so nothing reaches them that has not come through here. Every sentence a user can
cause to be raised about data or parameters is worded in this package: what is wrong, where, what was got,
what to do."""

from extremax.runtime.memory import (
    NotEnoughMemoryError,
    available_memory,
    check_memory,
    describe_memory,
    format_bytes,
)
from extremax.validation.features import check_features
from extremax.validation.labels import LabelIndex, check_classes, encode_labels, lookup_labels
from extremax.validation.parameters import (
    BOOLEAN,
    CALLABLE,
    RANDOM_STATE,
    Choice,
    Constraint,
    ConstraintTable,
    Instance,
    Interval,
    check_parameters,
    check_random_state,
    check_sample_weight,
)
from extremax.validation.targets import Targets, encode_targets, lookup_targets

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
    "Targets",
    "available_memory",
    "check_classes",
    "check_features",
    "check_memory",
    "check_parameters",
    "check_random_state",
    "check_sample_weight",
    "describe_memory",
    "encode_labels",
    "encode_targets",
    "format_bytes",
    "lookup_labels",
    "lookup_targets",
]
