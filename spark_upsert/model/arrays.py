"""Names for what numpy arrays stand for where rows are spoken of: places, masks, signs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
"""Row numbers, or places in another array: they count from 0."""

Mask = npt.NDArray[np.bool_]
"""A mask of rows: for each row, whether something holds."""

Signs = npt.NDArray[np.int8]
"""How pairs compare: -1 where the first is the smaller, 0 where they are equal, +1 otherwise."""
