"""The three kinds of numpy arrays this package passes around."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

NO_CLIENTS: IntArray = np.empty(0, dtype=np.int64)
NO_CLIENTS.flags.writeable = False
