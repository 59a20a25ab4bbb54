from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef extern from "crc32c.h" nogil:
    # CRC32C of `data` after what `crc` is the CRC32C of; start with 0.
    uint32_t gl_crc32c(uint32_t crc, const uint8_t *data, size_t length)
    # What the checksum of a block begins with.
    uint32_t gl_block_place(uint32_t file_seed, uint64_t block)
    # CRC32C of `file_seed` (4 bytes), `block` (8 bytes), both little-endian, and `data`.
    uint32_t gl_block_crc(uint32_t file_seed, uint64_t block, const uint8_t *data, size_t length)
