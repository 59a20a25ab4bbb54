"""The order of samples in an epoch: position to sample."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from guideloom._typing import Int64Array, as_int
from guideloom.sampling.permutation import Permutation

Shuffle: TypeAlias = bool | Literal["global"] | None


def shuffle_mode(shuffle: Shuffle) -> Literal["global"] | None:
    """Return the mode that `shuffle` asks for.

    Raises
    ------
    ValueError
        If there is no such mode.
    """
    if shuffle is True or shuffle == "global":
        return "global"
    if shuffle is None or shuffle is False:
        return None
    raise ValueError(f'shuffle must be True, False or "global", not {shuffle!r}')


class Order:
    """The order of every epoch of a dataset.

    Parameters
    ----------
    length : int
        Samples in the dataset.
    shuffle : bool, "global" or None
        ``True`` and ``"global"`` mean a seeded permutation of all samples, another one each epoch.
    seed : int, default 0
        Unsigned 64-bit.
    """

    def __init__(self, length: int, shuffle: Shuffle = None, seed: int = 0) -> None:
        self.length = length
        self.mode = shuffle_mode(shuffle)
        self.seed = as_int(seed, "seed")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be in 0 .. 2**64 - 1, not {seed}")
        self._of_epoch: tuple[int, Permutation] | None = None

    def samples(self, epoch: int, positions: Int64Array) -> Int64Array:
        """Return the sample at each position of an epoch.

        Parameters
        ----------
        epoch : int
            Unsigned 64-bit.
        positions : int64 array of shape (n,)
            Each in ``0 .. length - 1``.

        Returns
        -------
        int64 array of shape (n,)
        """
        if self.mode is None or not len(positions):
            return np.array(positions, np.int64)
        if self._of_epoch is None or self._of_epoch[0] != epoch:
            self._of_epoch = epoch, Permutation(self.length, self.seed, epoch)
        return self._of_epoch[1].at(positions)
