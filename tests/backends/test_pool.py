"""The threads that may block."""

from __future__ import annotations

import gc
import os
import threading
import weakref

from guideloom.backends.pool import ReadPool
from tests.backends.test_local import reading_threads, wait_until


def test_threads_start_with_the_first_function_and_end_after_close() -> None:
    before = len(reading_threads())
    pool = ReadPool(3)
    pool.close(bool)  # nothing to end
    assert len(reading_threads()) == before
    done = threading.Event()
    pool.submit(done.set)
    assert done.wait(5)
    assert len(reading_threads()) == before + 3
    assert all(thread.daemon for thread in reading_threads()), "a read that hangs must not hold up the exit"
    pool.close(bool)
    wait_until(lambda: len(reading_threads()) == before)


def test_functions_run_side_by_side() -> None:
    pool = ReadPool(3)
    together = threading.Barrier(3)
    for _ in range(3):
        pool.submit(lambda: together.wait(5))
    wait_until(lambda: together.n_waiting == 0 and not together.broken)
    done = threading.Event()
    pool.submit(done.set)
    assert done.wait(5)
    pool.close(bool)


def test_what_was_asked_for_before_the_close_is_done() -> None:
    pool = ReadPool(2)
    release = threading.Event()
    done: list[int] = []
    for _ in range(2):
        pool.submit(lambda: release.wait(5))
    for i in range(100):
        pool.submit(lambda i=i: done.append(i))  # type: ignore[misc]  # mypy cannot infer the default's type
    done_at_end: list[int] = []
    pool.close(lambda: done_at_end.append(len(done)))
    release.set()
    wait_until(lambda: len(done_at_end) == 2)
    assert len(done) == max(done_at_end) == 100


def test_threads_asking_at_once_start_each_thread_once() -> None:
    before = len(reading_threads())
    for _ in range(20):
        pool = ReadPool(2)
        start = threading.Barrier(8)
        done: list[int] = []

        def submit(pool: ReadPool = pool, start: threading.Barrier = start, done: list[int] = done) -> None:
            start.wait(5)
            pool.submit(lambda: done.append(1))

        threads = [threading.Thread(target=submit) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda done=done: len(done) == 8)
        assert len(reading_threads()) <= before + 2
        pool.close(bool)
        wait_until(lambda: len(reading_threads()) == before)


def test_a_function_that_was_run_is_let_go() -> None:
    """C57: a waiting thread keeps no slice of batches alive."""

    class Job:
        def __call__(self) -> None:
            pass

    pool = ReadPool(1)
    job = Job()
    gone = weakref.ref(job)
    pool.submit(job)
    del job
    wait_until(lambda: gc.collect() >= 0 and gone() is None)
    pool.close(bool)


def test_it_knows_the_process_it_belongs_to() -> None:
    assert ReadPool(1).pid == os.getpid()
