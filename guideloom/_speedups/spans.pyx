"""Find the spans of windows, check their payloads and lay them out, without the GIL."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memmove

from guideloom._speedups.crc32c cimport gl_block_crc, gl_crc32c

# What `find_spans` and `check_payloads` say of a piece; other values it had before.
DISORDER = -6       # rows that no writer makes: detail holds the row
BAD_PAYLOAD = -7    # a span does not match its checksum: detail holds the row, and (expected << 32 | found)
UNEVEN = -8         # a payload is no whole number of items: detail holds the row, and its bytes

cdef int32_t _DISORDER = -6
cdef int32_t _BAD_PAYLOAD = -7
cdef int32_t _UNEVEN = -8


def checksum_spans(uint32_t[:, ::1] rows not None, const uint8_t[::1] payload not None, *, uint32_t file_seed,
                   uint64_t first_span):
    """Fill the last column of some rows: the checksums of rows and payloads, which lie back to back."""
    cdef Py_ssize_t i, n = rows.shape[0]
    cdef int64_t total = 0
    cdef const uint8_t *at = &payload[0] if payload.shape[0] else NULL
    if rows.shape[1] != 4:
        raise ValueError("a row has four numbers")
    for i in range(n):
        total += rows[i, 2]
    if total != payload.shape[0]:
        raise ValueError("the payloads are not as long as the rows say")
    with nogil:
        for i in range(n):
            rows[i, 3] = gl_block_crc(file_seed, first_span + <uint64_t> i, <const uint8_t *> &rows[i, 0], 12)
            rows[i, 3] = gl_crc32c(rows[i, 3], at, rows[i, 2])
            at += rows[i, 2]


cdef inline int64_t _start(uint32_t stored, int64_t block_start, bint before) noexcept nogil:
    """The start of a span, of which the row holds 32 bits: less than 2**32 before or after the start of a block."""
    if before:
        return block_start - <int64_t> (<uint32_t> (<uint32_t> block_start - stored))
    return block_start + <int64_t> (<uint32_t> (stored - <uint32_t> block_start))


cdef inline bint _touches(int64_t start, int64_t stop, int64_t begin, int64_t end) noexcept nogil:
    return start < end and (stop > begin or start >= begin)


def find_spans(const uint32_t[:, ::1] rows not None, const int64_t[::1] position not None,
               const int64_t[::1] num_rows not None, const int64_t[::1] num_before not None,
               const int64_t[::1] block_start not None, const int64_t[::1] begin not None,
               const int64_t[::1] length not None, const int64_t[::1] num_elements not None,
               const int64_t[::1] payload_base not None, const int64_t[::1] payload_bytes not None,
               int32_t[::1] status not None, int64_t[:, ::1] detail not None, int64_t[:, ::1] found not None):
    """Find the spans that touch some pieces of shards.

    Parameters
    ----------
    rows : uint32 array of shape (n, 4)
        The rows that were read.
    position, num_rows, num_before : int64 array of shape (num_pieces,)
        Which rows are those of a piece, and how many of them start before its block does.
    block_start, begin, length, num_elements : int64 array of shape (num_pieces,)
        First element of the block that the piece begins in, its own first element and how many it has, and those of
        its shard.
    payload_base, payload_bytes : int64 array of shape (num_pieces,)
        Where the payload of the first row begins, and where those of the shard end.
    status : int32 array of shape (num_pieces,)
        Pieces whose status is not zero are left out; one whose rows contradict each other gets ``DISORDER``.
    detail : int64 array of shape (num_pieces, 2)
        Gets the row that does.
    found : int64 array of shape (num_pieces, 6), filled
        The first row that touches the piece and the one after the last, counted from the piece's first row; how many
        touch it; where their payloads begin in the file, how long these are with those between them, and without.
    """
    cdef Py_ssize_t i, k, n = position.shape[0]
    cdef int64_t at, start, stop, previous, size, own
    cdef const uint32_t *row
    if not (num_rows.shape[0] == num_before.shape[0] == block_start.shape[0] == begin.shape[0] == length.shape[0]
            == num_elements.shape[0] == payload_base.shape[0] == payload_bytes.shape[0] == status.shape[0]
            == detail.shape[0] == found.shape[0] == n) or rows.shape[1] != 4 or found.shape[1] != 6 \
            or detail.shape[1] != 2:
        raise ValueError("the arrays of the pieces differ in length")
    for i in range(n):
        if position[i] < 0 or num_rows[i] < 0 or position[i] > rows.shape[0] - num_rows[i]:
            raise ValueError("the rows of a piece are not among those read")
    with nogil:
        for i in range(n):
            for k in range(6):
                found[i, k] = 0
            if status[i] != 0:
                continue
            at = payload_base[i]
            previous = -1
            own = 0
            for k in range(num_rows[i]):
                row = &rows[position[i] + k, 0]
                start = _start(row[0], block_start[i], k < num_before[i])
                stop = start + row[1]
                size = row[2]
                if start < 0 or start < previous or stop > num_elements[i] or at > payload_bytes[i] - size:
                    status[i] = _DISORDER
                    detail[i, 0] = k
                    found[i, 2] = 0
                    break
                previous = start
                if _touches(start, stop, begin[i], begin[i] + length[i]):
                    if found[i, 2] == 0:
                        found[i, 0] = k
                        found[i, 3] = at
                    found[i, 1] = k + 1
                    found[i, 2] += 1
                    found[i, 4] = at + size - found[i, 3]
                    own += size
                at += size
            found[i, 5] = own
            if status[i] != 0:
                for k in range(6):
                    found[i, k] = 0


def check_payloads(const uint32_t[:, ::1] rows not None, const int64_t[::1] position not None,
                   const int64_t[::1] lowest not None, const int64_t[:, ::1] found not None,
                   const uint32_t[::1] seed not None, const int64_t[::1] payload not None, int64_t item_bytes,
                   bint verify, const int32_t[::1] pieces not None, int32_t[::1] status not None,
                   int64_t[:, ::1] detail not None):
    """Check the payloads of some pieces that were read, `pieces` naming them, unless their status is not zero.

    `payload` holds the address of each piece's payloads, of as many bytes as `found` says; `lowest` the number of its
    first row in the shard. A piece gets ``BAD_PAYLOAD`` or ``UNEVEN``.
    """
    cdef Py_ssize_t p, k
    cdef int32_t i
    cdef uint32_t crc
    cdef const uint8_t *at
    cdef const uint32_t *row
    with nogil:
        for p in range(pieces.shape[0]):
            i = pieces[p]
            if status[i] != 0:
                continue
            at = <const uint8_t *> <size_t> payload[i]
            for k in range(found[i, 0], found[i, 1]):
                row = &rows[position[i] + k, 0]
                if verify:
                    crc = gl_block_crc(seed[i], <uint64_t> (lowest[i] + k), <const uint8_t *> row, 12)
                    crc = gl_crc32c(crc, at, row[2])
                    if crc != row[3]:
                        status[i] = _BAD_PAYLOAD
                        detail[i, 0] = k
                        detail[i, 1] = <int64_t> ((<uint64_t> row[3] << 32) | crc)
                        break
                if row[2] % <uint64_t> item_bytes != 0:
                    status[i] = _UNEVEN
                    detail[i, 0] = k
                    detail[i, 1] = row[2]
                    break
                at += row[2]


def lay_out_spans(const uint32_t[:, ::1] rows not None, const int64_t[::1] position not None,
                  const int64_t[::1] num_before not None, const int64_t[::1] block_start not None,
                  const int64_t[::1] begin not None, const int64_t[::1] length not None,
                  const int64_t[::1] shard_start not None, const int64_t[::1] element not None,
                  const int64_t[:, ::1] found not None, const int64_t[::1] payload not None,
                  const int32_t[::1] batch not None, int64_t window, int64_t item_bytes,
                  const int32_t[::1] status not None, const int64_t[::1] num_windows not None,
                  const int64_t[::1] num_spans not None, const int64_t[::1] columns not None,
                  const int64_t[::1] values not None):
    """Write the spans of whole batches, and close the gaps between their payloads.

    Parameters
    ----------
    rows, position, num_before, block_start, begin, length, found, status
        As for `find_spans`.
    shard_start, element : int64 array of shape (num_pieces,)
        The shard's first element in the stream, and the piece's first in its batch.
    payload, batch
        Where the payloads of each piece were read to, in their batch, and which that is; batches in order.
    window, item_bytes : int
        Elements of a window, and bytes of what offsets count.
    num_windows, num_spans : int64 array of shape (num_batches,)
        Of each batch; there are as many spans in its pieces.
    columns : int64 array of shape (num_batches,)
        Address of ``num_windows + 1`` row offsets, of ``num_spans`` each of start, end, true start and true end, and
        of ``num_spans + 1`` offsets of payloads, all int64.
    values : int64 array of shape (num_batches,)
        Address of each batch's payloads.
    """
    cdef Py_ssize_t i = 0, k, n = position.shape[0], b, num_batches = num_windows.shape[0]
    cdef int64_t w, start, stop, first, low, high, size, count, total
    cdef int64_t *row_offsets
    cdef int64_t *column
    cdef int64_t *offsets
    cdef char *target
    cdef char *base
    cdef const char *source
    cdef const uint32_t *row
    for k in range(n):
        if batch[k] < 0 or batch[k] >= num_batches or element[k] < 0 or element[k] >= num_windows[batch[k]] * window:
            raise ValueError("a piece lies in no window of a batch")
    with nogil:
        for b in range(num_batches):
            total = num_spans[b]
            row_offsets = <int64_t *> <size_t> columns[b]
            column = row_offsets + num_windows[b] + 1
            offsets = column + 4 * total
            base = target = <char *> <size_t> values[b]
            offsets[0] = 0
            count = 0
            w = 0
            row_offsets[0] = 0
            while i < n and batch[i] == b:
                while w < element[i] // window:     # a window ends where the first piece of a later one comes
                    w += 1
                    row_offsets[w] = count
                if status[i] != 0:
                    i += 1
                    continue
                source = <const char *> <size_t> payload[i]
                first = element[i] % window - begin[i]      # from elements of the shard to those of the window
                for k in range(found[i, 0], found[i, 1]):
                    row = &rows[position[i] + k, 0]
                    size = row[2]
                    start = _start(row[0], block_start[i], k < num_before[i])
                    stop = start + row[1]
                    if _touches(start, stop, begin[i], begin[i] + length[i]) and count < total:
                        low = max(start, begin[i])
                        high = min(stop, begin[i] + length[i])
                        column[count] = low + first
                        column[total + count] = high + first
                        column[2 * total + count] = start + shard_start[i]
                        column[3 * total + count] = stop + shard_start[i]
                        if target != source:
                            memmove(target, source, <size_t> size)
                        target += size
                        count += 1
                        offsets[count] = (target - base) // item_bytes
                    source += size
                i += 1
            while w < num_windows[b]:
                w += 1
                row_offsets[w] = count
