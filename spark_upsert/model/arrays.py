"""What numpy arrays mean where rows are spoken of."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
"""Row numbers, or places in another array: they count from 0."""

Mask = npt.NDArray[np.bool_]
"""Which of several rows something holds for: one value each."""
