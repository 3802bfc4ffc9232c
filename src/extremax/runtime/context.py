"""Seed, threads, progress and memory: needed by every step of a fit."""

from __future__ import annotations

from dataclasses import dataclass, field

from extremax.runtime.executor import Executor, current_executor
from extremax.runtime.interrupts import Interrupts
from extremax.runtime.progress import ProgressLine


@dataclass(frozen=True)
class Context:
    """Seed, threads, terminal, memory and interrupts of one call.

    Attributes
    ----------
    seed
        Seed of all random draws.
    n_threads
        Threads; no result depends on it.
    progress
        The terminal.
    memory_limit
        Bytes that the call may need; None means the free memory of the machine.
    interrupts
        Ctrl-C, looked at between minibatches.
    executor
        Where heavy maps run; no result depends on it.
    """

    seed: int = 0
    n_threads: int = 1
    progress: ProgressLine = field(default_factory=lambda: ProgressLine(0))
    memory_limit: int | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)
    executor: Executor = field(default_factory=current_executor)
