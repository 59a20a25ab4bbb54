"""The file of one column group of one shard, as it grows: its rows, their hash and the checksums of its blocks."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from guideloom._typing import AnyArray
from guideloom.formats.schema import Schema
from guideloom.storage.checksums import BlockChecksums
from guideloom.storage.durable import NewFile
from guideloom.storage.names import CHECKSUMS_SUFFIX, DATA_SUFFIX, SHARDS_FOLDER, new_stem, seed_of
from guideloom.storage.records import FileEntry

_BUFFER_BYTES = 1024 * 1024


class GroupFile:
    """Rows of one column group, gathered and written a mebibyte at a time.

    Parameters
    ----------
    root : Path
        Folder of the dataset.
    number : int
        Number of the shard.
    group : Schema
        Rows of the group.

    Attributes
    ----------
    stem : str
        Name of the file, unique, without suffix.
    rows : int
        Rows so far.
    """

    def __init__(self, root: Path, number: int, group: Schema) -> None:
        self.stem = new_stem(number)
        self.rows = 0
        self._group = group
        self._folder = root / SHARDS_FOLDER
        self._seed = seed_of(self.stem)
        self._sha256 = hashlib.sha256()
        self._checksums = BlockChecksums(file_seed=self._seed)
        # Rows are stored field by field, so that padding keeps the zeros of this buffer whatever the caller's holds.
        self._buffer = np.zeros(max(1, _BUFFER_BYTES // group.row_bytes), group.dtype)
        self._bytes = self._buffer.view(np.uint8).data
        self._columns: list[AnyArray] = [self._buffer[field.name] for field in group.fields]
        self._filled = 0
        self._side: NewFile | None = None
        self._data = NewFile(self._folder / (self.stem + DATA_SUFFIX))

    def append(self, columns: Sequence[AnyArray]) -> None:
        """Append one checked column per field of the group.

        Raises
        ------
        WriteError
            If the file could not be written; it is gone.
        """
        num_rows = len(columns[0])
        room = len(self._buffer) - self._filled
        while num_rows > room:
            self._store([column[:room] for column in columns], room)
            self._flush()
            columns = [column[room:] for column in columns]
            num_rows -= room
            room = len(self._buffer)
        self._store(columns, num_rows)

    def publish(self) -> FileEntry:
        """Give the file and its side file their names, durably once their folder is synced.

        Raises
        ------
        WriteError
            If a step failed.
        """
        self._flush()
        self._side = NewFile(self._folder / (self.stem + CHECKSUMS_SUFFIX))
        self._side.write(self._checksums.finish())
        self._data.publish()
        self._side.publish()
        return FileEntry(
            file=f"{SHARDS_FOLDER}/{self.stem}{DATA_SUFFIX}",
            byte_offset=0,
            bytes=self.rows * self._group.row_bytes,
            sha256=self._sha256.hexdigest(),
            checksums=f"{SHARDS_FOLDER}/{self.stem}{CHECKSUMS_SUFFIX}",
            checksum_seed=self._seed,
        )

    def remove(self) -> None:
        """Remove what was written, whether it took its name or not. No shard manifest may name it."""
        self._data.remove()
        if self._side is not None:
            self._side.remove()

    def _store(self, columns: Sequence[AnyArray], num_rows: int) -> None:
        end = self._filled + num_rows
        for stored, column in zip(self._columns, columns, strict=True):
            stored[self._filled : end] = column
        self._filled = end
        self.rows += num_rows

    def _flush(self) -> None:
        view = self._bytes[: self._filled * self._group.row_bytes]
        self._sha256.update(view)
        self._checksums.update(view)
        self._data.write(view)
        self._filled = 0
