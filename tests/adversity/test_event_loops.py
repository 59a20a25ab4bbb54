"""Event loops of every kind: one after the other, of uvloop or not, busy, in notebooks."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import guideloom as gl
from tests.adversity.programs import succeeds
from tests.datasets.opened import OneMethod
from tests.loader.samples import ids
from tests.streams import counted, store, stream_files

FILES = stream_files(counted([4000, 0, 96_000], "<i4"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return store(FILES, tmp_path)


def test_one_dataset_in_two_loops_one_after_the_other(root: Path) -> None:
    """C51: nothing is tied to the first loop; no warning of anything left open (they are errors here)."""
    for location in (root, gl.MemoryBackend(FILES), OneMethod(FILES)):
        dataset = gl.open_dataset(location, window=4)
        reader = dataset.async_reader()

        async def main(reader: Any = reader) -> list[int]:
            async with reader:
                assert ids(await reader.read_batch([5, 3])) == [5, 3]
                return [ids(batch)[0] async for batch in reader.batches(5000)]

        assert asyncio.run(main()) == asyncio.run(main()) == [0, 5000, 10_000, 15_000, 20_000]
        with dataset.sync_reader() as sync:
            assert asyncio.run(main())[0] == 0
            assert sync[7]["tokens"][0] == 28


def test_loops_in_several_threads_share_a_dataset(root: Path) -> None:
    dataset = gl.open_dataset(root, window=4)

    def work(seed: int) -> bool:
        async def main() -> bool:
            async with dataset.async_reader() as reader:
                for i in range(50):
                    assert ids(await reader.read_batch([i, seed])) == [i, seed]
            return True

        return asyncio.run(main())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))


POLICIES = """
    import asyncio, os, sys
    before = sys.argv[2] == "before"
    if before:
        import uvloop
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    if sys.argv[2] == "without":
        sys.modules["uvloop"] = None
    import guideloom as gl
    from tests.loader.samples import ids
    if sys.argv[2] == "after":
        import uvloop
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

    dataset = gl.open_dataset(sys.argv[1], window=4)
    async def main():
        async with dataset.async_reader() as reader:
            return [(await reader.read(i))["tokens"].tolist() for i in range(100)]
    expected = [list(range(4 * i, 4 * i + 4)) for i in range(100)]
    assert asyncio.run(main()) == expected
    with dataset.sync_reader() as reader:
        assert [reader[i]["tokens"].tolist() for i in range(100)] == expected
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert [reader[i]["tokens"].tolist() for i in range(100)] == expected
                assert asyncio.run(main()) == expected
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        loop = type(reader._opened[0]._loop).__module__
    with gl.Loader(dataset, 1000) as loader:
        assert sum(len(ids(batch)) for batch in loader) == len(dataset)
    print(loop)
"""


@pytest.mark.parametrize(
    ("when", "module"), [("before", "uvloop"), ("after", "uvloop"), ("without", "asyncio.unix_events")]
)
def test_uvloop_as_policy_or_not_at_all(root: Path, when: str, module: str) -> None:
    """C53: the policy set before or after the import, or uvloop not installed: the same windows, also in a fork."""
    assert succeeds(POLICIES, root, when).strip() == module


@pytest.mark.parametrize("kind", ["local", "memory", "custom"])
def test_a_full_executor_of_the_program_does_not_hold_up_reads(root: Path, kind: str) -> None:
    """C54: both threads of the loop's own executor are busy; ours are others, however large the batch."""
    backends: dict[str, Any] = {"local": root, "memory": gl.MemoryBackend(FILES), "custom": OneMethod(FILES)}
    release = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(2))
        busy = [loop.run_in_executor(None, release.wait, 30) for _ in range(2)]
        try:
            dataset = gl.open_dataset(backends[kind], window=4, fields={"tokens": np.int64})
            async with dataset.async_reader() as reader:
                begin = time.monotonic()
                assert (await reader.read(3))["tokens"].tolist() == [12, 13, 14, 15]
                batch = await asyncio.wait_for(reader.read_batch(range(25_000)), 5)
                assert batch["tokens"].reshape(-1).tolist() == list(range(100_000))
                assert time.monotonic() - begin < 1
        finally:
            release.set()
            await asyncio.gather(*busy)

    asyncio.run(main())


def test_a_loop_goes_on_while_large_batches_are_read(root: Path) -> None:
    """C50: 20 MB of batches; other coroutines run meanwhile."""
    dataset = gl.open_dataset(root, window=1000, stride=20)

    async def main() -> None:
        gaps: list[float] = []

        async def ticker() -> None:
            while True:
                begin = time.monotonic()
                await asyncio.sleep(0.005)
                gaps.append(time.monotonic() - begin)

        ticking = asyncio.create_task(ticker())
        async with dataset.async_reader() as reader:
            async for batch in reader.batches(100, shuffle=True):
                assert batch["tokens"].shape[1] == 1000
                await asyncio.sleep(0)
        ticking.cancel()
        assert sorted(gaps)[len(gaps) // 2] < 0.05

    asyncio.run(main())
