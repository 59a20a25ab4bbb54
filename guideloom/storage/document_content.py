"""The two files of a shard of documents, held against their hashes, and the index row by row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from guideloom._speedups.documents import row_checksums
from guideloom.storage.records import StoredFile
from guideloom.storage.verification import Damage

_CHECKSUM_BYTES = 4  # of a row; before it comes that of the document


class DocumentFileContent:
    """The hash of one file of documents as far as it has been read, and the damaged rows of an index.

    Parameters
    ----------
    file : StoredFile
        The file.
    shard : int
        Number of its shard.
    row_bytes : int
        Bytes of a row of an index; 0 for the documents themselves.
    """

    def __init__(self, file: StoredFile, shard: int, row_bytes: int) -> None:
        self.file = file
        self._shard = shard
        self._row_bytes = row_bytes
        self._rows = 0
        self._sha256 = hashlib.sha256()
        self._damages: list[Damage] = []

    def add(self, piece: memoryview) -> None:
        """Take the next bytes: whole rows of an index."""
        if not self._row_bytes:
            self._sha256.update(piece)
            return
        raw = np.frombuffer(piece, np.uint8).reshape(-1, self._row_bytes)
        found = np.empty(len(raw), np.uint32)
        row_checksums(raw, file_seed=self.file.checksum_seed, first=self._rows, out=found)
        stored = np.ascontiguousarray(raw[:, -_CHECKSUM_BYTES:]).view("<u4")[:, 0]
        for row in np.flatnonzero(found != stored).tolist():
            offset = (self._rows + row) * self._row_bytes
            differ = (f"{stored[row]:#010x}", f"{found[row]:#010x}")
            reason = "damaged: the checksum of this row of the index differs"
            self._damages.append(Damage(self.file.file, reason, self._shard, offset, self._row_bytes, *differ))
        self._sha256.update(np.ascontiguousarray(raw[:, : -2 * _CHECKSUM_BYTES]).data)
        self._rows += len(raw)

    def finish(self) -> Iterator[Damage]:
        """Yield what is wrong with the file, all but its size."""
        yield from self._damages
        found = self._sha256.hexdigest()
        if found != self.file.sha256 and not self._damages:
            reason = "damaged or exchanged: its SHA-256 differs"
            yield Damage(self.file.file, reason, self._shard, 0, self.file.bytes, self.file.sha256, found)
