"""Open files: bounded, never closed under a reader, and always the file that was asked for."""

from __future__ import annotations

import errno
import gc
import os
import random
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from guideloom.backends import descriptors as module
from guideloom.backends.descriptors import DescriptorCache, open_regular
from guideloom.errors import BackendError


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Files that hold their own number."""
    for number in range(40):
        (tmp_path / f"{number:02d}").write_bytes(b"%02d" % number)
    return [str(tmp_path / f"{number:02d}") for number in range(40)]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[DescriptorCache]:
    monkeypatch.setattr(module, "_capacity", lambda: 8)
    cache = DescriptorCache()
    yield cache
    cache.close_below("/")
    assert len(cache) == 0


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_file_is_opened_once_and_kept(cache: DescriptorCache, paths: list[str]) -> None:
    """C77: opens are of files, not of reads."""
    first = cache.pin(paths[3])
    cache.unpin(paths[3])
    for _ in range(10):
        assert cache.pin(paths[3]) == first
        cache.unpin(paths[3])
    assert os.pread(first, 9, 0) == b"03"
    assert cache.pin_if_open(paths[3]) == first
    cache.unpin(paths[3])
    assert cache.pin_if_open(paths[4]) == -1


def test_the_least_recently_used_goes_first(cache: DescriptorCache, paths: list[str]) -> None:
    """B3: the number of open files is bounded."""
    before = open_files()
    for path in paths[:8]:
        cache.pin(path)
        cache.unpin(path)
    cache.pin(paths[0])  # so that paths[1] is the oldest
    cache.unpin(paths[0])
    cache.pin(paths[8])
    cache.unpin(paths[8])
    assert cache.pin_if_open(paths[1]) == -1
    assert cache.pin_if_open(paths[0]) >= 0
    cache.unpin(paths[0])
    for path in paths:
        cache.pin(path)
        cache.unpin(path)
    assert len(cache) == 8
    assert open_files() == before + 8


def test_a_pinned_file_stays_open_whatever_happens(cache: DescriptorCache, paths: list[str]) -> None:
    descriptor = cache.pin(paths[0])
    for path in paths[1:]:
        cache.pin(path)
        cache.unpin(path)
    cache.close_below(os.path.dirname(paths[0]))
    assert os.pread(descriptor, 9, 0) == b"00"
    assert len(cache) == 1
    cache.unpin(paths[0])
    assert len(cache) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_more_pins_than_the_bound_are_all_served_and_the_surplus_goes_soon(
    cache: DescriptorCache, paths: list[str]
) -> None:
    before = open_files()
    numbers = [cache.pin(path) for path in paths]
    assert [os.pread(number, 9, 0) for number in numbers] == [b"%02d" % i for i in range(40)]
    for path in paths:
        cache.unpin(path)
    cache.pin(paths[0])
    cache.unpin(paths[0])
    assert open_files() <= before + 8, "what was open beyond the bound is closed when it is no longer in use"


def test_only_files_below_the_root_are_closed(cache: DescriptorCache, tmp_path: Path) -> None:
    for folder in ("data", "data2", "data/below"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_bytes(b"")
        cache.pin(str(tmp_path / folder / "file"))
        cache.unpin(str(tmp_path / folder / "file"))
    cache.close_below(str(tmp_path / "data"))
    assert cache.pin_if_open(str(tmp_path / "data2" / "file")) >= 0
    cache.unpin(str(tmp_path / "data2" / "file"))
    assert len(cache) == 1


def test_a_file_that_cannot_be_opened_leaves_nothing_behind(cache: DescriptorCache, paths: list[str]) -> None:
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            cache.pin(paths[0] + "-missing")
    assert len(cache) == 0


def test_threads_never_see_a_closed_or_another_file(cache: DescriptorCache, paths: list[str]) -> None:
    """B3: eight threads, forty files, room for eight, and a root that is closed all the time."""
    stop = time.monotonic() + 1.0
    before = open_files()

    def work(seed: int) -> int:
        generator = random.Random(seed)
        count = 0
        while time.monotonic() < stop:
            path = generator.choice(paths)
            if generator.random() < 0.3:
                descriptor = cache.pin_if_open(path)
                if descriptor < 0:
                    continue
            else:
                descriptor = cache.pin(path)
            assert os.pread(descriptor, 9, 0) == path[-2:].encode()
            cache.unpin(path)
            count += 1
            if generator.random() < 0.01:
                cache.close_below(os.path.dirname(path))
        return count

    with ThreadPoolExecutor(8) as pool:
        assert min(pool.map(work, range(8))) > 0
    assert len(cache) <= 16  # eight kept, and as many as were pinned at once
    cache.close_below(os.path.dirname(paths[0]))
    assert open_files() == before


def test_many_threads_that_want_one_file_open_it_once(
    cache: DescriptorCache, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def slow_open(path: str) -> int:
        opened.append(path)
        time.sleep(0.05)
        return open_regular(path)

    monkeypatch.setattr(module, "open_regular", slow_open)
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(cache.pin, [paths[0]] * 8))) == 1
    for _ in range(8):
        cache.unpin(paths[0])
    assert opened == [paths[0]]


def test_a_slow_open_holds_up_no_other_file(
    cache: DescriptorCache, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C78: on a slow file system, opens go side by side."""
    entered, release = threading.Event(), threading.Event()

    def slow_open(path: str) -> int:
        if path == paths[0]:
            entered.set()
            assert release.wait(10)
        return open_regular(path)

    monkeypatch.setattr(module, "open_regular", slow_open)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(cache.pin, paths[0])
        assert entered.wait(10)
        assert os.pread(cache.pin(paths[1]), 9, 0) == b"01"
        release.set()
        assert os.pread(slow.result(10), 9, 0) == b"00"
    cache.unpin(paths[0])
    cache.unpin(paths[1])


