"""Array and path types that several layers share."""

import os
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]
UInt32Array: TypeAlias = npt.NDArray[np.uint32]
AnyArray: TypeAlias = npt.NDArray[Any]
PathLike: TypeAlias = str | os.PathLike[str]
