"""SHA-256 of a file as it is written, on a thread beside the one that writes."""

import hashlib
import threading
from queue import SimpleQueue
from typing import Protocol

# Less is hashed at once: it takes about as long as to hand it over.
_LEAST_BYTES = 64 * 1024


class _Hash(Protocol):
    def update(self, data: memoryview, /) -> None: ...


class BackgroundHash:
    """A SHA-256 that is computed while its owner goes on: one piece at a time, so that memory stays bounded.

    The thread starts with the first large piece, and ends with `hexdigest`, `close`, or its owner. Belongs to one
    thread of one process: in a forked child it may only be dropped.
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._pieces: SimpleQueue[memoryview | None] = SimpleQueue()
        self._done: SimpleQueue[Exception | None] = SimpleQueue()
        self._started = False
        self._pending = False

    def update(self, piece: memoryview) -> None:
        """Take the next piece, which must not change before the next call of any method returns.

        Waits for the piece before, and raises what went wrong with it.
        """
        self._wait()
        if len(piece) < _LEAST_BYTES:
            self._sha256.update(piece)
            return
        if not self._started:
            self._started = True
            # A daemon: nothing waits at exit for the hash of a shard that is not published.
            arguments = (self._sha256, self._pieces, self._done)
            threading.Thread(target=_work, args=arguments, name="guideloom-hash", daemon=True).start()
        self._pending = True
        self._pieces.put(piece)

    def hexdigest(self) -> str:
        """Return the hash of all pieces, and end the thread."""
        self._wait()
        self.close()
        return self._sha256.hexdigest()

    def close(self) -> None:
        """Let the thread end. May be called again."""
        if self._started:
            self._pieces.put(None)

    def __del__(self) -> None:
        self.close()

    def _wait(self) -> None:
        if self._pending:
            error = self._done.get()
            self._pending = False
            if error is not None:
                raise error


def _work(sha256: _Hash, pieces: "SimpleQueue[memoryview | None]", done: "SimpleQueue[Exception | None]") -> None:
    while (piece := pieces.get()) is not None:
        error = None
        try:
            sha256.update(piece)
        except Exception as raised:
            error = raised
        del piece
        done.put(error)
