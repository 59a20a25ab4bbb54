"""The shuffle: any part of a seeded permutation, computed without the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from guideloom._speedups.permutation import PermutationKernel
from guideloom._speedups.permutation import derive as _derive
from guideloom._typing import Int64Array, as_int

SHUFFLE_VERSION = 1
"""Version of the algorithm. A version never changes its orders; another order is another version."""

_Integer: TypeAlias = int | np.integer[Any]
_Integers: TypeAlias = npt.NDArray[np.integer[Any]] | Sequence[_Integer]

_END_LENGTH = 2**63
_END_WORD = 2**64


@dataclass(frozen=True, slots=True, init=False)
class Permutation:
    """A seeded permutation of ``range(n)``, computed an index at a time.

    It takes about a microsecond to make (ten where n is near 4096), at most 16 KiB of memory whatever `n` is, and a few
    nanoseconds an index in long calls, which release the GIL. Equal arguments give the same order on every machine, in
    every release. It is immutable, hashable and picklable, and threads may share it.

    Parameters
    ----------
    n : int
        Length, ``1 <= n < 2**63``. Another length is another, unrelated order.
    seed : int
        Unsigned 64-bit.
    epoch : int, default 0
        Unsigned 64-bit; the orders of two epochs are unrelated. (``seed + 1`` is not the next epoch.)

    Raises
    ------
    TypeError
        If an argument is not an integer; a bool is not one.
    ValueError
        If one is out of its range.

    Notes
    -----
    Up to n = 4096 this is a Fisher-Yates shuffle [1]_ with unbiased draws [2]_, kept as a table of four bytes an entry,
    the inverse included. Longer ones are a network of ten half-rounds on the two halves of a position, one a number
    modulo A and the other modulo 2**k, with A * 2**k next to n. That is a bijection of A * 2**k values; a result that
    is not below n goes through it again until it is [3]_. The keys are words of SplitMix64 [4]_ of seed, epoch and n.

    No statistical test that was tried tells such an order from a random one. It is not cryptographic, though: who has
    seen enough of it can predict the rest.

    References
    ----------
    .. [1] Durstenfeld, "Algorithm 235: Random Permutation", 1964.
    .. [2] Lemire, "Fast Random Integer Generation in an Interval", 2019.
    .. [3] Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002.
    .. [4] Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014.

    Examples
    --------
    >>> order = Permutation(1_000_000, seed=1234, epoch=8)
    >>> order.span(0, 4)
    array([948813, 683000, 173652, 627969])
    >>> order.at(2)
    173652
    >>> order.find(173652)
    2
    """

    n: int
    seed: int
    epoch: int
    _kernel: PermutationKernel = field(repr=False, compare=False)

    def __init__(self, n: _Integer, seed: _Integer, epoch: _Integer = 0) -> None:
        length = _in_range(n, "n", 1, _END_LENGTH)
        words = _in_range(seed, "seed", 0, _END_WORD), _in_range(epoch, "epoch", 0, _END_WORD)
        object.__setattr__(self, "n", length)
        object.__setattr__(self, "seed", words[0])
        object.__setattr__(self, "epoch", words[1])
        object.__setattr__(self, "_kernel", PermutationKernel(length, *words))

    def __reduce__(self) -> tuple[type[Permutation], tuple[int, int, int]]:
        return Permutation, (self.n, self.seed, self.epoch)

    def __len__(self) -> int:
        return self.n

    @overload
    def at(self, positions: _Integer) -> int: ...
    @overload
    def at(self, positions: _Integers) -> Int64Array: ...
    def at(self, positions: _Integer | _Integers) -> int | Int64Array:
        """Return the indices at some positions.

        Parameters
        ----------
        positions : int, or array or sequence of int
            Each in ``0 .. n - 1``, in any order, repeated or not.

        Returns
        -------
        int, or int64 array of the shape of `positions`

        Raises
        ------
        IndexError
            If a position is out of range; negative ones do not count from the end.
        TypeError
            If a position is not an integer; a bool is not one.
        """
        if isinstance(positions, (int, np.integer)):
            return self._kernel.index_at(self._inside(positions, "position"))
        return self._map(positions, "position", self._kernel.at)

    @overload
    def find(self, indices: _Integer) -> int: ...
    @overload
    def find(self, indices: _Integers) -> Int64Array: ...
    def find(self, indices: _Integer | _Integers) -> int | Int64Array:
        """Return the positions of some indices, the inverse of `at`.

        Parameters
        ----------
        indices : int, or array or sequence of int
            Each in ``0 .. n - 1``, in any order, repeated or not.

        Returns
        -------
        int, or int64 array of the shape of `indices`

        Raises
        ------
        IndexError
            If an index is out of range; negative ones do not count from the end.
        TypeError
            If an index is not an integer; a bool is not one.
        """
        if isinstance(indices, (int, np.integer)):
            return self._kernel.position_of(self._inside(indices, "index"))
        return self._map(indices, "index", self._kernel.find)

    def span(self, start: _Integer, stop: _Integer) -> Int64Array:
        """Return the indices at positions ``start .. stop - 1``.

        Parameters
        ----------
        start, stop : int
            Half-open span of positions, ``0 <= start <= stop <= n``.

        Returns
        -------
        int64 array of shape (stop - start,)

        Raises
        ------
        ValueError
            If the span does not lie in ``0 .. n``.
        TypeError
            If a bound is not an integer; a bool is not one.
        """
        first, end = as_int(start, "start"), as_int(stop, "stop")
        if not 0 <= first <= end <= self.n:
            raise ValueError(f"span {first} .. {end} does not lie in 0 .. {self.n}")
        out = np.empty(end - first, dtype=np.int64)
        self._kernel.span(first, out)
        return out

    def _inside(self, value: object, noun: str) -> int:
        number = as_int(value, noun)
        if not 0 <= number < self.n:
            raise IndexError(f"{noun} {number} is not in 0 .. {self.n - 1}")
        return number

    def _map(self, values: _Integers, noun: str, fill: Callable[[Int64Array, Int64Array], None]) -> Int64Array:
        if not isinstance(values, np.ndarray):
            if not isinstance(values, Sequence):
                raise TypeError(f"{noun} must be an int or an array of them, not {type(values).__name__}")
            values = np.array([self._inside(value, noun) for value in values], dtype=np.int64)
        elif values.dtype.kind not in "iu":
            raise TypeError(f"{noun} must be an int or an array of them, not an array of {values.dtype}")
        elif values.dtype.kind == "u" and values.size:
            self._inside(values.max(), noun)  # before it wraps
        out = np.empty(values.shape, dtype=np.int64)
        fill(np.ascontiguousarray(values, dtype=np.int64).reshape(-1), out.reshape(-1))
        return out


def derive(seed: _Integer, epoch: _Integer, g: _Integer) -> int:
    """Return a seed for the `g`-th further permutation under one seed and epoch.

    Block shuffles (a group each) and mixtures (a member each) need many permutations; these seeds are unrelated to each
    other and to the keys of ``Permutation(n, seed, epoch)`` for any `n`.

    Parameters
    ----------
    seed, epoch : int
        Unsigned 64-bit.
    g : int
        Number of the permutation, ``0 <= g < 2**63``.

    Returns
    -------
    int
        Unsigned 64-bit.

    Raises
    ------
    TypeError
        If an argument is not an integer; a bool is not one.
    ValueError
        If one is out of its range.
    """
    return _derive(
        _in_range(seed, "seed", 0, _END_WORD),
        _in_range(epoch, "epoch", 0, _END_WORD),
        _in_range(g, "g", 0, _END_LENGTH),
    )


def _in_range(value: object, name: str, start: int, stop: int) -> int:
    number = as_int(value, name)
    if not start <= number < stop:
        raise ValueError(f"{name} is {number}, not in {start} .. {stop - 1}")
    return number
