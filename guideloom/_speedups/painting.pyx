"""Say of every element of a window which span covers it, and where its document begins, without the GIL."""

from libc.stdint cimport int32_t, int64_t


def paint_spans(const int64_t[::1] row_offsets not None, const int64_t[::1] start not None,
                const int64_t[::1] end not None, int32_t[:, ::1] out not None):
    """Fill `out` with the number of the last span that covers each element, -1 where none does.

    Row ``r`` has the spans ``row_offsets[r]`` to ``row_offsets[r + 1]``, each from its start to its end in the row.
    """
    cdef Py_ssize_t r, i, k, num_rows = out.shape[0], window = out.shape[1], low, high
    if row_offsets.shape[0] != num_rows + 1 or start.shape[0] != end.shape[0]:
        raise ValueError("one more row offset than rows, one end a start")
    with nogil:
        for r in range(num_rows):
            for k in range(window):
                out[r, k] = -1
            for i in range(max(row_offsets[r], 0), min(row_offsets[r + 1], start.shape[0])):
                low = max(start[i], 0)
                high = min(end[i], window)
                for k in range(low, high):
                    out[r, k] = <int32_t> i


def number_runs(const int32_t[:, ::1] painted not None, int32_t[:, ::1] number not None,
                int64_t[:, ::1] position not None, int32_t[::1] starts not None):
    """Divide each row into runs of equal numbers.

    Fill the run that each element lies in, counted from the start of its row, its place in the run, and where each run
    starts with all rows end to end, followed by their total. Return the number of runs and the longest; `starts` needs
    room for one more than there are elements.
    """
    cdef Py_ssize_t r, k, num_rows = painted.shape[0], window = painted.shape[1], count = 0, longest = 0
    cdef int32_t run
    cdef int64_t place
    if not (number.shape[0] == position.shape[0] == num_rows and number.shape[1] == position.shape[1] == window) \
            or starts.shape[0] < num_rows * window + 1:
        raise ValueError("the arrays differ in shape")
    with nogil:
        for r in range(num_rows):
            run = -1
            place = 0
            for k in range(window):
                if k == 0 or painted[r, k] != painted[r, k - 1]:
                    starts[count] = <int32_t> (r * window + k)
                    count += 1
                    run += 1
                    place = 0
                number[r, k] = run
                position[r, k] = place
                place += 1
                longest = max(longest, place)
        starts[count] = <int32_t> (num_rows * window)
    return count, longest
