"""Array and path types that several layers share, and what counts as an integer."""

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


def as_int(value: object, name: str) -> int:
    """Return an argument as a plain int, or raise ``TypeError`` if it is no integer; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    return int(value)
