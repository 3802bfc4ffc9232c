"""Working memory that tasks lend from each other."""

from __future__ import annotations

import pytest

from extremax.runtime.scratch import Scratch

pytestmark = pytest.mark.small


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_piece_of_a_task_that_fails_is_not_used_again(error: type[BaseException]) -> None:
    scratch: Scratch[list[int]] = Scratch(list)

    def fail() -> None:
        with scratch.use() as piece:
            piece.append(1)
            raise error

    for _ in range(3):
        with pytest.raises(error):
            fail()
    assert scratch.all == []
    with scratch.use() as piece:
        assert piece == []


def test_tasks_at_the_same_time_have_pieces_of_their_own() -> None:
    scratch: Scratch[list[int]] = Scratch(list)
    with scratch.use() as first, scratch.use() as second:
        assert first is not second
    with scratch.use() as again:
        assert any(again is piece for piece in (first, second))
    assert len(scratch.all) == 2
