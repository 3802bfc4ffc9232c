"""Estimators on a Dask cluster: fits larger than one machine, with the results of one machine.

`DaskExtremeClassifier` takes Dask arrays, bags of sparse blocks or a folder of files.  It needs the extra
``dask``: ``pip install 'extremax[dask]'``.
"""

from __future__ import annotations

from extremax.dask.classifier import DaskExtremeClassifier

__all__ = ["DaskExtremeClassifier"]
