"""Comparison of fitted estimators, bit for bit."""

from __future__ import annotations

import numpy as np


def assert_same_model(found, local):
    """Compare weights, training state, calibration and choices."""
    ours, theirs = found._inner, local._inner
    parts, expected = ours.model_.components(), theirs.model_.components()
    assert parts.keys() == expected.keys()
    arrays, known = (dict(each._fitted.state.state().arrays) for each in (ours, theirs))
    for name, part in expected.items():
        arrays |= {f"{name}.{key}": array for key, array in parts[name].arrays.items()}
        known |= {f"{name}.{key}": array for key, array in part.arrays.items()}
        assert parts[name].header == part.header, name
    assert arrays.keys() == known.keys()
    for name, array in known.items():
        assert arrays[name].dtype == array.dtype, name
        assert arrays[name].tobytes() == np.ascontiguousarray(array).tobytes(), name
    assert list(ours.classes_) == list(theirs.classes_)
    assert ours.choices_ == theirs.choices_
    histories = [
        [{name: value for name, value in record.items() if name != "seconds"} for record in each.history_]
        for each in (ours, theirs)
    ]
    assert repr(histories[0]) == repr(histories[1])
