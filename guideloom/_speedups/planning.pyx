"""Turn window numbers into pieces of shard files, without the GIL."""

from libc.stdint cimport int32_t, int64_t


cdef Py_ssize_t _shard_of(const int64_t[::1] starts, int64_t element) noexcept nogil:
    """The last shard that starts at or before an element; with empty shards, the one that holds it."""
    cdef Py_ssize_t low = 0, high = starts.shape[0] - 1, middle
    while high - low > 1:
        middle = (low + high) >> 1
        if starts[middle] <= element:
            low = middle
        else:
            high = middle
    return low


def count_pieces(const int64_t[::1] samples not None, int64_t window, int64_t stride, int64_t offset,
                 const int64_t[::1] starts not None):
    """Return in how many pieces these windows lie: one, and one more for each shard edge inside."""
    cdef Py_ssize_t i, n = 0, shard
    cdef int64_t begin, end
    with nogil:
        for i in range(samples.shape[0]):
            begin = offset + samples[i] * stride
            end = begin + window
            shard = _shard_of(starts, begin)
            while begin < end:
                if starts[shard + 1] > begin:
                    begin = starts[shard + 1]
                    n += 1
                shard += 1
    return n


def plan_windows(const int64_t[::1] samples not None, const int64_t[::1] bounds not None, int64_t window,
                 int64_t stride, int64_t offset, const int64_t[::1] starts not None, int64_t row_bytes,
                 const int64_t[::1] byte_offsets not None, int32_t[::1] sample not None, int32_t[::1] file not None,
                 int64_t[::1] byte_offset not None, int64_t[::1] length not None, int32_t[::1] batch not None,
                 int64_t[::1] element not None):
    """Fill the pieces of these windows.

    `bounds` are the first rows of the batches, and their total; `starts` the first elements of the shards, and their
    total; `byte_offsets` where the rows begin in each shard's file. A piece gets the row of `samples` it belongs to,
    its file, byte offset and length, its batch, and its first element in that batch.
    """
    cdef Py_ssize_t i, n = 0, shard, b = 0
    cdef int64_t begin, end, at, stop, row
    with nogil:
        for i in range(samples.shape[0]):
            while i >= bounds[b + 1]:
                b += 1
            row = i - bounds[b]
            begin = at = offset + samples[i] * stride
            end = begin + window
            shard = _shard_of(starts, begin)
            while at < end:
                stop = min(end, starts[shard + 1])
                if stop > at:
                    sample[n] = <int32_t> i
                    file[n] = <int32_t> shard
                    byte_offset[n] = byte_offsets[shard] + (at - starts[shard]) * row_bytes
                    length[n] = (stop - at) * row_bytes
                    batch[n] = <int32_t> b
                    element[n] = row * window + (at - begin)
                    n += 1
                    at = stop
                shard += 1
    return n


def group_neighbours(const int32_t[::1] file not None, const int64_t[::1] offset not None,
                     const int64_t[::1] length not None, int64_t max_gap, int64_t max_length,
                     int64_t[::1] group not None):
    """Number the groups of ranges that one read may cover, and return how many there are.

    The ranges are sorted by file and offset. One joins the group before it if it begins at most `max_gap` bytes after
    that ends, and the group then has at most `max_length` bytes, or still the same.
    """
    cdef Py_ssize_t i
    cdef int64_t n = 0, start = 0, stop = 0, end
    with nogil:
        for i in range(offset.shape[0]):
            end = offset[i] + length[i]
            if (i > 0 and file[i] == file[i - 1] and offset[i] - stop <= max_gap
                    and (end <= stop or end - start <= max_length)):
                stop = max(stop, end)
            else:
                n += 1
                start, stop = offset[i], end
            group[i] = n - 1
    return n
