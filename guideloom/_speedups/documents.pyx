"""Documents: their checksums, where they lie, and their arrays laid out in batches, without the GIL."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from guideloom._speedups.crc32c cimport gl_block_crc

cdef extern from "convert.h" nogil:
    int64_t gl_convert(int from_type, int to_type, const char *source, size_t stride, char *target, size_t inner,
                       size_t cell, size_t count)
    size_t gl_type_bytes(int type, size_t otherwise)

cdef extern from *:
    void __builtin_prefetch(const void *address, ...) noexcept nogil

# How many documents ahead the row of one is asked for: rows lie anywhere in memory.
cdef enum:
    AHEAD = 8

# Bytes of a row of an index around the counts: end and decoded size before them, two checksums after.
cdef enum:
    END_BYTES = 8
    SIZE_BYTES = 4
    COUNT_BYTES = 4
    CHECKSUM_BYTES = 4

DAMAGED_ROW = -1        # a row of the index does not match its checksum: detail holds its number, expected, found
CONTRADICTION = -2      # it does, but its numbers cannot be true: detail holds its number
OVERFLOW = -3           # a value does not fit the dtype asked for: detail holds the field and the element

cdef int32_t _DAMAGED_ROW = -1
cdef int32_t _CONTRADICTION = -2
cdef int32_t _OVERFLOW = -3


cdef inline uint64_t _uint64(const uint8_t *at) noexcept nogil:
    return <uint64_t> _uint32(at) | (<uint64_t> _uint32(at + 4)) << 32


cdef inline uint32_t _uint32(const uint8_t *at) noexcept nogil:
    return (<uint32_t> at[0] | <uint32_t> at[1] << 8 | <uint32_t> at[2] << 16 | <uint32_t> at[3] << 24)


def document_checksums(const uint8_t[::1] data not None, const int64_t[::1] ends not None, *, uint32_t file_seed,
                       uint64_t first, uint32_t[::1] out not None):
    """Fill `out` with the checksum of each document; they lie back to back in `data`, number `first` at its start."""
    cdef Py_ssize_t i
    cdef int64_t begin = 0
    cdef const uint8_t *source = &data[0] if data.shape[0] else NULL
    if out.shape[0] != ends.shape[0]:
        raise ValueError("one checksum a document")
    for i in range(ends.shape[0]):
        if not begin <= ends[i] <= data.shape[0]:
            raise ValueError("documents lie back to back in the data")
        begin = ends[i]
    begin = 0
    with nogil:
        for i in range(ends.shape[0]):
            out[i] = gl_block_crc(file_seed, first + <uint64_t> i, source + begin, <size_t> (ends[i] - begin))
            begin = ends[i]


def row_checksums(const uint8_t[:, ::1] rows not None, *, uint32_t file_seed, uint64_t first,
                  uint32_t[::1] out not None):
    """Fill `out` with the checksum of each row of an index, over all of it but its last 4 bytes."""
    cdef Py_ssize_t i
    if out.shape[0] != rows.shape[0] or rows.shape[1] <= CHECKSUM_BYTES:
        raise ValueError("one checksum a row")
    with nogil:
        for i in range(rows.shape[0]):
            out[i] = gl_block_crc(file_seed, first + <uint64_t> i, &rows[i, 0],
                                  <size_t> (rows.shape[1] - CHECKSUM_BYTES))


cdef inline bint _row_holds(const uint8_t *row, int64_t row_bytes, uint32_t seed, int64_t number,
                            int64_t *detail) noexcept nogil:
    cdef uint32_t found = gl_block_crc(seed, <uint64_t> number, row, <size_t> (row_bytes - CHECKSUM_BYTES))
    cdef uint32_t expected = _uint32(row + row_bytes - CHECKSUM_BYTES)
    if found == expected:
        return True
    detail[0] = number
    detail[1] = <int64_t> ((<uint64_t> expected << 32) | found)
    return False


def locate(const int64_t[::1] address not None, const int64_t[::1] record not None, const int32_t[::1] file not None,
           const int64_t[::1] data_bytes not None, const uint32_t[::1] seeds not None, int64_t row_bytes,
           const int64_t[::1] section_bytes not None, const int64_t[::1] delivered_bytes not None, bint compressed,
           int64_t most_bytes, int64_t[::1] offset not None, int64_t[::1] length not None,
           int64_t[::1] decoded not None, int64_t[::1] size not None, uint32_t[::1] checksum not None,
           int64_t[:, ::1] counts not None, int32_t[::1] status not None, int64_t[:, ::1] detail not None):
    """Read where documents lie from rows of an index, and see that these are true.

    `address` holds the address of each document's row, with the row before it, if there is one, just before; 0 leaves
    a document as it is. `section_bytes` are the bytes of an element of each section of numeric documents,
    `delivered_bytes` those that it takes as delivered. `size` is the memory that a document takes at its largest.
    """
    cdef Py_ssize_t i, s, n = address.shape[0], num_sections = section_bytes.shape[0]
    cdef const uint8_t *row
    cdef int64_t begin, end, room, count, delivered
    cdef uint32_t seed
    cdef bint fits
    if not (record.shape[0] == file.shape[0] == offset.shape[0] == length.shape[0] == decoded.shape[0]
            == size.shape[0] == checksum.shape[0] == counts.shape[0] == status.shape[0] == detail.shape[0] == n):
        raise ValueError("the arrays of documents differ in length")
    if row_bytes != END_BYTES + SIZE_BYTES + COUNT_BYTES * num_sections + 2 * CHECKSUM_BYTES:
        raise ValueError("a row of an index has another size")
    if delivered_bytes.shape[0] != num_sections:
        raise ValueError("one size a section")
    if counts.shape[1] != num_sections or detail.shape[1] != 2 or seeds.shape[0] != data_bytes.shape[0]:
        raise ValueError("one count a section, two details a document, one seed and size a file")
    with nogil:
        for i in range(n):
            if i + AHEAD < n:
                __builtin_prefetch(<const void *> <size_t> address[i + AHEAD])
            if address[i] == 0:
                continue
            offset[i] = length[i] = decoded[i] = size[i] = 0
            checksum[i] = 0
            for s in range(num_sections):
                counts[i, s] = 0
            row = <const uint8_t *> <size_t> address[i]
            seed = seeds[file[i]]
            begin = 0
            if record[i] > 0:
                if not _row_holds(row - row_bytes, row_bytes, seed, record[i] - 1, &detail[i, 0]):
                    status[i] = _DAMAGED_ROW
                    continue
                begin = <int64_t> _uint64(row - row_bytes)
            if not _row_holds(row, row_bytes, seed, record[i], &detail[i, 0]):
                status[i] = _DAMAGED_ROW
                continue
            end = <int64_t> _uint64(row)
            room = decoded[i] = _uint32(row + END_BYTES)
            checksum[i] = _uint32(row + row_bytes - 2 * CHECKSUM_BYTES)
            delivered = 0
            fits = 0 <= begin <= end <= data_bytes[file[i]] and end - begin <= most_bytes and room <= most_bytes
            if fits and not compressed:
                fits = end - begin == room
            if num_sections:
                room -= COUNT_BYTES * (num_sections - 1)
                for s in range(num_sections):
                    count = _uint32(row + END_BYTES + SIZE_BYTES + COUNT_BYTES * s)
                    counts[i, s] = count
                    delivered += count * delivered_bytes[s]
                    room -= count * section_bytes[s]  # below 2**32 times 2**16, so that a few thousand cannot overflow
                fits = fits and room == 0
            status[i] = 0
            if not fits:
                status[i] = _CONTRADICTION
                detail[i, 0] = record[i]
                decoded[i] = 0
                for s in range(num_sections):
                    counts[i, s] = 0
                continue
            offset[i] = begin
            length[i] = end - begin
            size[i] = max(max(length[i], decoded[i]), delivered)


def plan_arrays(const int64_t[:, ::1] counts not None, const int64_t[::1] bounds not None,
                const int64_t[::1] total not None, int32_t[::1] batch not None, int64_t[:, ::1] element not None,
                int64_t[:, ::1] offsets not None):
    """Fill the offsets of the jagged arrays of some batches, those of each section in a row, batch after batch.

    Batch b has documents ``bounds[b] .. bounds[b + 1]`` and ``total[b]`` rows, of which the last are empty, so it takes
    ``total[b] + 1`` offsets. A document gets its batch and the first element of each of its sections there.
    """
    cdef Py_ssize_t b, i, s, at = 0, num_sections = counts.shape[1]
    cdef int64_t end, rows = 0
    if total.shape[0] != bounds.shape[0] - 1 or bounds[0] != 0 or bounds[total.shape[0]] != counts.shape[0]:
        raise ValueError("the bounds are not those of these documents")
    for b in range(total.shape[0]):
        if not 0 <= bounds[b + 1] - bounds[b] <= total[b]:
            raise ValueError("a batch has at least as many rows as documents")
        rows += total[b] + 1
    if offsets.shape[0] != num_sections or offsets.shape[1] != rows or batch.shape[0] != counts.shape[0]:
        raise ValueError("one offset a row of each batch, and one more")
    if element.shape[0] != counts.shape[0] or element.shape[1] != num_sections:
        raise ValueError("one element a document and section")
    with nogil:
        for b in range(total.shape[0]):
            for i in range(bounds[b], bounds[b + 1]):
                batch[i] = <int32_t> b
            for s in range(num_sections):
                end = 0
                offsets[s, at] = 0
                for i in range(bounds[b], bounds[b + 1]):
                    element[i, s] = end
                    end += counts[i, s]
                    offsets[s, at + 1 + i - bounds[b]] = end
                for i in range(bounds[b + 1] - bounds[b], total[b]):
                    offsets[s, at + 1 + i] = end
            at += total[b] + 1


cdef struct Field:
    int section
    int64_t offset      # of the field in an element of its section
    int64_t cell        # stored bytes of the field in one element
    int64_t out         # delivered bytes of the field in one element
    int64_t inner       # numbers of the field in one element
    int from_type
    int to_type
    char *base          # of the array to fill


def lay_out(const uint8_t[::1] source not None, const int64_t[::1] begin not None,
            const int64_t[:, ::1] counts not None, const int64_t[:, ::1] element not None,
            const int64_t[::1] section_bytes not None, fields, const int64_t[::1] base not None,
            int32_t[::1] status not None, int64_t[:, ::1] detail not None):
    """Copy the arrays of documents from their bytes in `source` into those of a batch, converted where asked for.

    A document that fails gets a status; those whose status is set are left out. `element` holds the first element of
    each document in the arrays of each section, `fields` (section, offset, cell, inner, from, to) of each array, and
    `base` its address. The arrays have room for all elements.
    """
    cdef Py_ssize_t i, n = begin.shape[0], num_sections = section_bytes.shape[0]
    cdef int s, f, num_fields = <int> len(fields)
    cdef int64_t at, bad, need
    cdef const uint8_t *data = &source[0] if source.shape[0] else NULL
    cdef Field *field
    cdef Field *all_fields
    if not (counts.shape[0] == element.shape[0] == status.shape[0] == detail.shape[0] == n):
        raise ValueError("the arrays of documents differ in length")
    if counts.shape[1] != num_sections or element.shape[1] != num_sections or base.shape[0] != num_fields:
        raise ValueError("one count and one element a section, one address a field")
    all_fields = <Field *> calloc(<size_t> max(num_fields, 1), sizeof(Field))
    if all_fields == NULL:
        raise MemoryError
    try:
        for f, (section, field_offset, cell, inner, from_type, to_type) in enumerate(fields):
            field = &all_fields[f]
            field.section, field.offset, field.cell, field.inner = section, field_offset, cell, inner
            field.from_type, field.to_type = from_type, to_type
            field.out = <int64_t> gl_type_bytes(to_type, <size_t> (cell // inner)) * inner
            field.base = <char *> <size_t> base[f]
        with nogil:
            for i in range(n):
                if status[i] != 0:
                    continue
                need = COUNT_BYTES * (num_sections - 1)
                for s in range(num_sections):
                    need += counts[i, s] * section_bytes[s]
                if begin[i] < 0 or need > source.shape[0] - begin[i]:
                    status[i] = _CONTRADICTION
                    continue
                at = begin[i]
                for s in range(num_sections - 1):
                    if _uint32(data + at) != counts[i, s]:
                        status[i] = _CONTRADICTION
                    at += COUNT_BYTES
                if status[i] != 0:
                    continue
                for s in range(num_sections):
                    for f in range(num_fields):
                        field = &all_fields[f]
                        if field.section != s or counts[i, s] == 0:
                            continue
                        bad = gl_convert(field.from_type, field.to_type, <const char *> data + at + field.offset,
                                         <size_t> section_bytes[s], field.base + element[i, s] * field.out,
                                         <size_t> field.inner, <size_t> field.cell, <size_t> counts[i, s])
                        if bad != -1:
                            status[i] = _OVERFLOW
                            detail[i, 0] = f
                            detail[i, 1] = bad
                            break
                    at += counts[i, s] * section_bytes[s]
    finally:
        free(all_fields)


def join_arrays(const int64_t[::1] address not None, const int64_t[:, ::1] offsets not None,
                const int64_t[::1] section_bytes not None, uint8_t[::1] out not None):
    """Write documents of several sections back to back, from the arrays of all of them.

    Section s of document i is elements ``offsets[s, i] .. offsets[s, i + 1]`` of the array at ``address[s]``. Return
    the bytes written; `out` has room for all, which `offsets`, increasing, say.
    """
    cdef Py_ssize_t i, s, num_sections = section_bytes.shape[0], n = offsets.shape[1] - 1
    cdef int64_t at = 0, need, count
    cdef uint8_t *target = &out[0] if out.shape[0] else NULL
    if address.shape[0] != num_sections or offsets.shape[0] != num_sections or n < 0:
        raise ValueError("one address and one row of offsets a section")
    need = COUNT_BYTES * (num_sections - 1) * n
    for s in range(num_sections):
        need += (offsets[s, n] - offsets[s, 0]) * section_bytes[s]
    if need > out.shape[0]:
        raise ValueError("the documents have no room")
    with nogil:
        for i in range(n):
            for s in range(num_sections - 1):
                count = offsets[s, i + 1] - offsets[s, i]
                target[at] = <uint8_t> count
                target[at + 1] = <uint8_t> (count >> 8)
                target[at + 2] = <uint8_t> (count >> 16)
                target[at + 3] = <uint8_t> (count >> 24)
                at += COUNT_BYTES
            for s in range(num_sections):
                count = (offsets[s, i + 1] - offsets[s, i]) * section_bytes[s]
                if count:
                    memcpy(target + at, <const void *> <size_t> (address[s] + offsets[s, i] * section_bytes[s]),
                           <size_t> count)
                at += count
    return at


def pad_rows(const uint8_t[::1] values not None, const int64_t[::1] offsets not None, int64_t element_bytes,
             const uint8_t[::1] fill not None, uint8_t[:, ::1] out not None):
    """Copy each row of a jagged array to the start of a row of `out`, cut to its length, and fill the rest.

    Row i is elements ``offsets[i] .. offsets[i + 1]`` of `values`; `fill` is one element, or empty for zeros.
    """
    cdef Py_ssize_t i
    cdef int64_t count, at, row_bytes = out.shape[1]
    cdef const uint8_t *source = &values[0] if values.shape[0] else NULL
    if out.shape[0] != offsets.shape[0] - 1 or element_bytes < 1 or row_bytes % element_bytes:
        raise ValueError("one row of out for each of the jagged array, of whole elements")
    if fill.shape[0] != 0 and fill.shape[0] != element_bytes:
        raise ValueError("fill is one element")
    for i in range(out.shape[0]):
        if not 0 <= offsets[i] <= offsets[i + 1] <= values.shape[0] // element_bytes:
            raise ValueError("offsets must increase within the values")
    if row_bytes == 0:
        return
    with nogil:
        for i in range(out.shape[0]):
            count = min((offsets[i + 1] - offsets[i]) * element_bytes, row_bytes)
            if count:
                memcpy(&out[i, 0], source + offsets[i] * element_bytes, <size_t> count)
            if fill.shape[0] == 0:
                memset(&out[i, 0] + count, 0, <size_t> (row_bytes - count))
                continue
            at = count
            while at < row_bytes:
                memcpy(&out[i, 0] + at, &fill[0], <size_t> element_bytes)
                at += element_bytes
