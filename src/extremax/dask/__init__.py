"""Estimators on a Dask cluster: rows from its workers, and the models of one machine.

`DaskExtremeClassifier` and `DaskTextClassifier` take Dask arrays, data frames and bags, or a folder of files.
They need the extra ``dask``: ``pip install 'extremax[dask]'``.
"""

from __future__ import annotations

from extremax.dask.classifier import DaskExtremeClassifier, DaskTextClassifier

__all__ = ["DaskExtremeClassifier", "DaskTextClassifier"]
