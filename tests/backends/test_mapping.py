"""Memory maps: the same bytes and the same errors as without them, and never the end of the process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import guideloom as gl
from guideloom._speedups.reading import Mapping, guard_copies
from guideloom.backends import LocalBackend
from guideloom.errors import CorruptionError, GuideLoomError
from tests.adversity.programs import run_program
from tests.streams import store, stream_files

pytestmark = pytest.mark.skipif(not os.path.isfile("/proc/self/maps"), reason="memory maps are used on Linux alone")

ROWS = 60_000
WINDOW = 500
DTYPE = np.dtype([("tokens", "<i4"), ("mask", "u1")])


def rows(number: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Rows whose values no page of zeros has."""
    shard = np.zeros(ROWS, DTYPE)
    shard["tokens"] = np.arange(ROWS) + 1 + number * ROWS
    shard["mask"] = shard["tokens"] % 250 + 1
    return shard


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return store(stream_files([rows(0), rows(1)]), tmp_path / "corpus")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A dataset of one field, whose bytes go straight into place."""
    return store(stream_files([shard["tokens"].copy() for shard in (rows(0), rows(1))]), tmp_path / "plain")


def mapped(root: Path) -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if str(root) in line}


def open_mapping(root: Path, *, verify: bool = True, memory_map: bool = True) -> gl.StreamDataset:
    # Nothing is read on the loop's own thread: that is never done from a map, since it must not wait for a disk.
    backend = LocalBackend(root, inline_bytes=0, memory_map=memory_map)
    return gl.open_dataset(backend, window=WINDOW, verify=verify)


def check(found: dict[str, np.ndarray], samples: Sequence[int]) -> None:
    expected = np.concatenate([rows(0), rows(1)])
    for name, array in found.items():
        for row, sample in enumerate(samples):
            assert (array[row] == expected[name][sample * WINDOW : (sample + 1) * WINDOW]).all()


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("kind", ["root", "plain"])
def test_cached_files_are_read_from_maps_which_go_with_the_reader(
    request: pytest.FixtureRequest, kind: str, verify: bool
) -> None:
    path: Path = request.getfixturevalue(kind)
    dataset = open_mapping(path, verify=verify)
    with dataset.sync_reader() as reader:
        samples = list(range(len(dataset)))
        check(reader.read_batch(samples), samples)
        for samples in ([*range(7, len(dataset))], [200, 3, 3, 119, 120], [len(dataset) - 1]):
            check(reader.read_batch(samples), samples)
        assert len(mapped(path)) == 2
    deadline = time.monotonic() + 5
    while mapped(path):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_map_is_made_where_none_is_wanted(root: Path) -> None:
    with open_mapping(root, memory_map=False).sync_reader() as reader:
        for _ in range(3):
            reader.read_batch(list(range(len(reader))))
        assert not mapped(root)


@pytest.mark.parametrize("kind", ["root", "plain"])
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("left", [0, 1, 4096, 100_000, 160_001, -1])
def test_a_file_cut_short_under_its_map_is_an_error_that_names_it(
    request: pytest.FixtureRequest, kind: str, verify: bool, left: int
) -> None:
    """The zeros behind the new end, and the pages that are no more, are neither delivered nor the process's end."""
    path: Path = request.getfixturevalue(kind)
    dataset = open_mapping(path, verify=verify)
    with dataset.sync_reader() as reader:
        samples = list(range(len(dataset)))
        for _ in range(2):
            reader.read_batch(samples)
        file = path / dataset.manifest.shards[0].files[0].file
        size = file.stat().st_size
        keep = left if left >= 0 else size + left
        os.truncate(file, keep)
        row_bytes = size // ROWS
        for sample in samples:
            last_byte = min((sample + 1) * WINDOW, ROWS) * row_bytes
            whole_blocks = last_byte if not verify else min(-(-last_byte // 4096) * 4096, size)
            if sample * WINDOW >= ROWS or whole_blocks <= keep:
                check(reader.read_batch([sample]), [sample])
            else:
                with pytest.raises(GuideLoomError, match=file.name):
                    reader.read_batch([sample])


@pytest.mark.parametrize("verify", [True, False])
def test_a_file_that_is_cut_while_it_is_read_gives_its_data_or_an_error(plain: Path, verify: bool) -> None:
    dataset = open_mapping(plain, verify=verify)
    file = plain / dataset.manifest.shards[0].files[0].file
    data, stop = file.read_bytes(), threading.Event()

    def cut() -> None:
        while not stop.wait(0.0005):
            os.truncate(file, 4096 * (int(time.monotonic() * 1e6) % 40) + 17)

    with dataset.sync_reader() as reader:
        samples = list(range(len(dataset)))
        outcomes = {"read": 0, "refused": 0}
        for _ in range(30):
            file.write_bytes(data)  # in place: the file that is open
            check(reader.read_batch(samples), samples)
            cutter = threading.Thread(target=cut)
            cutter.start()
            try:
                for _ in range(10):
                    try:
                        check(reader.read_batch(samples), samples)
                        outcomes["read"] += 1
                    except GuideLoomError:
                        outcomes["refused"] += 1
            finally:
                stop.set()
                cutter.join()
                stop.clear()
    assert outcomes["refused"] > 0


def test_damage_is_found_in_a_map_and_read_again_without_it(plain: Path) -> None:
    dataset = open_mapping(plain)
    file = plain / dataset.manifest.shards[1].files[0].file
    with dataset.sync_reader() as reader:
        samples = list(range(len(dataset)))
        for _ in range(2):
            reader.read_batch(samples)
        with file.open("r+b") as opened:
            opened.seek(5000)
            opened.write(b"\xff")
        with pytest.raises(CorruptionError, match=file.name) as caught:
            reader.read_batch(samples)
        assert caught.value.offset == 4096
        check(reader.read_batch(samples[:100]), samples[:100])
        with file.open("r+b") as opened:
            opened.seek(5000)
            opened.write(np.int32(ROWS + 1251).tobytes()[:1])
        check(reader.read_batch(samples), samples)


def test_pages_that_left_the_cache_are_asked_for_the_ordinary_way(plain: Path) -> None:
    dataset = open_mapping(plain)

    async def main() -> None:
        async with dataset.async_reader() as reader:
            samples = list(range(len(dataset)))
            for _ in range(4):
                check(await reader.read_batch(samples), samples)
                for shard in dataset.manifest.shards:
                    descriptor = os.open(plain / shard.files[0].file, os.O_RDONLY)
                    os.fsync(descriptor)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(descriptor)

    asyncio.run(main())


def test_what_cannot_be_mapped_has_no_map(tmp_path: Path) -> None:
    (tmp_path / "empty.bin").touch()
    for path in (tmp_path / "empty.bin", Path("/proc/self/status"), Path("/dev/null")):
        descriptor = os.open(path, os.O_RDONLY)
        assert Mapping.of(descriptor) is None
        os.close(descriptor)


WARM_UP = """
    import pathlib, signal, sys
    import guideloom as gl
    from guideloom.backends import LocalBackend
    dataset = gl.open_dataset(LocalBackend(sys.argv[1], inline_bytes=0), window=500)
    reader = dataset.sync_reader().__enter__()
    everything = list(range(len(dataset)))
    mapped = lambda: sys.argv[1] in pathlib.Path("/proc/self/maps").read_text()
    for _ in range(2):
        reader.read_batch(everything)
"""


def test_the_handler_of_a_program_is_left_in_its_place(root: Path) -> None:
    outcome = run_program(
        WARM_UP
        + """
    assert mapped()
    calls = []
    signal.signal(signal.SIGBUS, lambda *_: calls.append(1))
    mine = signal.getsignal(signal.SIGBUS)
    first = reader.read_batch(everything)
    assert signal.getsignal(signal.SIGBUS) is mine
    signal.raise_signal(signal.SIGBUS)
    assert calls == [1]
    reader.__exit__(None, None, None)
    """,
        root,
    )
    assert (outcome.status, outcome.errors) == (0, "")


@pytest.mark.parametrize("how", ["raised", "by a map of the program's own"])
def test_a_bus_error_of_the_programs_own_ends_it_as_ever(root: Path, tmp_path: Path, how: str) -> None:
    outcome = run_program(
        WARM_UP
        + """
    import mmap, os
    if sys.argv[2] == "raised":
        os.kill(os.getpid(), signal.SIGBUS)
    else:
        with open(sys.argv[3], "w+b") as file:
            file.truncate(8192)
            own = mmap.mmap(file.fileno(), 8192)
            file.truncate(0)
            own[0]
    print("still there")
    """,
        root,
        how,
        tmp_path / "own",
    )
    assert (outcome.status, outcome.output) == (-signal.SIGBUS, "")


def test_the_guard_is_in_place() -> None:
    assert guard_copies()
    assert guard_copies()
