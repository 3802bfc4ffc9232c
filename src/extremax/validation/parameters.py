"""Parameters, seeds and sample weights: one table of constraints per estimator, one routine that words
what is wrong.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from extremax.validation.wording import short

_LEAST_WEIGHT = 1e-15  # that the largest weight may be, and the inverse of the most


def check_sample_weight(
    sample_weight: Any, n_samples: int, *, name: str = "sample_weight"
) -> NDArray[np.float32] | None:
    """Return one finite weight >= 0 per row as float32, or None for None; a single number is the weight of
    every row.
    """
    if sample_weight is None:
        return None
    try:
        given = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{name} holds something that is not a number ({error}); it needs one weight per row."
        ) from error
    if given.ndim == 0:
        given = np.full(n_samples, given)
    if given.shape != (n_samples,):
        raise ValueError(
            f"{name} has shape {given.shape}, but there are {n_samples:,} rows: it needs shape ({n_samples},)."
        )
    wrong = ~((given >= 0) & (given <= np.finfo(np.float32).max))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"{name}[{row}] is {given[row]}; a weight is a finite number >= 0.")
    if not (given > 0).any():
        raise ValueError(f"{name} is zero for every row: at least one weight must be above zero.")
    if not _LEAST_WEIGHT <= given.max() <= 1.0 / _LEAST_WEIGHT:
        raise ValueError(
            f"the largest {name} is {given.max():g}; squares of such numbers leave float32. Divide the weights by their mean."
        )
    return given.astype(np.float32)


def check_random_state(random_state: Any) -> int:
    """Return a seed in [0, 2**64): the integer itself, a draw from a numpy generator, or fresh entropy for
    None.

    Examples
    --------
    >>> check_random_state(7)
    7
    """
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
    if (
        isinstance(random_state, int | np.integer)
        and not isinstance(random_state, bool)
        and 0 <= int(random_state) < 2**64
    ):
        return int(random_state)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(0, 2**64, dtype=np.uint64))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**64, dtype=np.uint64))
    kind = ValueError if isinstance(random_state, Integral) else TypeError
    raise kind(
        f"random_state is {short(random_state)}; give None, an integer in [0, 2**64), a numpy Generator or a RandomState."
    )


@dataclass(frozen=True)
class Interval:
    """Numbers of `kind` (int or float) from `low` to `high`; `closed` says which ends belong: both, left,
    right, neither.
    """

    kind: type[int] | type[float]
    low: float | None = None
    high: float | None = None
    closed: str = "both"

    def accepts(self, value: object) -> bool:
        if isinstance(value, bool | np.bool_) or not isinstance(
            value, Integral if self.kind is int else Real
        ):
            return False
        number: Any = value
        above = (
            self.low is None or number > self.low or (number == self.low and self.closed in ("both", "left"))
        )
        below = (
            self.high is None
            or number < self.high
            or (number == self.high and self.closed in ("both", "right"))
        )
        return above and below and (isinstance(value, Integral) or math.isfinite(number))

    def __str__(self) -> str:
        noun = "an integer" if self.kind is int else "a number"
        low = None if self.low is None else f"{'>=' if self.closed in ('both', 'left') else '>'} {self.low}"
        high = (
            None if self.high is None else f"{'<=' if self.closed in ('both', 'right') else '<'} {self.high}"
        )
        return " ".join([noun, " and ".join(end for end in (low, high) if end is not None)]).strip()


@dataclass(frozen=True)
class Choice:
    """One of a few strings."""

    options: tuple[str, ...]

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and value in self.options

    def __str__(self) -> str:
        return f"one of {', '.join(map(repr, self.options))}"


@dataclass(frozen=True)
class Instance:
    """An object of one of the given types, or anything with the given methods; `wording` describes it to a
    user.
    """

    wording: str
    types: tuple[type, ...] = ()
    methods: tuple[str, ...] = ()

    def accepts(self, value: object) -> bool:
        has_methods = bool(self.methods) and all(
            callable(getattr(value, method, None)) for method in self.methods
        )
        return isinstance(value, self.types) or has_methods

    def __str__(self) -> str:
        return self.wording


BOOLEAN = Instance("a bool", (bool, np.bool_))
CALLABLE = Instance("a callable", methods=("__call__",))
RANDOM_STATE = Instance("a numpy Generator or RandomState", (np.random.Generator, np.random.RandomState))

Constraint: TypeAlias = Interval | Choice | Instance | None
ConstraintTable: TypeAlias = Mapping[str, Sequence[Constraint]]


def check_parameters(estimator_name: str, params: Mapping[str, object], table: ConstraintTable) -> None:
    """Raise for the first parameter that meets none of its constraints; None among the constraints allows
    None.

    Examples
    --------
    >>> check_parameters("ExtremeClassifier", {"noise": "unifrom"}, {"noise": [Choice(("uniform", "frequency"))]})
    Traceback (most recent call last):
    ...
    ValueError: The 'noise' parameter of ExtremeClassifier must be one of 'uniform', 'frequency'. Got 'unifrom' instead. Did you
    mean 'uniform'?
    """
    for parameter, value in params.items():
        constraints = table[parameter]
        if any(value is None if c is None else c.accepts(value) for c in constraints):
            continue
        texts = [str(c) for c in constraints]
        wanted = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"
        options = [option for c in constraints if isinstance(c, Choice) for option in c.options]
        close = difflib.get_close_matches(value, options, n=1) if isinstance(value, str) else []
        hint = f" Did you mean {close[0]!r}?" if close else ""
        kinds = {int: Integral, float: Real}
        right_kind = any(
            isinstance(value, kinds[c.kind] if isinstance(c, Interval) else str)
            and not isinstance(value, bool)
            for c in constraints
            if isinstance(c, Interval | Choice)
        )
        kind = ValueError if right_kind else TypeError
        raise kind(
            f"The {parameter!r} parameter of {estimator_name} must be {wanted}. Got {short(value)} instead.{hint}"
        )
