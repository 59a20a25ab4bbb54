"""The file of one column group of one shard, as it grows: its rows, their hash and the checksums of its blocks."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from guideloom._typing import AnyArray
from guideloom.formats.schema import Schema
from guideloom.storage.checksums import BlockChecksums
from guideloom.storage.durable import NewFile
from guideloom.storage.hashing import BackgroundHash
from guideloom.storage.names import CHECKSUMS_SUFFIX, DATA_SUFFIX, SHARDS_FOLDER, new_stem, seed_of
from guideloom.storage.records import FileEntry

_BUFFER_BYTES = 1024 * 1024


class GroupFile:
    """Rows of one column group, gathered and written a mebibyte at a time, and hashed beside that.

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
        self._sha256 = BackgroundHash()
        self._checksums = BlockChecksums(file_seed=self._seed)
        self._spare: AnyArray | None = None
        self._filled = 0
        self._fill(self._new_buffer())
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

    def append_same(self, rows: AnyArray) -> None:
        """Append rows of the one field's dtype, or of all fields'; at the cost of little more than the copy."""
        end = self._filled + len(rows)
        if end <= len(self._buffer):
            self._target[self._filled : end] = rows
            self._filled = end
            self.rows += len(rows)
        else:
            names = rows.dtype.names
            self.append([rows] if names is None else [rows[name] for name in names])

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
        self._sha256.close()
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
        self._data.check_process()  # in a child the thread that hashes is not there
        self._sha256.update(view)  # which is done with the spare buffer, then
        self._checksums.update(view)
        self._data.write(view)
        full = self._buffer
        self._fill(self._new_buffer() if self._spare is None else self._spare)
        self._spare = full

    def _new_buffer(self) -> AnyArray:
        # Rows are stored field by field, so that padding keeps these zeros whatever the caller's holds.
        return np.zeros(max(1, _BUFFER_BYTES // self._group.row_bytes), self._group.dtype)

    def _fill(self, buffer: AnyArray) -> None:
        self._buffer = buffer
        self._bytes = buffer.view(np.uint8).data
        self._columns: list[AnyArray] = [buffer[field.name] for field in self._group.fields]
        self._target: AnyArray = buffer if len(self._columns) > 1 else self._columns[0]
        self._filled = 0
