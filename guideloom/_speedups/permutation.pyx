"""The shuffle, version 1: a keyed permutation of ``range(n)``, computed an index at a time.

Up to n = 4096 it is an exact table, above it a network of ten half-rounds over A * 2**k values, A * 2**k next to n.
`guideloom.sampling.permutation` is its face, and checks the arguments.
"""

from libc.stdint cimport UINT32_MAX, int64_t, uint16_t, uint32_t, uint64_t

cimport cython

import numpy as np

cdef extern from "permutation_kernel.h" nogil:
    void guideloom_encipher(uint32_t *high, uint32_t *low, size_t count, uint32_t a, uint32_t k, const uint32_t *keys)
    void guideloom_decipher(uint32_t *high, uint32_t *low, size_t count, uint32_t a, uint32_t k, const uint32_t *keys)

cdef enum:
    SMALL = 4096  # the longest table
    BLOCK = 256  # values in flight: two halves of 1 KiB stay in the first cache
    HELD = 1024  # up to here, a few microseconds, keep the GIL: a busy thread may return it only after milliseconds

cdef uint64_t GAMMA = 0x9E3779B97F4A7C15ULL


cdef inline uint64_t mix64(uint64_t z) noexcept nogil:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014)."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL
    return z ^ (z >> 31)


cdef inline uint64_t state(uint64_t seed, uint64_t epoch, uint64_t tag) noexcept nogil:
    """Absorb the three one after the other, so that none can stand in for another."""
    return mix64((mix64((mix64(seed + GAMMA) ^ epoch) + GAMMA) ^ tag) + GAMMA)


cdef inline uint64_t word(uint64_t stream, uint64_t j) noexcept nogil:
    return mix64(stream + (j + 1) * GAMMA)


def derive(uint64_t seed, uint64_t epoch, uint64_t g):
    """Return a seed for the `g`-th further permutation, ``g < 2**63``; its tag is none that a length can have."""
    return word(state(seed, epoch, (1ULL << 63) + g), 0)


