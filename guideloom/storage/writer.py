"""The writer of one shard: visible when it is closed without an error, and else never there."""

import logging
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from guideloom.errors import ClosedError, WriteError
from guideloom.formats.rows import check_rows
from guideloom.formats.schema import Schema
from guideloom.storage.durable import remove, sync_folder, write_file
from guideloom.storage.group_file import SHARDS_FOLDER, GroupFile
from guideloom.storage.manifest import ShardEntry, encode_shard

SHARD_SUFFIX = ".json"

_OPEN, _PUBLISHED, _ABORTED, _FAILED = "open", "published", "aborted", "failed"

_logger = logging.getLogger("guideloom")


class ShardWriter:
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
        self._folder = root / SHARDS_FOLDER
        self._number = number
        self._schema = schema
        self._groups = groups
        self._positions = [[schema.names.index(name) for name in group.names] for group in groups]
        self._rows = 0
        self._state = _OPEN
        self._reason = ""  # of a failure
        self._files: list[GroupFile] = []
        self._lost = weakref.finalize(self, _abandon, self._files, number, os.getpid())
        try:
            for group in groups:
                self._files.append(GroupFile(root, number, group))
        except BaseException as error:
            self._fail(error)
            raise

    @property
    def shard(self) -> int:
        """Number of the shard."""
        return self._number

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
        columns = check_rows(self._schema, rows)
        try:
            for file, positions in zip(self._files, self._positions, strict=True):
                file.append([columns[position] for position in positions])
        except BaseException as error:
            self._fail(error)
            raise
        self._rows += len(columns[0])

    def close(self) -> None:
        """Publish the shard, durably. Closing again does nothing.

        Raises
        ------
        WriteError
            If a step failed. This is final: the shard is not published.
        ClosedError
            If the writer was aborted or failed, or belongs to the parent of this process.
        """
        if self._state == _PUBLISHED:
            return
        self._check_open()
        manifest = self._folder / (self._files[0].stem + SHARD_SUFFIX)
        try:
            self._publish(manifest)
            self._state = _PUBLISHED
            self._lost.detach()
            self._files.clear()
        except BaseException as error:
            if os.path.lexists(manifest):  # a commit may have seen it and count on the data, so these stay
                remove(manifest)
                self._files.clear()
            self._fail(error)
            raise

    def abort(self) -> None:
        """Remove what was written. Aborting again does nothing.

        Raises
        ------
        ClosedError
            If the shard is published.
        """
        if self._state == _PUBLISHED:
            raise ClosedError(f"shard {self._number} is published and cannot be aborted", shard=self._number)
        if self._state == _OPEN:
            self._discard(_ABORTED)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc_type is not None:
            if self._state == _OPEN:
                self._discard(_ABORTED)
        elif self._state != _ABORTED:
            self.close()

    def __repr__(self) -> str:
        return f"<ShardWriter shard={self._number} rows={self._rows} {self._state}>"

    def _publish(self, path: Path) -> None:
        entries = tuple(file.publish() for file in self._files)
        sync_folder(self._folder)
        shard = ShardEntry(self._number, self._rows, entries)
        write_file(path, encode_shard(self._schema, self._groups, shard))

    def _check_open(self) -> None:
        if self._state != _OPEN:
            raise ClosedError(
                f"the writer of shard {self._number} is {self._state}{self._reason}; make another with "
                "StreamStorage.writer",
                shard=self._number,
            )

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, WriteError):
            error.details["shard"] = self._number
        self._reason = f" ({str(error) or type(error).__name__})"
        self._discard(_FAILED)

    def _discard(self, state: str) -> None:
        self._state = state
        self._lost.detach()
        for file in self._files:
            file.remove()
        self._files.clear()


def _abandon(files: Sequence[GroupFile], number: int, pid: int) -> None:
    """Clean up after a writer that was neither closed nor aborted; in a child of its process it is only a copy."""
    if pid != os.getpid():
        return
    for file in files:
        file.remove()
    _logger.warning(
        "shard %d was not closed, and is not published: use `with storage.writer(...)`, or close it", number
    )
