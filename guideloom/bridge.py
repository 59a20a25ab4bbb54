"""The event loop in a background thread, for callers that have none of their own.

The only module that starts loops, or knows uvloop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast

from guideloom.errors import ClosedError

T = TypeVar("T")

# A close waits so long for the loop's thread; a read that hangs in the kernel must not hang the program.
CLOSE_SECONDS = 5.0
# How often a consumer that waits looks whether anybody still works for it.
LIVENESS_SECONDS = 1.0

_CLOSED = "this reader or loader is closed"
_FORKED = "this reader or loader was made in the parent process; make a new one in the child"

logger = logging.getLogger("guideloom")


def _new_loop() -> asyncio.AbstractEventLoop:
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.SelectorEventLoop()


class Bridge:
    """One event loop on one daemon thread, alive from the first call until `close`.

    Calls block the calling thread; an interrupt there cancels what runs in the loop. A forked child cannot use its
    parent's bridge: it gets a ``ClosedError`` instead of a hang.

    Parameters
    ----------
    at_end : async callable, optional
        Awaited in the loop as the bridge ends, however it ends: by `close`, by garbage collection, or with the program.
    """

    def __init__(self, at_end: Callable[[], Awaitable[None]] | None = None) -> None:
        self._pid = os.getpid()
        self._loop = _new_loop()
        self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name="guideloom-loop", daemon=True)
        self._thread.start()
        # Also run at interpreter exit, in an order that lets pending tasks be cancelled.
        self._finalizer = weakref.finalize(self, _stop, self._loop, self._thread, self._pid, at_end)

    @property
    def usable(self) -> bool:
        """Whether the bridge is open, and of this process."""
        return self._finalizer.alive and self._pid == os.getpid()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result.

        Raises
        ------
        ClosedError
            If the bridge is closed, belongs to the parent process, or is called from its own loop.
        """
        future = self.start(coroutine)
        try:
            while True:
                try:
                    return future.result(LIVENESS_SECONDS)
                except TimeoutError:  # of the wait, or the coroutine's own
                    if future.done():
                        return future.result()
                    self.check()
        except CancelledError:
            raise ClosedError(_CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the loop without waiting for it. Raises as `run` does."""
        try:
            self.check()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:  # ClosedError is one; another thread may close the loop meanwhile
            coroutine.close()
            raise error if isinstance(error, ClosedError) else ClosedError(_CLOSED) from None

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop's thread, soon; nothing happens once the bridge is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Cancel what is running and end the loop and its thread. May be called again."""
        self._finalizer()

    def check_process(self) -> None:
        """Raise ``ClosedError`` in a forked child."""
        if self._pid != os.getpid():
            raise ClosedError(_FORKED)

    def check(self) -> None:
        """Raise ``ClosedError`` if a call could not be answered."""
        self.check_process()
        if not self._finalizer.alive or self._loop.is_closed():  # Thread.is_alive would not survive an interrupt
            raise ClosedError(_CLOSED)
        if threading.current_thread() is self._thread:
            raise ClosedError("a blocking call from the loop's own thread would wait for itself; await it instead")


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run one coroutine to its end on a loop and thread of its own, whether or not this thread has a running loop."""
    bridge = Bridge()
    try:
        return bridge.run(coroutine)
    finally:
        bridge.close()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int, at_end: Callable[[], Awaitable[None]] | None
) -> None:
    if pid != os.getpid() or loop.is_closed():
        return

    async def end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            if at_end is not None:
                await at_end()
        except Exception:
            logger.warning("closing failed", exc_info=True)
        loop.stop()

    with contextlib.suppress(RuntimeError):  # the loop has ended already
        loop.call_soon_threadsafe(lambda: loop.create_task(end()))
    if threading.current_thread() is not thread:  # a garbage collection can bring the loop's own thread here
        thread.join(CLOSE_SECONDS)


class Handover(Generic[T]):
    """Items made on the loop's thread, taken on the consumer's.

    One item is made while the consumer works on another, so taking one rarely waits, and each wakes the loop once.

    Parameters
    ----------
    bridge : Bridge
        Runs `make` and `close`.
    make : async callable
        Returns the next item.
    close : async callable
        Ends what `make` started; called once, whatever happens.
    """

    def __init__(self, bridge: Bridge, make: Callable[[], Awaitable[T]], close: Callable[[], Awaitable[None]]) -> None:
        self._bridge = bridge
        self._items: deque[tuple[T | None, BaseException | None]] = deque()
        self._news: SimpleQueue[None] = SimpleQueue()  # wakes the consumer; what it says stands in the items
        self._wanted = asyncio.Event()
        self._pump = bridge.start(_pump(make, close, self._items, self._news, self._wanted))

    def check_process(self) -> None:
        """Raise ``ClosedError`` in a forked child."""
        self._bridge.check_process()

    def take(self, held: T | None) -> T:
        """Return the item that follows the one held; wait for it if need be.

        An item is let go only once the next call shows that the caller holds it, so an interrupt loses none.

        Parameters
        ----------
        held : object or None
            What the last call returned; ``None`` before the first.

        Raises
        ------
        ClosedError
            If the bridge or this is closed meanwhile, or belongs to the parent process.
        Exception
            What `make` raised; again with each further call.
        """
        if held is not None and self._items and self._items[0][0] is held:
            self._items.popleft()
        if self._bridge.usable:
            self._bridge.call_soon(self._wanted.set)
        while not self._items:
            self._bridge.check()
            if self._pump.done() and not self._items:
                raise ClosedError("reading was stopped from outside")
            with contextlib.suppress(Empty):
                self._news.get(timeout=LIVENESS_SECONDS)
        item, error = self._items[0]
        if error is not None:
            raise error
        return cast(T, item)

    def close(self) -> None:
        """Stop making items. Does not wait for it."""
        if self._bridge.usable:
            self._pump.cancel()


async def _pump(
    make: Callable[[], Awaitable[T]],
    close: Callable[[], Awaitable[None]],
    items: deque[tuple[T | None, BaseException | None]],
    news: SimpleQueue[None],
    wanted: asyncio.Event,
) -> None:
    try:
        while True:
            items.append((await make(), None))
            news.put(None)
            await wanted.wait()
            wanted.clear()
    except asyncio.CancelledError:
        items.append((None, ClosedError("this reader or loader was closed while it was read from")))
        raise
    except BaseException as error:
        items.append((None, error))
    finally:
        news.put(None)
        await close()
