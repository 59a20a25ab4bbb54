"""Where the windows of a stream lie."""

from __future__ import annotations

from dataclasses import dataclass

from guideloom._typing import Int64Array


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """Windows over the concatenation of shards.

    Parameters
    ----------
    window, stride, offset : int
        Elements of a window, from one window to the next, and before the first.
    starts : int64 array of shape (num_shards + 1,)
        First element of each shard, and their total.
    """

    window: int
    stride: int
    offset: int
    starts: Int64Array

    def __len__(self) -> int:
        """Return the number of whole windows."""
        room = int(self.starts[-1]) - self.offset - self.window
        return room // self.stride + 1 if room >= 0 else 0
