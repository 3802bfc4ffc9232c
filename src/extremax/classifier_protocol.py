"""What `ExtremeClassifier` and `TextClassifier` have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import ArrayLike, NDArray

from extremax.examples import Examples
from extremax.model import Model
from extremax.solvers.loop import Record
from extremax.types import Float32, Float64


class Classifier(Protocol):
    """A fitted classifier; `X` are features or, for a `TextClassifier`, texts."""

    @property
    def classes_(self) -> NDArray[Any]: ...
    @property
    def model_(self) -> Model: ...
    @property
    def choices_(self) -> dict[str, Any]: ...
    @property
    def history_(self) -> list[Record]: ...

    def predict(self, X: Any) -> Any: ...

    def predict_topk(
        self, X: Any, k: int = 5, *, search: str = "exact", beam_width: int | None = None
    ) -> tuple[NDArray[Any], Float32]: ...

    def predict_proba(self, X: Any) -> Float64: ...

    def predict_labels(self, X: Any, threshold: float | None = None) -> list[list[Any]]: ...

    def predict_label_proba(self, X: Any) -> Float64: ...

    def log_likelihood(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float: ...

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float: ...

    def add_classes(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        classes: ArrayLike | None = None,
    ) -> Any: ...

    def remove_classes(self, labels: Any) -> Any: ...

    def merge_classes(self, names: Mapping[Any, Any]) -> Any: ...

    def save(self, path: str | os.PathLike[str]) -> None: ...

    def _evaluation_rows(self, X: Any, y: Any) -> tuple[Model, Examples, int]:
        """Return the model, the labelled rows (class -1 for unknown labels) and the threads to use."""
        ...

    def _replace_model(self, model: Model) -> Any:
        """Put another model, such as a calibrated one, in the place of the fitted one."""
        ...
