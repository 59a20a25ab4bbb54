"""The writer of one shard of documents."""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from guideloom._speedups.documents import join_arrays
from guideloom._typing import AnyArray, Int64Array, UInt8Array
from guideloom.formats.compression import codec
from guideloom.formats.encoding import BytesLike, Encoding, NumericEncoding, sections_of
from guideloom.formats.jagged import Jagged
from guideloom.formats.rows import encode_rows
from guideloom.storage.document_file import DocumentFiles
from guideloom.storage.document_manifest import MAX_DOCUMENT_BYTES, DocumentManifest
from guideloom.storage.writer import ShardWriter

# Documents are gathered until they have so many bytes, or are so many.
_BUFFER_BYTES = 1024 * 1024
_BUFFER_DOCUMENTS = 16 * 1024
_COUNT = np.dtype("<u4")


class DocumentShardWriter(ShardWriter[DocumentFiles]):
    """Writes one shard of documents. Made by `DocumentStorage.writer`; a context manager.

    The shard appears, complete, when it is closed without an error, and belongs to the dataset from the next
    `DocumentStorage.commit`. An exception inside the ``with`` block, or `abort`, leaves nothing behind. Neither does a
    writer that is never closed; a warning on the logger ``guideloom`` tells of it. A writer belongs to one thread of
    the process that made it.

    Parameters
    ----------
    root : Path
        Folder of the dataset.
    number : int
        Number of the shard.
    manifest : DocumentManifest
        How documents are stored.
    encoding : Encoding
        What makes bytes of them.

    Raises
    ------
    WriteError
        If the files cannot be made.
    """

    def __init__(self, root: Path, number: int, manifest: DocumentManifest, encoding: Encoding) -> None:
        self._manifest = manifest
        self._encoding = encoding
        self._numeric = encoding if isinstance(encoding, NumericEncoding) else None
        self._sections = sections_of(encoding)
        self._header = _COUNT.itemsize * max(len(self._sections) - 1, 0)
        self._codec = codec(manifest.compression)
        self._pending: list[BytesLike] = []
        self._pending_bytes = 0
        self._lengths: list[int] = []
        self._decoded: list[int] = []
        self._counts: list[list[int]] = []
        super().__init__(root, number, [functools.partial(DocumentFiles, root, number, len(self._sections))])

    @property
    def documents(self) -> int:
        """Documents appended so far."""
        return self._rows

    def append(self, value: Any) -> None:
        """Append one document.

        Parameters
        ----------
        value : object
            What the dataset's encoding takes; copied.

        Raises
        ------
        ValueError or TypeError
            If the encoding refuses it, or it takes more than 2**31 - 1 bytes; the writer goes on without it.
        WriteError
            If the system refused to write. This is final: the shard cannot be published.
        ClosedError
            If the writer is closed, aborted or failed, or belongs to the parent of this process.
        """
        self._check_open()
        counts: list[int] = []
        if self._numeric is not None:
            arrays = self._numeric.to_arrays(value)
            counts = [len(array) for array in arrays]
            parts = [array.tobytes() for array in arrays]
            head = np.array(counts[:-1], _COUNT).tobytes() if self._header else b""
            data: BytesLike = b"".join([head, *parts])
        else:
            data = bytes(self._encoding.encode(value))
        _check_size(len(data))
        decoded_bytes = len(data)
        if self._codec is not None:
            data = self._codec.compress(data)
            _check_size(len(data))
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._lengths.append(len(data))
        self._decoded.append(decoded_bytes)
        self._counts.append(counts)
        self._rows += 1
        if self._pending_bytes >= _BUFFER_BYTES or len(self._lengths) >= _BUFFER_DOCUMENTS:
            self._flush()

    def extend(self, documents: Jagged | Mapping[str, Jagged] | Iterable[Any]) -> None:
        """Append many documents.

        Parameters
        ----------
        documents : Jagged, mapping of str to Jagged, or iterable
            For numeric documents the field of each, as `read_batch` gives them: the fast way. A lone field needs no
            name. Else values, as `append` takes them.

        Raises
        ------
        As `append`; jagged arrays are appended all or, if they are refused, none.
        """
        if isinstance(documents, Jagged):
            (name,) = [name for section in self._sections for name in section.names] or [""]
            documents = {name: documents}
        if isinstance(documents, Mapping):
            self._extend_arrays(documents)
            return
        for value in documents:
            self.append(value)

    def _extend_arrays(self, fields: Mapping[str, Jagged]) -> None:
        self._check_open()
        names = [name for section in self._sections for name in section.names]
        if sorted(fields) != sorted(names):
            raise ValueError(f"jagged arrays of the fields {list(fields)} do not make documents of {names}")
        offsets: list[Int64Array] = []
        arrays: list[UInt8Array] = []
        for section in self._sections:
            first = fields[section.names[0]]
            for name in section.names:
                if not np.array_equal(fields[name].offsets, first.offsets):
                    raise ValueError(f"the rows of {name!r} and {section.names[0]!r} differ in length")
            if len(first) != len(fields[names[0]]):
                raise ValueError(
                    f"{names[0]!r} has {len(fields[names[0]])} documents, {section.names[0]!r} {len(first)}"
                )
            rows: AnyArray = encode_rows(section, {name: fields[name].values for name in section.names})
            offsets.append(first.offsets)
            arrays.append(rows.reshape(-1).view(np.uint8))
        bounds = np.stack(offsets)
        counts = np.ascontiguousarray(np.diff(bounds).T)
        row_bytes = np.array([section.row_bytes for section in self._sections], np.int64)
        decoded = counts @ row_bytes + self._header
        if len(decoded):
            _check_size(int(decoded.max()))
        ends = np.cumsum(decoded)
        low = done = 0
        while low < len(decoded):
            high = max(int(np.searchsorted(ends, done + _BUFFER_BYTES, "right")), low + 1)
            high = min(high, low + _BUFFER_DOCUMENTS)
            self._extend_piece(arrays, bounds[:, low : high + 1], row_bytes, decoded[low:high], counts[low:high])
            low, done = high, int(ends[high - 1])

    def _extend_piece(
        self,
        arrays: list[UInt8Array],
        bounds: Int64Array,
        row_bytes: Int64Array,
        decoded: Int64Array,
        counts: Int64Array,
    ) -> None:
        if len(arrays) == 1:
            data = arrays[0][bounds[0, 0] * row_bytes[0] : bounds[0, -1] * row_bytes[0]]
        else:
            data = np.empty(int(decoded.sum()), np.uint8)
            addresses = np.array([array.__array_interface__["data"][0] for array in arrays], np.int64)
            join_arrays(addresses, np.ascontiguousarray(bounds), row_bytes, data)
        lengths = decoded
        if self._codec is not None:
            ends = np.cumsum(decoded).tolist()
            frames = [
                self._codec.compress(data[end - size : end].data) for end, size in zip(ends, decoded, strict=True)
            ]
            lengths = np.array([len(frame) for frame in frames], np.int64)
            data = np.frombuffer(b"".join(frames), np.uint8)
        self._flush()
        self._write(data, lengths, decoded, counts)
        self._rows += len(lengths)

    def _flush(self) -> None:
        if not self._lengths:
            return
        data = np.frombuffer(b"".join(self._pending), np.uint8)
        counts = np.array(self._counts, np.int64).reshape(len(self._lengths), len(self._sections))
        self._write(data, np.array(self._lengths, np.int64), np.array(self._decoded, np.int64), counts)
        self._pending, self._pending_bytes = [], 0
        self._lengths, self._decoded, self._counts = [], [], []

    def _write(self, data: UInt8Array, lengths: Int64Array, decoded: Int64Array, counts: Int64Array) -> None:
        try:
            self._files[0].append(data, lengths, decoded, counts)
        except BaseException as error:
            self._fail(error)
            raise

    def _publish_files(self) -> bytes:
        self._flush()
        return self._manifest.shard_record(self._files[0].publish())


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_DOCUMENT_BYTES:
        raise ValueError(f"a document of {num_bytes} bytes is longer than {MAX_DOCUMENT_BYTES}; cut it")
