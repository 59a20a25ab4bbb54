"""Read pieces of files into place, check their blocks and lay out their fields, without the GIL."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

cimport cython

from guideloom._speedups.crc32c cimport gl_block_crc, gl_block_place, gl_crc32c

cdef extern from "pread.h" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    const int GUIDELOOM_HAVE_PREADV
    int64_t gl_read_all(int fd, iovec *parts, int num_parts, int64_t offset)
    int gl_read_cached(int fd, const iovec *parts, int num_parts, int64_t offset, int64_t length)
    void gl_will_need(int fd, int64_t offset, int64_t length)
    void gl_dont_need(int fd, int64_t offset, int64_t length)

cdef extern from "mapped.h" nogil:
    char *gl_map(int fd, int64_t *size)
    void gl_unmap(char *map, int64_t size)
    void gl_unmap_pages(char *map, int64_t size, int64_t offset, int64_t length)
    int gl_guard(int install)
    ctypedef void (*gl_body)(void *, void *)
    int gl_attempt(gl_body body, void *first, void *second)
    void gl_prefetch(const char *at, int64_t length)
    int64_t gl_file_bytes(int fd)
    int64_t gl_major_faults()

cdef extern from "convert.h" nogil:
    const int CONVERT_BYTES
    int64_t gl_convert(int from_type, int to_type, const char *source, size_t stride, char *target, size_t inner,
                       size_t cell, size_t count)
    size_t gl_type_bytes(int type, size_t otherwise)

HAVE_PREADV = bool(GUIDELOOM_HAVE_PREADV)
TYPE_CODES = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "u8": 6, "i8": 7, "f4": 8, "f8": 9}
BYTES_CODE = CONVERT_BYTES

DONE = 0        # a positive status is an errno
SHORT = -1      # the file ends early: detail holds the bytes found
CORRUPT = -2    # a block or record does not match its checksum: detail holds its number, (expected << 32 | found)
OVERFLOW = -3   # a value does not fit the dtype asked for: detail holds the field and the element
PENDING = -4    # not read yet

cdef int32_t _DONE = 0
cdef int32_t _SHORT = -1
cdef int32_t _CORRUPT = -2
cdef int32_t _OVERFLOW = -3
cdef int32_t _PENDING = -4
cdef int32_t _CANNOT_TELL = -5  # pending too: this filesystem does not say what is cached
cdef int32_t _BUS_ERROR = -6    # pending too: the file was cut short under its memory map, or its disk failed

cdef int32_t _COPIED = -7       # from a memory map of which it is not known yet whether the file was still whole

cdef int _PIECES_PER_LOOK = 16  # at the page faults that waited for the disk, while copying from a memory map


@cython.final
@cython.auto_pickle(False)
cdef class Buffers:
    """Writable buffers held open, with their addresses: the memory of a job cannot go away under it."""

    cdef Py_buffer *_views
    cdef Py_ssize_t _count

    def __cinit__(self, buffers):
        self._views = <Py_buffer *> calloc(max(len(buffers), 1), sizeof(Py_buffer))
        if self._views == NULL:
            raise MemoryError
        for buffer in buffers:
            PyObject_GetBuffer(buffer, &self._views[self._count], PyBUF_WRITABLE)
            self._count += 1

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self._count):
            PyBuffer_Release(&self._views[i])
        free(self._views)

    def __len__(self):
        return self._count

    def fill(self, int64_t[::1] addresses not None, int64_t[::1] sizes not None):
        """Write each buffer's address and size in bytes."""
        cdef Py_ssize_t i
        if addresses.shape[0] != self._count or sizes.shape[0] != self._count:
            raise ValueError("one address and one size a buffer")
        for i in range(self._count):
            addresses[i] = <int64_t> <size_t> self._views[i].buf
            sizes[i] = self._views[i].len


