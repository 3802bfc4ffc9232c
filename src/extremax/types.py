"""Names for the array types that appear in every signature."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy import sparse

Float32: TypeAlias = NDArray[np.float32]
Float64: TypeAlias = NDArray[np.float64]
Int32: TypeAlias = NDArray[np.int32]
Int64: TypeAlias = NDArray[np.int64]
Bool: TypeAlias = NDArray[np.bool_]

# Rows of features as `validation.check_features` returns them: float32, C-ordered, in memory or
# memory-mapped, or a CSR matrix.
Features: TypeAlias = "Float32 | sparse.csr_matrix | sparse.csr_array"
