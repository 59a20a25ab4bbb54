"""Read documents: many batches in one go, numeric ones straight into jagged arrays."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from guideloom._speedups.documents import CONTRADICTION, DAMAGED_ROW, lay_out, locate, plan_arrays
from guideloom._speedups.documents import OVERFLOW as LAY_OUT_OVERFLOW
from guideloom._speedups.reading import BYTES_CODE, CORRUPT, OVERFLOW, SHORT, Buffers, ReadJob
from guideloom._typing import AnyArray, Int32Array, Int64Array, UInt8Array, UInt32Array
from guideloom.backends.base import ReadBackend, errno_error, short_read
from guideloom.datasets.jobs import JobRunner
from guideloom.datasets.samples import NUM_VALID, Allocate, Sample, for_sample
from guideloom.datasets.selection import Output
from guideloom.errors import BackendError, ConversionError, CorruptionError, DecodeError
from guideloom.formats.compression import codec
from guideloom.formats.encoding import Encoding
from guideloom.formats.jagged import Jagged
from guideloom.storage.document_index import DocumentIndex
from guideloom.storage.document_manifest import MAX_DOCUMENT_BYTES, DocumentManifest

JaggedBatch: TypeAlias = dict[str, "Jagged | AnyArray"]
DocumentBatch: TypeAlias = "JaggedBatch | list[Any]"

logger = logging.getLogger("guideloom")

# A batch that would take more is refused before anything is allocated for it: sizes in a dataset may be hostile.
MOST_BATCH_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True)
class Column:
    """A field of numeric documents that is delivered.

    Parameters
    ----------
    output : Output
        The field.
    section : int
        The array of a document that holds it.
    offset : int
        Its place in an element of that.
    """

    output: Output
    section: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Located:
    """Where some documents lie, an entry for each, and what went wrong."""

    sample: Int64Array
    file: Int32Array
    record: Int64Array
    offset: Int64Array
    length: Int64Array
    decoded: Int64Array
    size: Int64Array  # bytes of memory, at its largest
    checksum: UInt32Array
    counts: Int64Array  # of shape (n, num_sections)
    failures: dict[int, Exception]


class DocumentReader:
    """Reads documents from an open backend.

    Parameters
    ----------
    backend : ReadBackend
        Open; it stays open until the last read has ended.
    manifest : DocumentManifest
        What there is.
    encoding : Encoding
        What makes values of documents, if they are not numeric.
    columns : sequence of Column
        The fields to deliver of numeric documents, in the order that the caller named them; else none.
    location : str
        How to call the dataset in messages.
    """

    def __init__(
        self,
        backend: ReadBackend,
        manifest: DocumentManifest,
        encoding: Encoding,
        columns: Sequence[Column],
        location: str,
    ) -> None:
        shards = manifest.shards
        self._manifest = manifest
        self._encoding = encoding
        self._columns = columns
        self._location = location
        self._jobs = JobRunner(backend)
        self._codec = codec(manifest.compression)
        self._paths = [shard.data.file for shard in shards]
        self._data_bytes = np.array([shard.data.bytes for shard in shards], np.int64)
        self._seeds = np.array([shard.data.checksum_seed for shard in shards], np.uint32)
        self._index_paths = [shard.index.file for shard in shards]
        self._index_seeds = np.array([shard.index.checksum_seed for shard in shards], np.uint32)
        self._starts = np.zeros(len(shards) + 1, np.int64)
        np.cumsum([shard.documents for shard in shards], out=self._starts[1:])
        self._row_bytes = manifest.index_dtype.itemsize
        index_bytes = np.array([shard.index.bytes for shard in shards], np.int64)
        self._index = DocumentIndex(backend, self._index_paths, index_bytes, self._row_bytes)
        self._section_bytes = np.array([section.row_bytes for section in manifest.sections], np.int64)
        # Bytes that an element of each section takes as delivered.
        self._delivered_bytes = np.zeros(len(self._section_bytes), np.int64)
        for column in columns:
            self._delivered_bytes[column.section] += column.output.num_bytes
        # The bytes of a document are those of its only array, and can be read into place.
        self._direct = bool(columns) and len(self._section_bytes) == 1 and self._codec is None

    @property
    def sample_bytes(self) -> int:
        """Bytes of a mean document, as delivered."""
        manifest = self._manifest
        mean = manifest.decoded_bytes // max(manifest.num_documents, 1)
        if self._columns:
            mean = mean * int(self._delivered_bytes.sum()) // int(self._section_bytes.sum())
        return mean

    async def read(
        self, samples: Int64Array, valid: Sequence[int], total: Sequence[int], allocate: Allocate = np.empty
    ) -> list[DocumentBatch | Exception]:
        """Read some batches.

        Parameters
        ----------
        samples : int64 array of shape (sum of `valid`,)
            Documents, batch after batch.
        valid, total : sequence of int
            Rows of each batch that hold documents, and rows it has; in numeric batches the others are empty, in lists
            they are missing.
        allocate : callable
            Takes a shape and a dtype and returns the array to deliver.

        Returns
        -------
        list of batch or Exception
            Of numeric documents, a dict of str to `Jagged`; of others, a list of values. A batch that could not be
            read is the error instead; it costs no other batch.
        """
        bounds = np.zeros(len(total) + 1, np.int64)
        np.cumsum(valid, out=bounds[1:])
        found = await self._locate(samples)
        self._bound(found, bounds)
        if self._columns:
            results = await self._read_arrays(found, bounds, total, allocate)
        else:
            results = await self._read_values(found, bounds)
        for i, error in sorted(found.failures.items()):
            batch = int(np.searchsorted(bounds, i, "right")) - 1
            if not isinstance(results[batch], Exception):
                results[batch] = for_sample(error, int(samples[i]), self._location)
        return results

    async def read_one(self, sample: int) -> Sample | Any:
        """Read one document, or raise what its error is: a dict of its arrays if it is numeric, else its value."""
        (result,) = await self.read(np.array([sample], np.int64), [1], [1])
        if isinstance(result, Exception):
            raise result
        if isinstance(result, list):
            return result[0]
        return {name: field.values for name, field in result.items() if isinstance(field, Jagged)}

    def samples_of(self, batch: DocumentBatch) -> Iterator[Sample | Any]:
        """Yield the documents of a batch, each owning its memory."""
        if isinstance(batch, list):
            yield from batch
            return
        fields = {name: field.rows() for name, field in batch.items() if isinstance(field, Jagged)}
        for rows in zip(*fields.values(), strict=True):
            yield {name: row.copy() for name, row in zip(fields, rows, strict=True)}

    def check_padding(self) -> None:
        """Raise ``ValueError`` if a batch could not say how many of its rows are documents."""
        if any(column.output.name == NUM_VALID for column in self._columns):
            raise ValueError(f"the field {NUM_VALID!r} clashes with what padded batches carry; use drop_last=True")

    def mark_valid(self, batch: DocumentBatch, rows: int) -> None:
        """Say in a batch how many of its rows are documents; a list has no others."""
        if isinstance(batch, dict):
            batch[NUM_VALID] = np.array(rows)

    async def _locate(self, samples: Int64Array) -> _Located:
        n = len(samples)
        file = (np.searchsorted(self._starts, samples, "right") - 1).astype(np.int32)
        record = samples - self._starts[file]
        found = _Located(
            sample=samples,
            file=file,
            record=record,
            offset=np.zeros(n, np.int64),
            length=np.zeros(n, np.int64),
            decoded=np.zeros(n, np.int64),
            size=np.zeros(n, np.int64),
            checksum=np.zeros(n, np.uint32),
            counts=np.zeros((n, len(self._section_bytes)), np.int64),
            failures={},
        )
        damaged = await self._locate_some(found, None)
        if len(damaged):
            lasting = await self._locate_some(found, damaged)
            healed = {int(file[i]) for i in np.setdiff1d(damaged, lasting).tolist() if i not in found.failures}
            for shard in healed:
                self._index.forget(shard)
                logger.warning("%s: damaged bytes were read right at the second attempt", self._index_paths[shard])
        return found

    async def _locate_some(self, found: _Located, again: Int64Array | None) -> Int64Array:
        """Fill in all documents, or some of them again; return those whose rows are damaged: twice is an error."""
        file, record = found.file, found.record
        if again is None:
            address, keep, failures = await self._index.rows(file, record)
        else:
            address = np.zeros(len(file), np.int64)
            address[again], keep, failures = await self._index.rows(file[again], record[again], afresh=True)
            failures = {int(again[i]): error for i, error in failures.items()}
        status, detail = np.zeros(len(file), np.int32), np.zeros((len(file), 2), np.int64)
        locate(
            address, record, file, self._data_bytes, self._index_seeds, self._row_bytes, self._section_bytes,
            self._delivered_bytes, self._codec is not None, MAX_DOCUMENT_BYTES, found.offset, found.length,
            found.decoded, found.size, found.checksum, found.counts, status, detail,
        )  # fmt: skip
        del keep
        found.failures.update(failures)
        if not status.any():
            return np.empty(0, np.int64)
        for i in np.flatnonzero(status == CONTRADICTION).tolist():
            found.failures[i] = self._contradiction(int(file[i]), int(record[i]))
        damaged = np.flatnonzero(status == DAMAGED_ROW)
        if again is not None:
            for i in damaged.tolist():
                found.failures[i] = self._damaged_row(int(file[i]), *map(int, detail[i]))
        return damaged

    def _bound(self, found: _Located, bounds: Int64Array) -> None:
        """Leave out the documents of batches that would take too much memory, before it is allocated."""
        if int(found.size.sum()) <= MOST_BATCH_BYTES:
            return
        for low, high in itertools.pairwise(bounds.tolist()):
            num_bytes = int(found.size[low:high].sum())
            if num_bytes > MOST_BATCH_BYTES:
                found.length[low:high] = found.decoded[low:high] = found.counts[low:high] = 0
                found.failures[low] = BackendError(
                    f"the batch would take {num_bytes} bytes, and at most {MOST_BATCH_BYTES} are allowed; use smaller "
                    "batches"
                )

    async def _read_arrays(
        self, found: _Located, bounds: Int64Array, total: Sequence[int], allocate: Allocate
    ) -> list[DocumentBatch | Exception]:
        num_batches, num_sections, n = len(total), len(self._section_bytes), len(found.sample)
        batch_of, element = np.empty(n, np.int32), np.empty((n, num_sections), np.int64)
        all_offsets = np.empty((num_sections, sum(total) + num_batches), np.int64)
        plan_arrays(found.counts, bounds, np.array(total, np.int64), batch_of, element, all_offsets)
        batches: list[JaggedBatch] = []
        arrays: list[list[AnyArray]] = [[] for _ in self._columns]
        begin = 0
        for rows in total:
            end = begin + rows + 1
            batch: JaggedBatch = {}
            for column, made in zip(self._columns, arrays, strict=True):
                offsets = all_offsets[column.section, begin:end]
                array = allocate((int(offsets[-1]), *column.output.field.shape), column.output.dtype)
                made.append(array)
                batch[column.output.name] = Jagged._trusted(array, offsets)
            batches.append(batch)
            begin = end
        if self._direct:
            flat = [array for made in arrays for array in made]
            fields = [column.output.code(column.offset) for column in self._columns]
            row_bytes = int(self._section_bytes[0])
            await self._run(found, batch_of, element.reshape(-1), flat, row_bytes, fields)
            return list(batches)
        raw, places = await self._read_raw(found, bounds, batch_of)

        def work() -> None:
            for number, (low, high) in enumerate(itertools.pairwise(bounds.tolist())):
                targets = [made[number] for made in arrays]
                self._lay_out(found, raw[number], places[low:high], element[low:high], low, targets)

        await self._jobs.call(work, int(found.decoded.sum()) if self._codec is None else None)
        return list(batches)

    async def _read_values(self, found: _Located, bounds: Int64Array) -> list[DocumentBatch | Exception]:
        batch_of = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
        raw, begin = await self._read_raw(found, bounds, batch_of)
        results: list[list[Any]] = [[] for _ in raw]

        def work() -> None:
            for number, (low, high) in enumerate(itertools.pairwise(bounds.tolist())):
                self._decode(found, raw[number], begin[low:high].tolist(), low, results[number])

        await self._jobs.call(work, None)
        return list(results)

    async def _read_raw(
        self, found: _Located, bounds: Int64Array, batch_of: Int32Array
    ) -> tuple[list[UInt8Array], Int64Array]:
        """Read the stored bytes of each batch, documents back to back; return them, and where each begins."""
        ends = np.zeros(len(found.sample) + 1, np.int64)
        np.cumsum(found.length, out=ends[1:])
        begin = ends[:-1] - ends[bounds[:-1]][batch_of]
        sizes = (ends[bounds[1:]] - ends[bounds[:-1]]).tolist()
        raw = [np.empty(size, np.uint8) for size in sizes]
        await self._run(found, batch_of, begin, raw, 1, [(0, 1, 1, BYTES_CODE, BYTES_CODE)])
        return raw, begin

    async def _run(
        self,
        found: _Located,
        batch_of: Int32Array,
        element: Int64Array,
        arrays: Sequence[AnyArray],
        row_bytes: int,
        fields: Sequence[tuple[int, int, int, int, int]],
    ) -> None:
        """Read the bytes of documents into arrays, a field after the other, and compare them with their checksums."""
        buffers = Buffers(arrays)
        base, sizes = np.empty((len(fields), len(arrays) // len(fields)), np.int64), np.empty(len(arrays), np.int64)
        buffers.fill(base.reshape(-1), sizes)
        n = len(found.sample)
        status, detail = np.empty(n, np.int32), np.zeros((n, 2), np.int64)
        job = ReadJob(
            file=found.file, offset=found.offset, length=found.length, batch=batch_of, element=element, base=base,
            status=status, detail=detail, row_bytes=row_bytes, keep=buffers, fields=fields,
        )  # fmt: skip
        job.check_records(self._seeds, found.record, found.checksum, None)
        failures = dict(found.failures)
        status[list(failures)] = CORRUPT  # any status but pending: nothing is read for it
        await self._jobs.run(job, self._paths, found.file, arrays, failures)
        found.failures.update(failures)
        if status.any():
            for i in np.flatnonzero(status).tolist():
                if i not in failures:
                    found.failures[i] = self._error(found, i, int(status[i]), *map(int, detail[i]))

    def _lay_out(
        self,
        found: _Located,
        data: UInt8Array,
        begin: Int64Array,
        element: Int64Array,
        first: int,
        arrays: Sequence[AnyArray],
    ) -> None:
        """Bring the stored bytes of one batch into its arrays."""
        n = len(begin)
        status, detail = np.zeros(n, np.int32), np.zeros((n, 2), np.int64)
        status[[i - first for i in found.failures if first <= i < first + n]] = DAMAGED_ROW  # to be left out
        if self._codec is not None:
            ends = np.cumsum(found.decoded[first : first + n])
            whole = np.empty(int(ends[-1]) if n else 0, np.uint8)
            for i in np.flatnonzero(status == 0).tolist():
                document = self._decompressed(found, first + i, data, int(begin[i]))
                if document is None:
                    status[i] = DAMAGED_ROW
                else:
                    whole[ends[i] - len(document) : ends[i]] = np.frombuffer(document, np.uint8)
            data, begin = whole, ends - found.decoded[first : first + n]
        base = np.array([array.__array_interface__["data"][0] for array in arrays], np.int64)
        fields = [(column.section, *column.output.code(column.offset)) for column in self._columns]
        lay_out(
            data, begin, found.counts[first : first + n], np.ascontiguousarray(element), self._section_bytes, fields,
            base, status, detail,
        )  # fmt: skip
        for i in np.flatnonzero(status != 0).tolist():
            if status[i] == CONTRADICTION:
                found.failures[first + i] = self._undecodable(
                    found, first + i, "its lengths are not those of the index"
                )
            elif status[i] == LAY_OUT_OVERFLOW:
                found.failures[first + i] = self._overflow(found, first + i, int(detail[i, 0]))

    def _decode(self, found: _Located, data: UInt8Array, begin: list[int], first: int, values: list[Any]) -> None:
        """Decode the stored bytes of one batch."""
        view = data.data
        for i, (at, length) in enumerate(zip(begin, found.length[first : first + len(begin)].tolist(), strict=True)):
            if first + i in found.failures:
                continue
            document: memoryview | bytes | None = view[at : at + length]
            if self._codec is not None:
                document = self._decompressed(found, first + i, data, at)
                if document is None:
                    continue
            try:
                values.append(self._encoding.decode(memoryview(document)))  # type: ignore[arg-type]  # not None here
            except Exception as error:  # the user's own, of bytes that may be hostile
                failure = self._undecodable(found, first + i, f"{type(error).__name__}: {error}")
                failure.__cause__ = error
                found.failures[first + i] = failure

    def _decompressed(self, found: _Located, i: int, data: UInt8Array, begin: int) -> bytes | None:
        assert self._codec is not None
        try:
            return self._codec.decompress(data.data[begin : begin + int(found.length[i])], int(found.decoded[i]))
        except ValueError as error:
            found.failures[i] = self._undecodable(found, i, str(error))
            return None

    def _error(self, found: _Located, i: int, status: int, first: int, second: int) -> Exception:
        """Make the error for a document whose bytes could not be read."""
        path, offset, length = self._paths[found.file[i]], int(found.offset[i]), int(found.length[i])
        if status == SHORT:
            return short_read(path, offset, length, first)
        if status == OVERFLOW:
            return self._overflow(found, i, first)
        if status != CORRUPT:
            return errno_error(status, path, offset, length)
        expected, found_checksum = second >> 32 & 0xFFFFFFFF, second & 0xFFFFFFFF
        return CorruptionError(
            f"{path} is damaged: document {first}, bytes {offset} to {offset + length}, should have checksum "
            f"{expected:#010x}, and has {found_checksum:#010x}, twice. Restore the file, or write the shard again",
            path=path,
            offset=offset,
            length=length,
            expected=expected,
            found=found_checksum,
        )

    def _damaged_row(self, file: int, row: int, checksums: int) -> Exception:
        path, offset = self._index_paths[file], row * self._row_bytes
        expected, found = checksums >> 32 & 0xFFFFFFFF, checksums & 0xFFFFFFFF
        return CorruptionError(
            f"{path} is damaged: row {row}, bytes {offset} to {offset + self._row_bytes}, should have checksum "
            f"{expected:#010x}, and has {found:#010x}, twice. Restore the file, or write the shard again",
            path=path,
            offset=offset,
            length=self._row_bytes,
            expected=expected,
            found=found,
        )

    def _contradiction(self, file: int, record: int) -> Exception:
        path, offset = self._index_paths[file], record * self._row_bytes
        return CorruptionError(
            f"{path}: row {record} of the index does not describe a document within the {self._data_bytes[file]} bytes "
            f"of {self._paths[file]}. Whoever wrote the dataset wrote it wrong",
            path=path,
            offset=offset,
            length=self._row_bytes,
        )

    def _undecodable(self, found: _Located, i: int, reason: str) -> DecodeError:
        path, offset, length = self._paths[found.file[i]], int(found.offset[i]), int(found.length[i])
        return DecodeError(
            f"document {int(found.record[i])} of {path}, {length} bytes at offset {offset}, cannot be decoded: "
            f"{reason[:500]}",
            path=path,
            offset=offset,
            length=length,
        )

    def _overflow(self, found: _Located, i: int, column: int) -> ConversionError:
        path, output = self._paths[found.file[i]], self._columns[column].output
        return ConversionError(
            f"field {output.name!r} of document {int(found.record[i])} of {path} holds a value that does not fit "
            f"{output.dtype}; it is stored as {output.field.dtype}; ask for a dtype that holds all of its values",
            field=output.name,
            path=path,
            offset=int(found.offset[i]),
        )