@cython.final
@cython.auto_pickle(False)
cdef class Mapping:
    """All of a file on a local disk, in memory; ``None`` from `of` where that cannot be."""

    cdef char *_start
    cdef readonly int64_t num_bytes

    def __dealloc__(self):
        if self._start != NULL:
            with nogil:
                gl_unmap(self._start, self.num_bytes)

    @staticmethod
    def of(int descriptor):
        """Map an open file."""
        cdef Mapping mapping = Mapping.__new__(Mapping)
        with nogil:
            mapping._start = gl_map(descriptor, &mapping.num_bytes)
        return mapping if mapping._start != NULL else None


cdef object _guard_installed = False


def guard_copies():
    """Return whether copies from a memory map are guarded against SIGBUS; installs the handler the first time.

    A handler that somebody else installed since then is left alone: they are not guarded any more.
    """
    global _guard_installed
    install, _guard_installed = not _guard_installed, True
    return bool(gl_guard(install))


cdef struct Source:
    int32_t count           # of pieces, one behind the other
    int32_t descriptor
    char *map               # or NULL
    int64_t map_bytes


@cython.final
@cython.auto_pickle(False)
cdef class Sources:
    """The open files that pieces are read from, in the order of the pieces."""

    cdef Source *_files
    cdef Py_ssize_t _count
    cdef Py_ssize_t _room
    cdef Py_ssize_t _num_pieces
    cdef list _keep

    def __cinit__(self, Py_ssize_t room):
        self._files = <Source *> calloc(<size_t> max(room, 1), sizeof(Source))
        if self._files == NULL:
            raise MemoryError
        self._room = room
        self._keep = []

    def __dealloc__(self):
        free(self._files)

    def add(self, int32_t num_pieces, int32_t descriptor, Mapping mapping=None):
        """Add the file of the next pieces. With a mapping, cached pages are copied from there."""
        if self._count == self._room or num_pieces < 0:
            raise ValueError("more files than there is room for")
        self._files[self._count].count = num_pieces
        self._files[self._count].descriptor = descriptor
        if mapping is not None:
            self._files[self._count].map = mapping._start
            self._files[self._count].map_bytes = mapping.num_bytes
            self._keep.append(mapping)
        self._count += 1
        self._num_pieces += num_pieces


def group_by_file(const int32_t[::1] files not None, int32_t[::1] order not None, Py_ssize_t num_files):
    """Sort pieces by file, keeping their order within one.

    Return the run of each file, as (file, low, high) of `order`.
    """
    cdef Py_ssize_t i, n = files.shape[0]
    cdef int32_t at = 0, here
    cdef int32_t *ends
    if order.shape[0] != n:
        raise ValueError("order and files differ in length")
    ends = <int32_t *> calloc(<size_t> max(num_files, 1), sizeof(int32_t))
    if ends == NULL:
        raise MemoryError
    try:
        with nogil:
            for i in range(n):
                ends[files[i]] += 1
            for i in range(num_files):
                here = ends[i]
                ends[i] = at
                at += here
            for i in range(n):
                order[ends[files[i]]] = <int32_t> i
                ends[files[i]] += 1
        runs = []
        at = 0
        while at < n:
            here = ends[files[order[at]]]
            runs.append((files[order[at]], at, here))
            at = here
        return runs
    finally:
        free(ends)


cdef struct Field:
    int64_t offset      # of the field in a row
    int64_t cell        # stored bytes of the field in one row
    int64_t out         # delivered bytes of the field in one row
    int64_t inner       # elements of the field in one row
    int from_type
    int to_type


cdef struct Extent:     # what is read of the file for a piece, in whole blocks when they are checked
    int64_t first
    int64_t head_end    # [first, head_end): a block of which only a part is wanted
    int64_t tail_begin  # [head_end, tail_begin): straight into place
    int64_t last        # [tail_begin, last): again a block of which only a part is wanted


