"""Constraints on parameters: declared in tables, checked and worded by one routine.

Importing this module loads neither numpy nor scipy: the command line reads tables of constraints for help.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pkgutil import resolve_name
from typing import Any, TypeAlias

from extremax.validation.wording import short


@dataclass(frozen=True)
class Interval:
    """Numbers of `kind` (int or float) from `low` to `high`.

    `closed` names the ends that belong to the interval: "both", "left", "right" or "neither".
    """

    kind: type[int] | type[float]
    low: float | None = None
    high: float | None = None
    closed: str = "both"

    def accepts(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral if self.kind is int else Real):
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
    """An object of one of some types, or with all of some methods.

    Attributes
    ----------
    wording
        Description for error messages.
    types
        Types, or their places as ``"module:name"``; a module is imported when a value is checked.
    methods
        Names of methods.
    """

    wording: str
    types: tuple[type | str, ...] = ()
    methods: tuple[str, ...] = ()

    def accepts(self, value: object) -> bool:
        has_methods = bool(self.methods) and all(
            callable(getattr(value, method, None)) for method in self.methods
        )
        types = (resolve_name(place) if isinstance(place, str) else place for place in self.types)
        return has_methods or any(isinstance(value, kind) for kind in types)

    def __str__(self) -> str:
        return self.wording


BOOLEAN = Instance("a bool", (bool, "numpy:bool_"))
RANDOM_STATE = Instance(
    "a numpy Generator or RandomState", ("numpy.random:Generator", "numpy.random:RandomState")
)

Constraint: TypeAlias = Interval | Choice | Instance | None
ConstraintTable: TypeAlias = Mapping[str, Sequence[Constraint]]


def check_parameters(estimator_name: str, params: Mapping[str, object], table: ConstraintTable) -> None:
    """Raise for the first parameter that meets none of its constraints.

    None among the constraints of a parameter allows None.

    Examples
    --------
    >>> table = {"noise": [Choice(("uniform", "frequency"))]}
    >>> check_parameters("ExtremeClassifier", {"noise": "unifrom"}, table)
    Traceback (most recent call last):
    ...
    ValueError: The 'noise' parameter of ExtremeClassifier must be one of 'uniform', 'frequency'. Got
    'unifrom' instead. Did you mean 'uniform'?
    """
    for parameter, value in params.items():
        constraints = table[parameter]
        if not any(value is None if c is None else c.accepts(value) for c in constraints):
            raise _error(estimator_name, parameter, value, constraints)


def _error(
    estimator_name: str, parameter: str, value: object, constraints: Sequence[Constraint]
) -> ValueError | TypeError:
    texts = [str(c) for c in constraints]
    wanted = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"
    options = [option for c in constraints if isinstance(c, Choice) for option in c.options]
    close = difflib.get_close_matches(value, options, n=1) if isinstance(value, str) else []
    hint = f" Did you mean {close[0]!r}?" if close else ""
    kinds = {int: Integral, float: Real}
    right_kind = any(
        isinstance(value, kinds[c.kind] if isinstance(c, Interval) else str) and not isinstance(value, bool)
        for c in constraints
        if isinstance(c, Interval | Choice)
    )
    kind = ValueError if right_kind else TypeError
    return kind(
        f"The {parameter!r} parameter of {estimator_name} must be {wanted}. Got {short(value)} instead.{hint}"
    )
