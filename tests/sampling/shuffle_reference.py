"""The shuffle, version 1, one number at a time in plain Python: what the compiled one is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice

U32 = 2**32
U64 = 2**64
GOLDEN = 0x9E3779B97F4A7C15
LONGEST_TABLE = 4096


def mix64(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % U64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % U64
    return z ^ (z >> 31)


def words(seed: int, epoch: int, tag: int) -> Iterator[int]:
    """Yield the 64-bit key words of a seed, an epoch and a tag, which is a length or marks a derived seed."""
    state = 0
    for part in (seed, epoch, tag):
        state = mix64(((state ^ part) + GOLDEN) % U64)
    for j in count(1):
        yield mix64((state + j * GOLDEN) % U64)


def derive(seed: int, epoch: int, g: int) -> int:
    return next(words(seed, epoch, 2**63 + g))


def shuffled_table(n: int, draws: Iterator[int]) -> list[int]:
    """Fisher-Yates from the top. The first ``2**32 % size`` fractions would favour some places, so they are redrawn."""
    table = list(range(n))
    for size in range(n, 1, -1):
        fraction = -1
        while fraction < U32 % size:
            place, fraction = divmod((next(draws) >> 32) * size, U32)
        table[size - 1], table[place] = table[place], table[size - 1]
    return table


def mix32(x: int, key: int) -> int:
    x = (x ^ key) * 0x7FEB352D % U32
    x ^= x >> 15
    return x * 0x846CA68B % U32


class Network:
    """A bijection of ``num_high * num_low`` values, made of steps that each add a hash of one half to the other."""

    def __init__(self, n: int, stream: Iterator[int], num_rounds: int = 5) -> None:
        bits = (n - 1).bit_length()
        self.low_bits = 32 if bits == 63 else bits // 2
        self.num_low = 1 << self.low_bits
        self.num_high = (n - 1) // self.num_low + 1
        self.keys = [divmod(word, U32) for word in islice(stream, num_rounds)]

    def high_step(self, low: int, key: int) -> int:
        return mix32(low, key) * self.num_high // U32

    def low_step(self, high: int, key: int) -> int:
        return mix32(high, key) * self.num_low // U32

    def encipher(self, value: int) -> int:
        high, low = divmod(value, self.num_low)
        for high_key, low_key in self.keys:
            high = (high + self.high_step(low, high_key)) % self.num_high
            low = (low + self.low_step(high, low_key)) % self.num_low
        return high * self.num_low + low

    def decipher(self, value: int) -> int:
        high, low = divmod(value, self.num_low)
        for high_key, low_key in reversed(self.keys):
            low = (low - self.low_step(high, low_key)) % self.num_low
            high = (high - self.high_step(low, high_key)) % self.num_high
        return high * self.num_low + low


class ReferencePermutation:
    """The permutation of ``range(n)`` for a seed and an epoch."""

    def __init__(self, n: int, seed: int, epoch: int = 0) -> None:
        self.n = n
        self._forward: Callable[[int], int]
        self._backward: Callable[[int], int]
        if n <= LONGEST_TABLE:
            table = shuffled_table(n, words(seed, epoch, n))
            self._forward, self._backward = table.__getitem__, table.index
        else:
            network = Network(n, words(seed, epoch, n))
            self._forward, self._backward = network.encipher, network.decipher

    def at(self, position: int) -> int:
        value = self._forward(position)
        while value >= self.n:
            value = self._forward(value)
        return value

    def find(self, index: int) -> int:
        value = self._backward(index)
        while value >= self.n:
            value = self._backward(value)
        return value