@cython.final
@cython.auto_pickle(False)
cdef class ReadJob:
    """Pieces of files, and where their bytes go.

    A piece is whole rows of one file, lying one behind the other in a window. With one unconverted field that fills
    the row its bytes are read straight into place (*direct*); otherwise they are read into scratch and each field is
    gathered from there. With checks on, reads are widened to whole blocks, and nothing is delivered from a block that
    does not match; or each piece is a whole record with a checksum of its own.
    """

    cdef readonly Py_ssize_t num_pieces
    cdef readonly bint direct
    cdef readonly bint checked      # block by block
    cdef readonly bint records      # each piece as one
    cdef public bint cancelled
    cdef const int32_t[::1] _file
    cdef const int64_t[::1] _offset
    cdef const int64_t[::1] _length
    cdef const int32_t[::1] _batch
    cdef const int64_t[::1] _element
    cdef const int64_t[:, ::1] _base
    cdef readonly object status
    cdef readonly object detail
    cdef int32_t[::1] _status
    cdef int64_t[:, ::1] _detail
    cdef int64_t _row_bytes
    cdef Field *_fields
    cdef int _num_fields
    cdef int64_t _block_bytes
    cdef const int64_t[::1] _file_bytes
    cdef const uint32_t[::1] _seeds
    cdef const int64_t[::1] _expected
    cdef const int64_t[::1] _number
    cdef const uint32_t[::1] _checksum
    cdef object _keep

    def __cinit__(self, *, const int32_t[::1] file not None, const int64_t[::1] offset not None,
                  const int64_t[::1] length not None, const int32_t[::1] batch not None,
                  const int64_t[::1] element not None, const int64_t[:, ::1] base not None,
                  int32_t[::1] status not None, int64_t[:, ::1] detail not None,
                  int64_t row_bytes, fields, keep):
        cdef Py_ssize_t i, n = file.shape[0]
        if not (offset.shape[0] == length.shape[0] == batch.shape[0] == element.shape[0] == status.shape[0]
                == detail.shape[0] == n):
            raise ValueError("the arrays of a job differ in length")
        if base.shape[0] != len(fields) or detail.shape[1] != 2 or not fields:
            raise ValueError("one row of base addresses a field, two details a piece")
        self.num_pieces = n
        self._file, self._offset, self._length = file, offset, length
        self._batch, self._element, self._base = batch, element, base
        self._status, self._detail = status, detail
        self.status, self.detail = status.base, detail.base
        self._row_bytes = row_bytes
        self._keep = keep
        self._num_fields = <int> len(fields)
        self._fields = <Field *> calloc(len(fields), sizeof(Field))
        if self._fields == NULL:
            raise MemoryError
        for i, (field_offset, cell, inner, from_type, to_type) in enumerate(fields):
            self._fields[i].offset = field_offset
            self._fields[i].cell = cell
            self._fields[i].inner = inner
            self._fields[i].from_type = from_type
            self._fields[i].to_type = to_type
            self._fields[i].out = <int64_t> gl_type_bytes(to_type, <size_t> (cell // inner)) * inner
        self.direct = (len(fields) == 1 and self._fields[0].from_type == self._fields[0].to_type
                       and self._fields[0].cell == row_bytes)
        for i in range(n):
            status[i] = _PENDING

    def __dealloc__(self):
        free(self._fields)

    def check(self, int64_t block_bytes, const int64_t[::1] file_bytes not None, const uint32_t[::1] seeds not None,
              const int64_t[::1] expected not None, keep):
        """Turn checks on. `expected` holds, for each piece, the address of the checksum of its first block."""
        if expected.shape[0] != self.num_pieces or seeds.shape[0] != file_bytes.shape[0] or block_bytes < 1:
            raise ValueError("one expected checksum a piece, one seed and size a file")
        self.checked = True
        self._block_bytes = block_bytes
        self._file_bytes, self._seeds, self._expected = file_bytes, seeds, expected
        self._keep = (self._keep, keep)

    def check_records(self, const uint32_t[::1] seeds not None, const int64_t[::1] number not None,
                      const uint32_t[::1] checksum not None, keep):
        """Turn checks on for pieces that are whole records: the number and checksum of each, the seed of each file."""
        if number.shape[0] != self.num_pieces or checksum.shape[0] != self.num_pieces:
            raise ValueError("one number and one checksum a piece")
        self.records = True
        self._seeds, self._number, self._checksum = seeds, number, checksum
        self._keep = (self._keep, keep)

    cdef Extent _extent(self, Py_ssize_t i) noexcept nogil:
        cdef Extent e
        cdef int64_t begin = self._offset[i], end = begin + self._length[i], block = self._block_bytes
        e.first, e.last = begin, end
        if self.checked and begin < end:
            e.first = begin // block * block
            # Rounded up without passing the file's end, which a manifest may claim to lie just below 2**63.
            e.last = min((end - 1) // block * block, self._file_bytes[self._file[i]] - block) + block
        if not self.direct:             # all of it goes through scratch
            e.head_end = e.tail_begin = e.last
            return e
        e.head_end = e.first if e.first == begin else e.first + min(block, e.last - e.first)
        e.tail_begin = e.last if e.last == end else max(e.head_end, end // block * block)
        return e

    cdef int32_t _deliver(self, Py_ssize_t i, Extent e, const char *head, const char *tail) noexcept nogil:
        """Check the blocks of a piece, and bring what lies in scratch into place."""
        cdef int64_t begin = self._offset[i], end = begin + self._length[i]
        cdef int64_t at, size, block, first_block, bad
        cdef uint32_t found
        cdef const char *source
        cdef const uint32_t *expected
        cdef Field *field
        cdef int f
        cdef char *target = <char *> <size_t> (self._base[0, self._batch[i]] + self._element[i] * self._fields[0].out)
        if self.checked and begin < end:
            expected = <const uint32_t *> <size_t> self._expected[i]
            first_block = e.first // self._block_bytes
            at = e.first
            while at < e.last:
                size = min(self._block_bytes, e.last - at)
                if at < e.head_end:
                    source = head + (at - e.first)
                elif at >= e.tail_begin:
                    source = tail + (at - e.tail_begin)
                else:
                    source = target + (at - begin)
                block = at // self._block_bytes
                found = gl_block_crc(self._seeds[self._file[i]], <uint64_t> block, <const uint8_t *> source,
                                     <size_t> size)
                if found != expected[block - first_block]:
                    self._detail[i, 0] = block
                    self._detail[i, 1] = <int64_t> ((<uint64_t> expected[block - first_block] << 32) | found)
                    return _CORRUPT
                at += size
        if self.records:
            source = head
            if self.direct:
                source = target
            found = gl_block_crc(self._seeds[self._file[i]], <uint64_t> self._number[i], <const uint8_t *> source,
                                 <size_t> (end - begin))
            if found != self._checksum[i]:
                self._detail[i, 0] = self._number[i]
                self._detail[i, 1] = <int64_t> ((<uint64_t> self._checksum[i] << 32) | found)
                return _CORRUPT
        if self.direct:
            if begin < e.head_end:
                memcpy(target, head + (begin - e.first), <size_t> (min(e.head_end, end) - begin))
            at = max(begin, e.tail_begin)
            if at < end:
                memcpy(target + (at - begin), tail + (at - e.tail_begin), <size_t> (end - at))
            return _DONE
        for f in range(self._num_fields):
            field = &self._fields[f]
            target = <char *> <size_t> (self._base[f, self._batch[i]] + self._element[i] * field.out)
            bad = gl_convert(field.from_type, field.to_type, head + (begin - e.first) + field.offset,
                             <size_t> self._row_bytes, target, <size_t> field.inner, <size_t> field.cell,
                             <size_t> ((end - begin) // self._row_bytes))
            if bad != -1:
                self._detail[i, 0] = f
                self._detail[i, 1] = bad
                return _OVERFLOW
        return _DONE

    cdef int32_t _read(self, Py_ssize_t i, int descriptor, char *scratch, bint cached_only) noexcept nogil:
        cdef Extent e = self._extent(i)
        cdef char *tail = scratch + (e.head_end - e.first)
        cdef int64_t begin = self._offset[i], got
        cdef iovec parts[3]
        cdef int num_parts = 0, cached
        if e.first == e.last:
            return _DONE
        if e.head_end > e.first:
            parts[num_parts].iov_base = scratch
            parts[num_parts].iov_len = <size_t> (e.head_end - e.first)
            num_parts += 1
        if e.tail_begin > e.head_end:
            parts[num_parts].iov_base = <void *> <size_t> (
                self._base[0, self._batch[i]] + self._element[i] * self._fields[0].out + (e.head_end - begin))
            parts[num_parts].iov_len = <size_t> (e.tail_begin - e.head_end)
            num_parts += 1
        if e.last > e.tail_begin:
            parts[num_parts].iov_base = tail
            parts[num_parts].iov_len = <size_t> (e.last - e.tail_begin)
            num_parts += 1
        if cached_only:
            cached = gl_read_cached(descriptor, parts, num_parts, e.first, e.last - e.first)
            if cached != 1:
                return _PENDING if cached == 0 else _CANNOT_TELL
        else:
            got = gl_read_all(descriptor, parts, num_parts, e.first)
            if got < 0:
                return <int32_t> -got
            if got < e.last - e.first:
                self._detail[i, 0] = max(got - (begin - e.first), 0)
                return _SHORT
        return self._deliver(i, e, scratch, tail)

    cdef int64_t _scratch_bytes(self, Py_ssize_t i) noexcept nogil:
        cdef Extent e = self._extent(i)
        return (e.head_end - e.first) + (e.last - e.tail_begin)

    def run(self, const int32_t[::1] order not None, Sources sources not None, bint cached_only=False):
        """Read those of the pieces named in `order` that are pending, each from its own file.

        Cached pages are copied first, while the kernel is asked for the others, which are then waited for; with
        `cached_only` these stay pending. Return whether all pages were cached.
        """
        cdef Py_ssize_t k = 0, low, f, n = order.shape[0], num_cold = 0
        cdef int64_t most = 0
        cdef char *scratch
        cdef int32_t *cold
        cdef int32_t *cold_file
        cdef int32_t i, status
        cdef bint can_tell = True, all_cached = True
        cdef Source *source
        cdef Extent e
        if sources._num_pieces != n:
            raise ValueError("one file a piece")
        with nogil:
            for k in range(n):
                most = max(most, self._scratch_bytes(order[k]))
            scratch = <char *> malloc(<size_t> max(most, 1))
            cold = <int32_t *> malloc(<size_t> max(n, 1) * 2 * sizeof(int32_t))
            cold_file = cold + n
            low = 0
            for f in range(sources._count):
                source = &sources._files[f]
                if source.map != NULL and scratch != NULL and all_cached:
                    all_cached = self._copy_mapped(&order[low], source, scratch)
                for k in range(low, low + source.count):
                    i = order[k]
                    if self._status[i] != _PENDING:
                        continue
                    if scratch == NULL or cold == NULL:
                        self._status[i] = ENOMEM
                        continue
                    if self.cancelled:
                        break
                    if can_tell:
                        status = self._read(i, source.descriptor, scratch, True)
                        if status == _CANNOT_TELL:
                            can_tell = False
                        elif status != _PENDING:
                            self._status[i] = status
                            continue
                    all_cached = False
                    if cached_only:
                        continue
                    e = self._extent(i)
                    gl_will_need(source.descriptor, e.first, e.last - e.first)
                    cold[num_cold] = i
                    cold_file[num_cold] = <int32_t> f
                    num_cold += 1
                low += source.count
            for k in range(num_cold):
                if self.cancelled:
                    break
                self._status[cold[k]] = self._read(cold[k], sources._files[cold_file[k]].descriptor, scratch, False)
            free(scratch)
            free(cold)
        return all_cached

    cdef bint _copy_mapped(self, const int32_t *order, Source *source, char *scratch) noexcept nogil:
        """Copy pending pieces from a memory map, as long as none waits for the disk. Return whether none did.

        What a file that was cut short had behind its new end reads as zeros up to the end of the page, so nothing
        counts that was copied from such a file: it stays pending, as does what could not be copied.
        """
        cdef Py_ssize_t k
        cdef int32_t status
        cdef Copying copying
        copying.order, copying.source, copying.scratch, copying.all_cached = order, source, scratch, False
        if not gl_attempt(<gl_body> _copy_pieces, <void *> self, &copying):
            copying.all_cached = False
        status = _DONE if gl_file_bytes(source.descriptor) >= source.map_bytes else _PENDING
        for k in range(source.count):
            if self._status[order[k]] == _COPIED:
                self._status[order[k]] = status
        return copying.all_cached and status == _DONE

    cdef bint _copy_piece(self, Py_ssize_t i, const char *map, char *scratch) noexcept nogil:
        """Copy a piece from a memory map. Return whether it is right; why not is for the ordinary way to find out."""
        cdef Extent e = self._extent(i)
        cdef int64_t begin = self._offset[i], end = begin + self._length[i], at = e.first, size, inner
        cdef uint32_t found
        cdef const uint32_t *expected
        cdef const char *target
        if not self.direct:
            memcpy(scratch, map + e.first, <size_t> (e.last - e.first))
            return self._deliver(i, e, scratch, scratch) == _DONE
        target = <const char *> <size_t> (self._base[0, self._batch[i]] + self._element[i] * self._fields[0].out)
        memcpy(<void *> target, map + begin, <size_t> (end - begin))
        if not self.checked or begin == end:
            return self._deliver(i, e, scratch, scratch) == _DONE
        expected = <const uint32_t *> <size_t> self._expected[i]
        while at < e.last:
            size = min(self._block_bytes, e.last - at)
            found = gl_block_place(self._seeds[self._file[i]], <uint64_t> (at // self._block_bytes))
            inner = at
            if inner < begin:                   # not wanted, so checked where it lies; what is wanted, where it went
                found = gl_crc32c(found, <const uint8_t *> map + inner, <size_t> (min(begin, at + size) - inner))
                inner = min(begin, at + size)
            if inner < min(end, at + size):
                found = gl_crc32c(found, <const uint8_t *> target + (inner - begin),
                                  <size_t> (min(end, at + size) - inner))
                inner = min(end, at + size)
            if inner < at + size:
                found = gl_crc32c(found, <const uint8_t *> map + inner, <size_t> (at + size - inner))
            if found != expected[0]:
                return False
            expected += 1
            at += size
        return True

    def forget(self, const int32_t[::1] order not None, Sources sources not None):
        """Drop the cached pages of some pieces and make them pending, so that reading them again asks the device."""
        cdef Py_ssize_t k, low = 0, f
        cdef Source *source
        cdef Extent e
        if sources._num_pieces != order.shape[0]:
            raise ValueError("one file a piece")
        with nogil:
            for f in range(sources._count):
                source = &sources._files[f]
                for k in range(low, low + source.count):
                    e = self._extent(order[k])
                    if source.descriptor < 0:
                        continue
                    if source.map != NULL:  # the page cache keeps what is mapped
                        gl_unmap_pages(source.map, source.map_bytes, e.first, e.last - e.first)
                    gl_dont_need(source.descriptor, e.first, e.last - e.first)
                    self._status[order[k]] = _PENDING
                source.map = NULL           # to be read again by the ordinary way
                low += source.count

    def num_pending(self):
        """Return how many pieces have not been read."""
        cdef Py_ssize_t i, count = 0
        for i in range(self.num_pieces):
            count += self._status[i] == _PENDING
        return count

    def num_bytes(self):
        """Return the bytes of all pieces, without what checks add."""
        cdef Py_ssize_t i
        cdef int64_t total = 0
        for i in range(self.num_pieces):
            total += self._length[i]
        return total

    def num_ranges(self):
        """Return how many ranges the pieces need, and how many bytes of scratch."""
        cdef Py_ssize_t i, n = 0
        cdef int64_t scratch = 0
        cdef Extent e
        with nogil:
            for i in range(self.num_pieces):
                e = self._extent(i)
                n += (e.head_end > e.first) + (e.tail_begin > e.head_end) + (e.last > e.tail_begin)
                scratch += self._scratch_bytes(i)
        return n, scratch

    def fill_ranges(self, int32_t scratch_buffer, int32_t[::1] piece not None, int32_t[::1] file not None,
                    int64_t[::1] offset not None, int64_t[::1] length not None, int32_t[::1] buffer not None,
                    int64_t[::1] position not None):
        """Write the ranges to read: into place where that can be, into the scratch buffer where it cannot."""
        cdef Py_ssize_t i, r = 0
        cdef int64_t scratch = 0, begin, from_
        cdef int64_t bounds[4]
        cdef int part
        cdef Extent e
        with nogil:
            for i in range(self.num_pieces):
                e = self._extent(i)
                begin = self._offset[i]
                bounds[0], bounds[1], bounds[2], bounds[3] = e.first, e.head_end, e.tail_begin, e.last
                for part in range(3):
                    from_ = bounds[part]
                    if bounds[part + 1] == from_:
                        continue
                    piece[r] = <int32_t> i
                    file[r] = self._file[i]
                    offset[r] = from_
                    length[r] = bounds[part + 1] - from_
                    if part == 1:
                        buffer[r] = self._batch[i]
                        position[r] = self._element[i] * self._fields[0].out + (from_ - begin)
                    else:
                        buffer[r] = scratch_buffer
                        position[r] = scratch
                        scratch += length[r]
                    r += 1

    def finish(self, const uint8_t[::1] scratch not None):
        """Check and lay out every piece still pending, its ranges having been read as `fill_ranges` says.

        `scratch` has at least one byte.
        """
        cdef Py_ssize_t i
        cdef const char *head = <const char *> &scratch[0]
        cdef Extent e
        with nogil:
            for i in range(self.num_pieces):
                e = self._extent(i)
                if self._status[i] == _PENDING:
                    self._status[i] = self._deliver(i, e, head, head + (e.head_end - e.first))
                head += self._scratch_bytes(i)


cdef struct Copying:
    const int32_t *order
    Source *source
    char *scratch
    bint all_cached


cdef void _copy_pieces(ReadJob job, Copying *copying) noexcept nogil:
    """Copy pending pieces until one waits for the disk. Left by a jump if the file ends early or its disk fails."""
    cdef Py_ssize_t k, copied = 0, count = copying.source.count
    cdef int64_t faults = gl_major_faults()
    cdef const char *map = copying.source.map
    cdef int32_t i
    cdef Extent e, following
    for k in range(count):
        i = copying.order[k]
        if job._status[i] != _PENDING:
            continue
        e = job._extent(i)
        if job.cancelled or e.last > copying.source.map_bytes:
            return
        if k + 1 < count:
            following = job._extent(copying.order[k + 1])
            gl_prefetch(map + following.first, following.last - following.first)
        if job._copy_piece(i, map, copying.scratch):
            job._status[i] = _COPIED
        copied += 1
        if copied % _PIECES_PER_LOOK == 0 and gl_major_faults() != faults:
            return
    copying.all_cached = gl_major_faults() == faults
