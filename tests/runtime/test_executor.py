"""Maps of a fit: their order, their progress, and fits whose maps run on copies, as on other machines."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from extremax import ExtremeClassifier, TextClassifier
from extremax.runtime.context import Context
from extremax.runtime.executor import Threads, current_executor, use_executor
from planted import around_means, short_texts
from same_models import assert_same_model


def _begin_powers(base):
    return lambda exponent: base**exponent


class Copies(Threads):
    """Three places, none of which sees what another writes: what is shared is copied for every task."""

    n_places = 3

    def __init__(self) -> None:
        self.begun = []

    def map(self, begin, shared, n_tasks, task, n_threads, check=lambda fraction: None):
        self.begun.append(begin.__name__)
        for i in range(n_tasks):
            check(0.0)
            yield copy.deepcopy(begin(*copy.deepcopy(shared))(*copy.deepcopy(task(i))))


@pytest.mark.parametrize("n_threads", [1, 3])
def test_results_come_in_the_order_of_tasks(n_threads) -> None:
    seen = []
    found = list(Threads().map(_begin_powers, (3,), 500, lambda i: (i,), n_threads, seen.append))
    assert found == [3**i for i in range(500)]
    assert seen[0] == 0.0
    assert seen[-1] == 1.0
    assert seen == sorted(seen)


def test_an_error_of_a_task_or_a_check_ends_the_map() -> None:
    with pytest.raises(ZeroDivisionError):
        list(Threads().map(_begin_powers, (0,), 2, lambda i: (2 - 3 * i,), 2))

    def press(fraction) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(Threads().map(_begin_powers, (2,), 1, lambda i: (2,), 1, press))


def test_an_executor_is_used_inside_its_block_alone() -> None:
    other = Copies()
    before = current_executor()
    with use_executor(other):
        assert current_executor() is other
        assert Context().executor is other
    assert Context().executor is before


@pytest.mark.invariance
@pytest.mark.parametrize("several", [False, True])
def test_dense_default_does_not_depend_on_the_executor(several) -> None:
    X, y = around_means(900, 40, 12, seed=1)
    labels = [[int(a), int(a + 1) % 40] for a in y] if several else y
    local = ExtremeClassifier("candidate_softmax", random_state=0).fit(X, labels)
    executor = Copies()
    with use_executor(executor):
        found = ExtremeClassifier("candidate_softmax", random_state=0, n_jobs=1).fit(X, labels)
    assert {"_begin_proposals", "_begin_training"} <= set(executor.begun)
    assert_same_model(found, local)


@pytest.mark.invariance
@pytest.mark.parametrize("several", [False, True])
def test_text_default_does_not_depend_on_the_executor(several) -> None:
    texts, y = short_texts(1500, 60)
    labels = [[a, (a + 1) % 60] for a in y] if several else y
    local = TextClassifier(ExtremeClassifier(random_state=0)).fit(texts, labels)
    executor = Copies()
    with use_executor(executor):
        found = TextClassifier(ExtremeClassifier(random_state=0, n_jobs=1)).fit(texts, labels)
    assert {"_begin_ngrams", "_begin_search", "_begin_linear"} <= set(executor.begun)
    theirs = local.features_.state().arrays
    for name, array in found.features_.state().arrays.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    assert_same_model(found, local)
