cimport cython
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t


@cython.final
cdef class PermutationKernel:
    cdef uint64_t n
    # Above n = 4096, the network:
    cdef uint32_t a  # values of the high half
    cdef uint32_t k  # bits of the low half
    cdef uint32_t[10] keys  # for high and low in turn
    # Up to it, the order and its inverse, a row each:
    cdef uint16_t[:, ::1] tables

    cdef int build_tables(self, uint64_t stream) except -1
    cdef void build_network(self, uint64_t stream) noexcept
    cdef uint64_t map_one(self, uint64_t value, bint inverse) noexcept nogil
    cdef int map_all(self, int64_t[::1] values, bint inverse) except -1 nogil
    cdef int fill_span(self, int64_t start, int64_t[::1] out) except -1 nogil
    cdef Py_ssize_t fill(self, const int64_t[::1] values, int64_t[::1] out, bint inverse) except -2 nogil
