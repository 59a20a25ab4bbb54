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
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar, cast

from guideloom.errors import ClosedError

P = ParamSpec("P")
T = TypeVar("T")

# A close waits so long for the loop's thread; a read that hangs in the kernel must not hang the program.
CLOSE_SECONDS = 5.0
# How often a consumer that waits looks whether anybody still works for it.
LIVENESS_SECONDS = 1.0

_CLOSED = "this reader or loader is closed"
_FORKED = "this reader or loader was made in the parent process; make a new one in the child"

logger = logging.getLogger("guideloom")

_running: set[asyncio.Task[Any]] = set()  # the loops themselves hold tasks only weakly


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
        # Also run at interpreter exit, in an order that lets pending tasks be cancelled.
        self._finalizer = weakref.finalize(self, _stop, self._loop, self._thread, self._pid, at_end)
        self._thread.start()

    @property
    def usable(self) -> bool:
        """Whether the bridge is open, and of this process."""
        return self._finalizer.alive and self._pid == os.getpid()

    def run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the loop, await what it returns, and return the result.

        Raises
        ------
        ClosedError
            If the bridge is closed, belongs to the parent process, or is called from its own loop.
        Exception
            What the function raised.
        """
        call = self.start(function, *args, **kwargs)
        try:
            return call.result(self.check)
        except BaseException:
            self.call_soon(call.cancel)
            raise

    def start(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        """Call a function in the loop without waiting for the result. Raises ``ClosedError`` as `run` does."""
        self.check()
        call = Call(partial(function, *args, **kwargs))
        self.call_soon(call.begin)
        return call

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
        return bridge.run(lambda: coroutine)
    finally:
        bridge.close()


class Call(Generic[T]):
    """What another thread asked the loop to do, and what came of it.

    Not a ``concurrent.futures.Future``: an interrupt can leave that locked, and the loop waiting for the lock for ever.

    Parameters
    ----------
    function : callable
        Called in the loop; returns a coroutine.
    """

    def __init__(self, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.done = False
        self._function = function
        self._outcome: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Call the function; in the loop."""
        self._task = asyncio.get_running_loop().create_task(self._function())
        _running.add(self._task)
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """Cancel it; in the loop."""
        if self._task is not None:
            self._task.cancel()

    def result(self, check: Callable[[], None]) -> T:
        """Wait for what comes of it, and return or raise that; once, and from any thread.

        Parameters
        ----------
        check : callable
            Called now and then; raises if nothing can come any more.
        """
        while True:
            with contextlib.suppress(Empty):  # of this queue: one that the function raised is an answer
                value, error = self._outcome.get(timeout=LIVENESS_SECONDS)
                break
            check()
        if error is not None:
            raise error
        return cast(T, value)

    def _finish(self, task: asyncio.Task[T]) -> None:
        _running.discard(task)
        self.done = True
        if task.cancelled():
            self._outcome.put((None, ClosedError(_CLOSED)))
        elif (error := task.exception()) is not None:
            self._outcome.put((None, error))
        else:
            self._outcome.put((task.result(), None))


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        while True:
            try:
                return loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                continue  # of a task: whoever waits for it gets it too, and the others go on
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
    # A garbage collection can bring the loop's own thread here, and an interrupt a thread that has not begun.
    if threading.current_thread() is not thread and thread.ident is not None:
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
        self._pump = bridge.start(_pump, make, close, self._items, self._news, self._wanted)

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
            if self._pump.done and not self._items:
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
            self._bridge.call_soon(self._pump.cancel)


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
