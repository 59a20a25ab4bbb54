"""The writer of one shard of a stream."""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from guideloom.formats.rows import check_rows
from guideloom.formats.schema import Schema
from guideloom.storage.group_file import GroupFile
from guideloom.storage.records import ShardEntry
from guideloom.storage.stream_manifest import encode_shard
from guideloom.storage.writer import ShardWriter


class StreamShardWriter(ShardWriter[GroupFile]):
    """Writes one shard of a stream. Made by `StreamStorage.writer`; a context manager.

    The shard appears, complete, when it is closed without an error, and belongs to the dataset from the next
    `StreamStorage.commit`. An exception inside the ``with`` block, or `abort`, leaves nothing behind. Neither does a
    writer that is never closed; a warning on the logger ``guideloom`` tells of it. A writer belongs to one thread of
    the process that made it.

    Parameters
    ----------
    root : Path
        Folder of the dataset.
    number : int
        Number of the shard.
    schema : Schema
        What a row holds.
    groups : tuple of Schema
        The column groups that rows are stored in, a file for each.

    Raises
    ------
    WriteError
        If the files cannot be made.
    """

    def __init__(self, root: Path, number: int, schema: Schema, groups: tuple[Schema, ...]) -> None:
        self._schema = schema
        self._groups = groups
        self._positions = [[schema.names.index(name) for name in group.names] for group in groups]
        self._same_dtype, self._same_ndim = _same(schema) if len(groups) == 1 else (None, 0)
        super().__init__(root, number, [functools.partial(GroupFile, root, number, group) for group in groups])

    @property
    def rows(self) -> int:
        """Rows appended so far."""
        return self._rows

    def append(self, rows: Any) -> None:
        """Append rows; all of them, or, if they are refused, none.

        Parameters
        ----------
        rows : mapping of str to array-like, structured array, or array-like
            A column for each field, of shape ``(n, *field.shape)``, n any number: lists, tensors, arrays of any byte
            order. Integers may be of any dtype that the values fit. A stream of one field also takes its column as
            such. The data are copied.

        Raises
        ------
        ValueError
            If a value does not fit its field (named with its position in this call), a field is missing or unknown, or
            lengths or shapes differ.
        TypeError
            If a column is of a kind that its field does not take.
        WriteError
            If the system refused to write. This is final: the shard cannot be published.
        ClosedError
            If the writer is closed, aborted or failed, or belongs to the parent of this process.
        """
        self._check_open()
        if type(rows) is np.ndarray and rows.dtype is self._same_dtype and rows.ndim == self._same_ndim:
            try:
                self._files[0].append_same(rows)
            except BaseException as error:
                self._fail(error)
                raise
            self._rows += len(rows)
            return
        columns = check_rows(self._schema, rows)
        try:
            for file, positions in zip(self._files, self._positions, strict=True):
                file.append([columns[position] for position in positions])
        except BaseException as error:
            self._fail(error)
            raise
        self._rows += len(columns[0])

    def _publish_files(self) -> bytes:
        entries = tuple(file.publish() for file in self._files)
        return encode_shard(self._schema, self._groups, ShardEntry(self._number, self._rows, entries))


def _same(schema: Schema) -> tuple[np.dtype[Any] | None, int]:
    """Return dtype and number of dimensions of arrays that are rows as they are, without a look at their values."""
    (field, *others) = schema.fields
    if not others and not field.shape and not schema.has_padding:
        return field.dtype, 1
    return None, 0