@cython.final
@cython.auto_pickle(False)
cdef class PermutationKernel:
    """The permutation of ``range(n)`` under a seed and an epoch. It never changes, so threads may share it."""

    def __cinit__(self, int64_t n, uint64_t seed, uint64_t epoch):
        if n < 1:
            raise ValueError(f"n is {n}, not at least 1")
        self.n = <uint64_t> n
        if n <= SMALL:
            self.build_tables(state(seed, epoch, self.n))
        else:
            self.build_network(state(seed, epoch, self.n))

    cdef int build_tables(self, uint64_t stream) except -1:
        """Fisher-Yates (Durstenfeld 1964) with unbiased bounded draws (Lemire 2019)."""
        cdef uint16_t[:, ::1] tables = np.empty((2, self.n), dtype=np.uint16)
        cdef Py_ssize_t n = <Py_ssize_t> self.n
        cdef Py_ssize_t i, other
        cdef uint32_t bound
        cdef uint64_t draw, j = 0
        for i in range(n):
            tables[0, i] = <uint16_t> i
        for i in range(n - 1, 0, -1):
            bound = <uint32_t> i + 1
            while True:
                draw = (word(stream, j) >> 32) * bound
                j += 1
                # The bias is below 2**32 % bound, so below bound: the division is seldom needed.
                if <uint32_t> draw >= bound or <uint32_t> draw >= (<uint32_t> -bound) % bound:
                    break
            other = <Py_ssize_t> (draw >> 32)
            tables[0, i], tables[0, other] = tables[0, other], tables[0, i]
        for i in range(n):
            tables[1, tables[0, i]] = <uint16_t> i
        self.tables = tables
        return 0

    cdef void build_network(self, uint64_t stream) noexcept:
        """Choose A and k, and cut words of the stream into round keys."""
        cdef uint64_t last = self.n - 1
        cdef uint64_t pair
        cdef uint32_t bits = 0
        cdef Py_ssize_t r
        while last >> bits:
            bits += 1
        self.k = 32 if bits == 63 else bits // 2
        self.a = <uint32_t> ((last >> self.k) + 1)
        for r in range(5):
            pair = word(stream, <uint64_t> r)
            self.keys[2 * r] = <uint32_t> (pair >> 32)
            self.keys[2 * r + 1] = <uint32_t> pair

    cdef uint64_t map_one(self, uint64_t value, bint inverse) noexcept nogil:
        """Map one value: look it up, or walk its cycle until it is in range (Black and Rogaway 2002)."""
        cdef uint32_t high, low
        if self.n <= SMALL:
            return self.tables[inverse, <Py_ssize_t> value]
        while True:
            high = <uint32_t> (value >> self.k)
            low = <uint32_t> value & (UINT32_MAX >> (32 - self.k))
            if inverse:
                guideloom_decipher(&high, &low, 1, self.a, self.k, self.keys)
            else:
                guideloom_encipher(&high, &low, 1, self.a, self.k, self.keys)
            value = (<uint64_t> high << self.k) | low
            if value < self.n:
                return value

    cdef int map_all(self, int64_t[::1] values, bint inverse) except -1 nogil:
        """Map values of ``0 .. n - 1`` in place."""
        cdef uint32_t[BLOCK] high
        cdef uint32_t[BLOCK] low
        cdef uint64_t last = self.n - 1
        cdef uint64_t value, outside
        cdef uint32_t k = self.k
        cdef Py_ssize_t base = 0
        cdef Py_ssize_t count, i
        if self.n <= SMALL:
            for i in range(values.shape[0]):
                values[i] = self.tables[inverse, <Py_ssize_t> values[i]]
            return 0
        while base < values.shape[0]:
            count = min(<Py_ssize_t> BLOCK, values.shape[0] - base)
            for i in range(count):
                value = <uint64_t> values[base + i]
                high[i] = <uint32_t> (value >> k)
                low[i] = <uint32_t> value & (UINT32_MAX >> (32 - k))
            if inverse:
                guideloom_decipher(high, low, <size_t> count, self.a, k, self.keys)
            else:
                guideloom_encipher(high, low, <size_t> count, self.a, k, self.keys)
            outside = 0
            for i in range(count):
                value = (<uint64_t> high[i] << k) | low[i]
                values[base + i] = <int64_t> value
                outside |= last - value  # sets the top bit where value > last; without a branch, this vectorises
            if outside >> 63:
                for i in range(base, base + count):
                    if <uint64_t> values[i] > last:
                        values[i] = <int64_t> self.map_one(<uint64_t> values[i], inverse)
            base += count
        return 0

    cdef int fill_span(self, int64_t start, int64_t[::1] out) except -1 nogil:
        """Fill `out` with the indices at positions ``start .. start + len(out) - 1``."""
        cdef Py_ssize_t i
        for i in range(out.shape[0]):
            out[i] = start + i
        return self.map_all(out, False)

    cdef Py_ssize_t fill(self, const int64_t[::1] values, int64_t[::1] out, bint inverse) except -2 nogil:
        """Map `values` into `out` and return -1; or, if some are out of range, only return the place of the first."""
        cdef uint64_t last = self.n - 1
        cdef uint64_t value, outside = 0
        cdef Py_ssize_t i
        for i in range(values.shape[0]):
            value = <uint64_t> values[i]
            outside |= value | (last - value)
        if outside >> 63:
            for i in range(values.shape[0]):
                if <uint64_t> values[i] > last:
                    return i
        out[:] = values
        self.map_all(out, inverse)
        return -1

    def index_at(self, uint64_t position):
        """Return the index at `position`, which is below n."""
        return self.map_one(position, False)

    def position_of(self, uint64_t index):
        """Return the position of `index`, which is below n."""
        return self.map_one(index, True)

    def span(self, int64_t start, int64_t[::1] out not None):
        """Fill `out` with the indices at positions ``start .. start + len(out) - 1``, which are below n."""
        if out.shape[0] <= HELD:
            self.fill_span(start, out)
        else:
            with nogil:
                self.fill_span(start, out)

    def at(self, const int64_t[::1] positions not None, int64_t[::1] out not None):
        """Fill `out`, which may be the same array, with the indices at `positions`; IndexError if one is outside."""
        cdef Py_ssize_t bad
        if out.shape[0] <= HELD:
            bad = self.fill(positions, out, False)
        else:
            with nogil:
                bad = self.fill(positions, out, False)
        if bad >= 0:
            raise IndexError(f"position {positions[bad]} is not in 0 .. {self.n - 1}")

    def find(self, const int64_t[::1] indices not None, int64_t[::1] out not None):
        """Fill `out`, which may be the same array, with the positions of `indices`; IndexError if one is outside."""
        cdef Py_ssize_t bad
        if out.shape[0] <= HELD:
            bad = self.fill(indices, out, True)
        else:
            with nogil:
                bad = self.fill(indices, out, True)
        if bad >= 0:
            raise IndexError(f"index {indices[bad]} is not in 0 .. {self.n - 1}")
