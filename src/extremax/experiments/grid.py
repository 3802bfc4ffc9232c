"""A search that moves from value to value of a grid, and beyond its ends where the best lies there.

The first trials vary the first parameter alone, every second value from its middle outwards, with every other
parameter at its middle. Each later trial is the untried neighbour of the best trial so far: one value up or
down in one parameter, or another choice of one that is no number. Where the best lies at the end of a list of
numbers, the list is extended by one value, up to a bound. When all neighbours of the best are tried, those of
the second best follow, and so on. The search is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Space: TypeAlias = Mapping[str, Sequence[Any]]
Values: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """Lists of values, each with the values that may be added at its ends.

    Attributes
    ----------
    space
        Values by parameter.
    axes
        The same, extended at both ends of lists of positive numbers.
    n_added
        Values added at the lower end of each list.
    """

    space: Space
    axes: Space
    n_added: Mapping[str, int]

    @classmethod
    def of(cls, space: Space, widen: int) -> Grid:
        """Return the grid of some lists, which may grow by `widen` values at each end.

        Examples
        --------
        >>> Grid.of({"learning_rate": [0.01, 0.03]}, 2).axes
        {'learning_rate': [0.001, 0.003, 0.01, 0.03, 0.1, 0.3]}
        """
        axes, n_added = {}, {}
        for name, values in space.items():
            more = widen if _is_numeric(values) else 0
            axes[name] = [*_beyond(values[0], -more), *values, *_beyond(values[-1], more)]
            n_added[name] = more
        return cls(space, axes, n_added)

    def widened(self, tried: Sequence[Values]) -> dict[str, list[Any]]:
        """Return the values that were tried beyond the ends of the given lists, by parameter."""
        out = {}
        for name, values in self.space.items():
            found = sorted({values_tried[name] for values_tried in tried} - set(values), key=str)
            if found:
                out[name] = sorted(found)
        return out

    def at_end(self, best: Values) -> list[str]:
        """Return the parameters whose best value is the first or last that may be tried."""
        return [
            name
            for name, values in self.axes.items()
            if _is_numeric(values) and best[name] in (values[0], values[-1])
        ]

    def next_trial(self, tried: Sequence[tuple[Values, float]]) -> Values | None:
        """Return the next combination to try after those with their scores; None if all are tried."""
        known = [values for values, _ in tried]
        for values in self._first():
            if values not in known:
                return values
        # of equal scores the larger values come first: too small a rate has not changed anything yet
        order = sorted(tried, key=lambda trial: (trial[1], self._places(trial[0])), reverse=True)
        for values, _ in order:
            for neighbour in self._neighbours(values):
                if neighbour not in known:
                    return neighbour
        return None

    def _first(self) -> list[Values]:
        """Return the trials that vary the first parameter alone."""
        middle = {name: values[(len(values) - 1) // 2] for name, values in self.space.items()}
        name, values = next(iter(self.space.items()))
        centre = (len(values) - 1) // 2
        # every second value: neighbours of the best follow anyway
        order = sorted(range(len(values)), key=lambda i: (abs(i - centre), -i))
        return [{**middle, name: values[i]} for i in order if (i - centre) % 2 == 0]

    def _places(self, values: Values) -> list[int]:
        return [axis.index(values[name]) for name, axis in self.axes.items()]

    def _neighbours(self, values: Values) -> list[Values]:
        """Return the neighbours: of the first parameter, other choices, then of the other numbers."""
        (first, _), *others = self.axes.items()
        choices = [name for name, axis in others if not _is_numeric(axis)]
        numbers = [name for name, axis in others if _is_numeric(axis)]
        found = [self._moved(values, first, step) for step in (1, -1)]
        found += [{**values, name: other} for name in choices for other in self.axes[name]]
        found += [self._moved(values, name, step) for step in (1, -1) for name in numbers]
        return [neighbour for neighbour in found if neighbour is not None]

    def _moved(self, values: Values, name: str, step: int) -> Values | None:
        axis = self.axes[name]
        place = axis.index(values[name]) + step
        return {**values, name: axis[place]} if 0 <= place < len(axis) else None


def _is_numeric(values: Sequence[Any]) -> bool:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return len(numbers) == len(values) and all(value > 0 for value in numbers)


def _beyond(value: Any, n_steps: int) -> list[Any]:
    """Return the next values of 1, 3, 10, 30, ... above or, for a negative number of steps, below a value."""
    out: list[Any] = []
    for _ in range(abs(n_steps)):
        before = out[-1] if out else value
        out.append(_next(before) if n_steps > 0 else _next_below(before))
    return out if n_steps > 0 else out[::-1]


def _next(value: float) -> float:
    power = math.floor(math.log10(value) + 1e-9)
    return float(f"{3 if value < 2.9 * 10.0**power else 10}e{power}")


def _next_below(value: float) -> float:
    power = math.floor(math.log10(value) + 1e-9)
    return float(f"1e{power}" if value > 1.1 * 10.0**power else f"3e{power - 1}")
