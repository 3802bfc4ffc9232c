"""Parametrisations with fewer cases than every combination of the values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def pairwise(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrise so that any two values of two axes meet in a case."""
    values = [list(axis) for axis in axes.values()]
    cases = list(itertools.product(*(range(len(axis)) for axis in values)))
    pairs = {case: set(itertools.combinations(enumerate(case), 2)) for case in cases}
    missing, chosen = set().union(*pairs.values()), []
    while missing:
        best = max(cases, key=lambda case: len(pairs[case] & missing))
        missing -= pairs[best]
        chosen.append(best)
    return pytest.mark.parametrize(
        tuple(axes), [tuple(axis[i] for axis, i in zip(values, case, strict=True)) for case in sorted(chosen)]
    )


def in_turn(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrise so that each value of each axis is in a case; the shorter axes begin again."""
    values = [list(axis) for axis in axes.values()]
    longest = max(map(len, values))
    return pytest.mark.parametrize(
        tuple(axes),
        list(zip(*(itertools.islice(itertools.cycle(axis), longest) for axis in values), strict=True)),
    )