def test_when_the_process_has_no_descriptor_left_ours_make_room(
    cache: DescriptorCache, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C58: EMFILE, which other code may bring about, is met by closing what is not in use."""
    for path in paths[:8]:
        cache.pin(path)
        cache.unpin(path)
    refusals = 1

    def refuse(path: str) -> int:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return open_regular(path)

    monkeypatch.setattr(module, "open_regular", refuse)
    assert os.pread(cache.pin(paths[20]), 9, 0) == b"20"
    assert len(cache) == 1
    cache.unpin(paths[20])
    refusals = 2
    with pytest.raises(OSError, match="Too many open files"):
        cache.pin(paths[21])


def test_a_collection_may_close_files_at_any_moment(cache: DescriptorCache, paths: list[str], tmp_path: Path) -> None:
    """A backend that is dropped closes its files wherever the collector runs: also where the cache makes room."""

    class Dropped:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            cache.close_below(str(tmp_path))

    before, thresholds = open_files(), gc.get_threshold()
    gc.collect()
    gc.freeze()  # collections look at what is made here alone
    try:
        for allocations in range(1, 60):
            gc.disable()
            for path in paths[:8]:
                cache.pin(path)
                cache.unpin(path)
            Dropped()
            gc.set_threshold(allocations)
            gc.enable()
            descriptor = cache.pin(paths[20])
            assert os.pread(descriptor, 9, 0) == b"20"
            cache.unpin(paths[20])
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    gc.collect()
    cache.close_below(str(tmp_path))
    assert len(cache) == 0
    assert not cache.full
    assert open_files() == before


def test_the_bound_follows_the_limit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """B3: at most 256 files, and at most a quarter of the soft limit."""
    for soft, expected in ((64, 16), (128, 32), (256, 64), (1024, 256), (10**6, 256), (resource.RLIM_INFINITY, 256)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert module._capacity() == expected
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    assert module._capacity() == 8


def test_what_is_no_regular_file_is_closed_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = open_files()
    with pytest.raises(BackendError, match="not a regular file"):
        open_regular(str(tmp_path / "fifo"))
    assert open_files() == before


def test_descriptors_are_not_inherited_by_programs(cache: DescriptorCache, paths: list[str]) -> None:
    assert not os.get_inheritable(cache.pin(paths[0]))
    cache.unpin(paths[0])


def test_a_forked_child_has_descriptors_of_its_own(cache: DescriptorCache, paths: list[str]) -> None:
    """C48: nothing of the parent's is used in the child, not even a lock that another thread held."""
    inherited = cache.pin(paths[0])
    gc.collect()
    with cache._lock:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                cache.forget_after_fork()
                assert len(cache) == 0
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.fstat(inherited)
                assert os.pread(cache.pin(paths[1]), 9, 0) == b"01"
                cache.unpin(paths[0])  # of a pin that the child knows nothing of
                status = 0
            finally:
                os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert os.pread(inherited, 9, 0) == b"00"
    cache.unpin(paths[0])
