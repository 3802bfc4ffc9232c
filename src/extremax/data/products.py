"""BLAS on one thread, so that matrix products can be spread over our own threads and do not depend on how many there are."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

_lock = threading.Lock()


def _forget_lock() -> None:
    # A child forked while another thread held the lock would wait for a thread that it does not have.
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread for the duration; a second caller waits until the first has left.

    The limit belongs to the whole process: where two uses overlapped, the first to leave would lift the limit of the other.
    Must not be nested.
    """
    with _lock, threadpool_limits(1, user_api="blas"):
        yield
