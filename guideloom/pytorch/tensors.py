"""Arrays as tensors, without a copy."""

from __future__ import annotations

from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError(
        "guideloom.pytorch needs PyTorch: pip install torch (for a CPU build add the index that pytorch.org names). "
        "Without PyTorch, guideloom.Loader gives NumPy batches"
    ) from error

import numpy as np

from guideloom._typing import AnyArray


def allocate_pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray:
    """Return an array in page-locked memory, of torch's own pool; its base is the tensor."""
    array: AnyArray = torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True).numpy()
    return array


def as_tensor(array: AnyArray) -> torch.Tensor:
    """Return the tensor over an array, for a pinned one in the storage that was allocated.

    By that storage torch's pool knows which memory an asynchronous copy, of a slice perhaps, still reads.
    """
    return array.base if isinstance(array.base, torch.Tensor) else torch.from_numpy(array)
