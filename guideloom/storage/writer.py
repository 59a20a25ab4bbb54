"""The writer of one shard: visible when it is closed without an error, and else never there."""

import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from guideloom.errors import ClosedError, WriteError
from guideloom.storage.claims import Claim
from guideloom.storage.durable import remove, sync_folder, write_file
from guideloom.storage.names import SHARD_SUFFIX, SHARDS_FOLDER

_OPEN, _PUBLISHED, _ABORTED, _FAILED = "open", "published", "aborted", "failed"

_logger = logging.getLogger("guideloom")


class ShardFile(Protocol):
    """A file of a shard, as it grows."""

    @property
    def stem(self) -> str:
        """Name of the file, unique, without suffix."""

    def remove(self) -> None:
        """Remove what was written, whether it took its name or not."""


FileT = TypeVar("FileT", bound=ShardFile)


class ShardWriter(ABC, Generic[FileT]):
    """Writes one shard, of whatever kind: from its files' first bytes to its publication. A context manager.

    The shard appears, complete, when it is closed without an error, and belongs to the dataset from the next commit.
    An exception inside the ``with`` block, or `abort`, leaves nothing behind. Neither does a writer that is never
    closed; a warning on the logger ``guideloom`` tells of it. A writer belongs to one thread of
    the process that made it.

    Parameters
    ----------
    root : Path
        Folder of the dataset.
    number : int
        Number of the shard.
    make_files : sequence of callable
        Each makes one of the shard's files; the shard is named after the first.

    Raises
    ------
    WriteError
        If the files cannot be made.
    """

    _suffix = SHARD_SUFFIX  # of the manifest that says what was written

    def __init__(self, root: Path, number: int, make_files: Iterable[Callable[[], FileT]]) -> None:
        self._folder = root / SHARDS_FOLDER
        self._number = number
        self._rows = 0
        self._pid = os.getpid()
        self._state = _OPEN
        self._reason = ""  # of a failure
        self._files: list[FileT] = []
        self._claims: list[Claim] = []  # the one that is held, if any
        self._lost = weakref.finalize(self, _abandon, self._files, self._claims, number, os.getpid())
        try:
            for make in make_files:
                self._files.append(make())
        except BaseException as error:
            self._fail(error)
            raise

    @abstractmethod
    def _publish_files(self) -> bytes:
        """Give every file its name, and return the shard's manifest."""

    @property
    def shard(self) -> int:
        """Number of the shard."""
        return self._number

    def hold(self, claim: Claim | None) -> None:
        """Keep a claim to the shard as long as the writer is open."""
        self._claims += [] if claim is None else [claim]

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
        manifest = self._folder / (self._files[0].stem + self._suffix)
        try:
            self._publish(manifest)
            self._state = _PUBLISHED
            self._lost.detach()
            self._files.clear()
            _release(self._claims)
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

    def __enter__(self) -> Self:
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
        return f"<{type(self).__name__} shard={self._number} rows={self._rows} {self._state}>"

    def _publish(self, path: Path) -> None:
        manifest = self._publish_files()
        sync_folder(self._folder)
        write_file(path, manifest)

    def _check_open(self) -> None:
        if self._claims:
            self._claims[0].refresh()
        if self._state != _OPEN:
            raise ClosedError(
                f"the writer of shard {self._number} is {self._state}{self._reason}; make another with "
                "the storage's writer",
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
        if self._pid == os.getpid():
            _release(self._claims)


def _release(claims: list[Claim]) -> None:
    while claims:
        claims.pop().release()


def _abandon(files: Sequence[ShardFile], claims: list[Claim], number: int, pid: int) -> None:
    """Clean up after a writer that was neither closed nor aborted; in a child of its process it is only a copy."""
    if pid != os.getpid():
        return
    for file in files:
        file.remove()
    _release(claims)
    _logger.warning(
        "shard %d was not closed, and is not published: use `with storage.writer(...)`, or close it", number
    )
