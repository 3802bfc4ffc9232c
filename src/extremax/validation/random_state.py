"""Seeds: an integer, a numpy generator or nothing, as one integer."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from extremax.validation.wording import short


def check_random_state(random_state: Any) -> int:
    """Return a seed in [0, 2**64).

    That is the integer itself, a draw from a numpy generator, or fresh entropy for None.

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
        f"random_state is {short(random_state)}; give None, an integer in [0, 2**64), a numpy Generator or a"
        " RandomState."
    )
