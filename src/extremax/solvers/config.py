"""The resolved configuration of one fit: a solver with nothing left open, and all tuned numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import msgspec

from extremax.examples import FeatureLayout
from extremax.params import check_values
from extremax.solvers.registry import Solver, choose_solver, find_solver, is_small, restore_solver
from extremax.storage import checks
from extremax.tree.noise import Noise
from extremax.tuned import DEFAULTS, Defaults, ProblemSize

if TYPE_CHECKING:
    from extremax.runtime.context import Context
    from extremax.solvers.base import Trainer


@dataclass(frozen=True)
class FitConfig:
    """The resolved solver of one fit, and the tuned numbers of every component."""

    solver: Any  # a `Solver`, whose class knows its parameters
    n_epochs: int
    layout: FeatureLayout
    max_model_bytes: int | None = None
    numbers: Defaults = field(default_factory=Defaults)
    streaming: bool = False  # rows arrive in parts, in calls of partial_fit
    renews_whitening: bool = False  # ... and the whitening is made anew from all of them
    uses_folds: bool = False  # too few rows to hold some out: folds choose the learning rate, and calibrate

    @property
    def decay_epochs(self) -> int | None:
        """Epochs over which the learning rate of a whole fit falls to zero; None where it does not."""
        return self.n_epochs if self.solver.decays else None

    def make_trainer(self, context: Context) -> Trainer:
        """Return the trainer for this configuration."""
        trainer: Trainer = self.solver.make_trainer(self, context)
        return trainer

    def to_dict(self) -> dict[str, Any]:
        """Return the config as JSON can hold it."""
        plain = {name: vars(self)[name] for name in _PLAIN}
        columns = {"n_dense": self.layout.n_dense, "column_groups": list(self.layout.groups)}
        return {**plain, **columns, "solver": self.solver.header(), "numbers": asdict(self.numbers)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], n_columns: int, noise: Noise | None = None) -> Self:
        """Restore a config; numbers that an earlier version did not have get today's values."""
        solver = restore_solver(content["solver"], noise)
        solver.check()
        stored = checks.read(content, _Stored)
        check_values("the model", {"n_epochs": stored.n_epochs})
        plain = msgspec.structs.asdict(stored)
        layout = FeatureLayout(n_columns, stored.n_dense, stored.column_groups)
        numbers = checks.read(_earlier_numbers(content.get("numbers", {})), Defaults)
        return cls(solver, layout=layout, numbers=numbers, **{n: plain[n] for n in _PLAIN})


class _Stored(msgspec.Struct):
    """A config in a model folder, without its solver and its numbers."""

    n_epochs: int
    max_model_bytes: int | None = None
    streaming: bool = False
    renews_whitening: bool = False
    n_dense: int = 0
    column_groups: tuple[int, ...] = ()


_PLAIN = ("n_epochs", "max_model_bytes", "streaming", "renews_whitening")


def _earlier_numbers(content: Any) -> Any:
    """Return stored numbers; where they do not say so, rows of dense weights all had one temperature."""
    if not isinstance(content, Mapping) or not isinstance(content.get("calibration", {}), Mapping):
        return content  # refused where it is read
    calibration = {"max_tempered_classes": 0, **content.get("calibration", {})}
    return {**content, "calibration": calibration}


def resolve(  # noqa: PLR0913 (what a fit depends on)
    solver: str | Solver,
    problem: ProblemSize,
    *,
    layout: FeatureLayout | None = None,
    n_epochs: int | None = None,
    max_model_bytes: int | None = None,
    streaming: bool = False,
    n_seen: int | None = None,
    numbers: Defaults = DEFAULTS,
) -> FitConfig:
    """Fill in the open parameters of a solver from the size of the problem.

    `streaming` is for rows that arrive in parts; `n_seen` is the number of classes in the first part.
    """
    layout = FeatureLayout(problem.n_features) if layout is None else layout
    is_open = isinstance(solver, str) and solver == "auto"
    chosen = (
        choose_solver(problem, layout, numbers, streaming=streaming, n_seen=n_seen)
        if is_open
        else find_solver(solver)
    )
    chosen.refuse(layout)
    found = chosen.resolved(problem, numbers)
    return FitConfig(
        found,
        found.default_epochs(problem, layout, numbers, streaming=streaming) if n_epochs is None else n_epochs,
        layout,
        max_model_bytes,
        numbers,
        streaming,
        renews_whitening=streaming and found.renews_whitening and (is_open or found.decays),
        uses_folds=is_open and not streaming and found.uses_folds and is_small(problem, numbers),
    )


def resume(
    begun: FitConfig,
    solver: str | Solver,
    *,
    n_epochs: int | None = None,
    max_model_bytes: int | None = None,
    is_whitened: bool = False,
) -> FitConfig:
    """Return the config with which a fit goes on.

    What the first call fixes, and what parameters leave open, stays as it was begun; but where a stream got
    its whitening on the way, the learning rate is that of whitened rows.
    """
    given = None if isinstance(solver, str) else solver
    return replace(
        begun,
        solver=begun.solver.resumed(given, begun.numbers, is_whitened=is_whitened),
        n_epochs=begun.n_epochs if n_epochs is None else n_epochs,
        max_model_bytes=max_model_bytes,
    )
