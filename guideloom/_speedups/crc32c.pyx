"""CRC32C of any C-contiguous buffer, and the seeded checksums of its blocks."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from "crc32c.h" nogil:
    ctypedef struct gl_crc32c_implementation:
        const char *name
        int (*usable)() noexcept nogil
        uint32_t (*kernel)(uint32_t state, const uint8_t *data, size_t length) noexcept nogil

    const gl_crc32c_implementation gl_crc32c_implementations[]
    const int GL_CRC32C_NUM_IMPLEMENTATIONS
    const gl_crc32c_implementation *gl_crc32c_chosen

# With the instructions for it, a checksum of fewer bytes costs less than to give the GIL away and take it back.
cdef enum:
    MOST_BYTES_WITH_GIL = 8192


def crc32c(data, uint32_t value=0):
    """Return the CRC32C of `data`, after bytes whose CRC32C is `value`."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len <= MOST_BYTES_WITH_GIL:
            value = gl_crc32c(value, <const uint8_t *>view.buf, <size_t>view.len)
        else:
            with nogil:
                value = gl_crc32c(value, <const uint8_t *>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)
    return value


def block_checksum(data, *, uint32_t file_seed, uint64_t block):
    """Return the CRC32C of `file_seed`, `block` and `data`; `crc32c` continues it over more bytes of the block."""
    return crc32c(data, gl_block_crc(file_seed, block, NULL, 0))


def block_checksums(
    data, *, uint32_t file_seed, uint64_t first_block, Py_ssize_t block_bytes, uint32_t[::1] out not None
):
    """Fill `out` with the `block_checksum` of each block of `data`; the last block may be short."""
    if block_bytes < 1:
        raise ValueError(f"block_bytes is {block_bytes}: a block has at least one byte")
    cdef Py_buffer view
    cdef Py_ssize_t num_blocks, i, begin
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        num_blocks = view.len // block_bytes + (view.len % block_bytes != 0)
        if out.shape[0] != num_blocks:
            raise ValueError(f"out has {out.shape[0]} elements, for {num_blocks} blocks")
        with nogil:
            for i in range(num_blocks):
                begin = i * block_bytes
                out[i] = gl_block_crc(
                    file_seed,
                    first_block + <uint64_t>i,
                    <const uint8_t *>view.buf + begin,
                    <size_t>min(block_bytes, view.len - begin),
                )
    finally:
        PyBuffer_Release(&view)


def implementation():
    """Return the name of the implementation that this processor uses."""
    return gl_crc32c_chosen.name.decode("ascii")


def _implementations():
    """Return the names of those that could be used here, the fastest first, so that tests reach each of them."""
    return [
        gl_crc32c_implementations[i].name.decode("ascii")
        for i in range(GL_CRC32C_NUM_IMPLEMENTATIONS)
        if gl_crc32c_implementations[i].usable()
    ]


def _crc32c_by(str name, data, uint32_t value=0):
    """Return what `crc32c` does, by the implementation called `name`."""
    cdef Py_buffer view
    cdef const gl_crc32c_implementation *chosen = gl_crc32c_implementations
    while not (chosen.usable() and chosen.name.decode("ascii") == name):
        chosen += 1
        if chosen == gl_crc32c_implementations + GL_CRC32C_NUM_IMPLEMENTATIONS:
            raise ValueError(f"{name!r} is none of {_implementations()}")
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return <uint32_t>~chosen.kernel(~value, <const uint8_t *>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)
