"""A few daemon threads for reads that may block.

Not a ``ThreadPoolExecutor``: its threads are joined at interpreter exit, where one read that hangs in the kernel
would hang the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue


class ReadPool:
    """Threads that take functions from a queue; started with the first one, ended by `close`.

    Parameters
    ----------
    num_threads : int
        Threads, at least 1.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = False
        self.pid = os.getpid()

    def submit(self, function: Callable[[], object]) -> None:
        """Run a function on some thread. It must not raise."""
        if not self._started:
            with self._lock:
                if not self._started:
                    for i in range(self.num_threads):
                        threading.Thread(
                            target=_work, args=(self._queue,), name=f"guideloom-read-{i}", daemon=True
                        ).start()
                    self._started = True
        self._queue.put(function)

    async def run(self, function: Callable[[], object]) -> None:
        """Run a function on some thread and wait for its end; a cancel frees the caller alone."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if not done.done():
                done.set_exception(error) if error else done.set_result(None)

        def work() -> None:
            error = None
            try:
                function()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, error)

        self.submit(work)
        await done

    def close(self, at_end: Callable[[], object] | None = None) -> None:
        """Let the threads end once they have done what was asked before; does not wait for them.

        Each calls `at_end` before it ends, so that one call comes after all that was asked.
        """
        if self._started:
            for _ in range(self.num_threads):
                if at_end is not None:
                    self._queue.put(at_end)
                self._queue.put(None)

    def __del__(self) -> None:
        self.close()


def _work(queue: SimpleQueue[Callable[[], object] | None]) -> None:
    while (function := queue.get()) is not None:
        function()
        del function  # a job holds a slice of batches
