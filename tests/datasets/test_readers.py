"""Samples and batches: awaited, or through the bridge; in a loop, beside one, from threads."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

import guideloom as gl
from guideloom.datasets.readers import AsyncReader
from guideloom.errors import ClosedError, MissingFileError
from tests.datasets.opened import OneMethod, in_memory
from tests.reference import ReferenceWindows, assert_equal, deal, epoch_order
from tests.strategies import deals, prefetches
from tests.streams import counted, store, stream_files

LENGTHS = [33, 0, 1, 66]
WINDOWS = ReferenceWindows(np.arange(100, dtype=np.uint16), 7, 3)
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.SelectorEventLoop, uvloop.new_event_loop]


@pytest.fixture
def dataset(tmp_path: Path) -> gl.StreamDataset:
    return gl.open_dataset(store(stream_files(counted(LENGTHS)), tmp_path), window=7, stride=3)


def run(main: Any, loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop) -> Any:
    with asyncio.Runner(debug=True, loop_factory=loop_factory) as runner:
        return runner.run(main)


def bridges() -> int:
    return sum(thread.name == "guideloom-loop" for thread in threading.enumerate())


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_the_async_reader_reads(dataset: gl.StreamDataset, loop_factory: Any) -> None:
    async def main() -> None:
        async with dataset.async_reader() as reader:
            assert len(reader) == len(WINDOWS) == 32
            sample = await reader.read(10)
            assert sample["tokens"].tolist() == list(range(30, 37))
            assert sample["tokens"].shape == (7,)
            assert_equal(await reader.read_batch([3, 1, 4, 1]), WINDOWS.batch([3, 1, 4, 1]))
            many = await asyncio.gather(*(reader.read(i % 32) for i in range(100)))
            for i, sample in enumerate(many):
                assert sample["tokens"][0] == (i % 32) * 3

    run(main(), loop_factory)
    run(main(), loop_factory)  # C51: another loop, and nothing was tied to the first


def test_the_sync_reader_reads_the_same(dataset: gl.StreamDataset) -> None:
    with dataset.sync_reader() as reader:
        assert len(reader) == 32
        assert reader[10]["tokens"].tolist() == reader.read(10)["tokens"].tolist() == list(range(30, 37))
        assert_equal(reader[2:5], WINDOWS.batch([2, 3, 4]))
        assert_equal(reader.read_batch([3, 1, 4, 1]), WINDOWS.batch([3, 1, 4, 1]))
        assert_equal(reader.read_batch(np.array([-1, 0])), WINDOWS.batch([31, 0]))
        for index, sample in enumerate(reader):
            assert_equal(sample, {"tokens": WINDOWS.batch([index])["tokens"][0].copy()})
        assert index == 31


@given(deals(), prefetches(), st.booleans(), st.integers(0, 2**64 - 1), st.integers(0, 5), st.booleans())
def test_batches_are_those_of_the_plan(
    deal_out: dict[str, Any], prefetch: int | None, shuffle: bool, seed: int, epoch: int, by_bridge: bool
) -> None:
    """Promise 1: every sample once, whatever the prefetch; the same in the loop and beside it."""
    dataset = in_memory(counted(LENGTHS), window=7, stride=3)
    steps = deal(epoch_order(32, shuffle=shuffle, seed=seed, epoch=epoch), **deal_out)
    options: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "epoch": epoch, "prefetch": prefetch}
    for rank in range(deal_out["world_size"]):
        found: list[dict[str, Any]] = []

        async def main(rank: int = rank, found: list[dict[str, Any]] = found) -> None:
            async with dataset.async_reader() as reader:
                found.extend([batch async for batch in reader.batches(**deal_out, rank=rank, **options)])

        if by_bridge:
            with dataset.sync_reader() as reader:
                found.extend(reader.batches(**deal_out, rank=rank, **options))
        else:
            asyncio.run(main())
        assert len(found) == len(steps)
        for step, batch in zip(steps, found, strict=True):
            padded = deal_out["world_size"] > 1 and not deal_out["drop_last"]
            rows = max(len(ids) for ids in step)
            expected = WINDOWS.batch(step[rank])["tokens"]
            assert batch["tokens"].shape == (rows if padded else len(step[rank]), 7)
            assert batch["tokens"][: len(step[rank])].tolist() == expected.tolist()
            assert not batch["tokens"][len(step[rank]) :].any()
            assert ("num_valid" in batch) == padded
            if padded:
                assert batch["num_valid"].shape == ()
                assert int(batch["num_valid"]) == len(step[rank])


def test_batches_refuses_what_makes_no_sense(dataset: gl.StreamDataset) -> None:
    with dataset.sync_reader() as reader:
        wrong: list[dict[str, Any]] = [{"batch_size": 0}, {"rank": 1}, {"rank": -1}, {"world_size": 0}]
        wrong += [{"prefetch": -1}, {"seed": -1}, {"seed": 2**64}, {"shuffle": "no"}]
        for options in wrong:
            with pytest.raises(ValueError, match=next(iter(options)).split("_")[0]):
                next(reader.batches(**{"batch_size": 2, **options}))
        for name in ("batch_size", "seed", "rank", "world_size"):
            inexact: dict[str, Any] = {"batch_size": 2, name: 1.0}
            with pytest.raises(TypeError, match=f"{name} must be an int, not float"):
                next(reader.batches(**inexact))


def test_a_field_that_clashes_with_the_number_of_rows_is_refused() -> None:
    dataset = in_memory([np.zeros(40, np.dtype([("num_valid", "u1")]))], window=4)
    with dataset.sync_reader() as reader:
        with pytest.raises(ValueError, match=r"num_valid.*drop_last=True"):
            next(reader.batches(3, rank=0, world_size=2))
        assert next(reader.batches(3, rank=0, world_size=2, drop_last=True))["num_valid"].shape == (3, 4)


def test_an_unopened_or_closed_reader_says_how_to_open_it(dataset: gl.StreamDataset) -> None:
    reader = dataset.sync_reader()
    for _ in range(2):
        actions: list[Callable[[], object]] = [
            lambda: reader[0],
            lambda: reader.read_batch([0]),
            lambda: next(reader.batches(1)),
        ]
        for action in actions:
            with pytest.raises(ClosedError, match=r"with dataset\.sync_reader\(\) as reader"):
                action()
        with reader:
            assert reader[0]["tokens"][0] == 0
        reader.close()

    async def main() -> None:
        reader = dataset.async_reader()
        for _ in range(2):
            with pytest.raises(ClosedError, match=r"async with dataset\.async_reader\(\) as reader"):
                await reader.read(0)
            with pytest.raises(ClosedError):
                await anext(reader.batches(1))
            async with reader:
                assert (await reader.read(0))["tokens"][0] == 0
            await reader.close()

    run(main())


def test_reprs_say_what_is_read(dataset: gl.StreamDataset) -> None:
    assert "window=7, stride=3" in repr(dataset)
    assert "32 windows of 100 elements in 4 shards" in repr(dataset)
    assert "closed" in repr(dataset.sync_reader())
    with dataset.sync_reader() as reader:
        assert "open" in repr(reader)
    assert "closed" in repr(dataset.async_reader())


def test_a_sync_reader_works_beside_a_running_loop(dataset: gl.StreamDataset) -> None:
    """C50: a notebook has a loop already; blocking calls work there, and awaiting ones do not block it."""

    async def main() -> None:
        with dataset.sync_reader() as reader:
            assert reader[3]["tokens"][0] == 9
            assert next(iter(reader.batches(2)))["tokens"][0, 0] == 0
        assert next(iter(gl.Loader(dataset, 2)))["tokens"][1, 0] == 3
        gaps: list[float] = []

        async def ticker() -> None:
            last = time.monotonic()
            while True:
                await asyncio.sleep(0.01)
                gaps.append(time.monotonic() - last)
                last = time.monotonic()

        ticking = asyncio.create_task(ticker())
        async with dataset.async_reader() as awaited:
            assert (await awaited.read(3))["tokens"][0] == 9
            for _ in range(20):
                assert len([batch async for batch in awaited.batches(3)]) == 11
                await asyncio.sleep(0.005)
        ticking.cancel()
        assert sorted(gaps)[len(gaps) // 2] < 0.05
        assert len(gaps) > 5

    asyncio.run(main())


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_leaving_batches_early_leaves_nothing_running(loop_factory: Any) -> None:
    """Promise 6: a `break` ends what was read ahead."""
    backend = OneMethod(stream_files(counted([1000])))
    dataset = gl.open_dataset(backend, window=5)

    async def main() -> None:
        async with dataset.async_reader() as reader:
            batches = reader.batches(2, prefetch=16)
            async for _ in batches:
                break
            await batches.aclose()  # type: ignore[attr-defined]  # an async generator, as the docs say
            assert asyncio.all_tasks() == {asyncio.current_task()}
            async for _ in reader.batches(2, prefetch=16):
                break
        gc.collect()

    run(main(), loop_factory)
    before = bridges()
    with dataset.sync_reader() as reader:
        for _ in reader.batches(2, prefetch=16):
            break
        assert reader[0]["tokens"][0] == 0
    assert bridges() == before


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_cancelling_a_read_leaves_nothing_running(loop_factory: Any) -> None:
    """T11: a cancelled read ends, with everything it started; the reader goes on."""

    class Slow(OneMethod):
        hang = False

        async def read_range(self, path: str, offset: int, length: int) -> bytes:
            if self.hang:
                await asyncio.Event().wait()
            return await super().read_range(path, offset, length)

    async def main() -> None:
        backend = Slow(stream_files(counted([1000])))
        dataset = await asyncio.to_thread(gl.open_dataset, backend, window=5)
        async with dataset.async_reader() as reader:
            backend.hang = True
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.05)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(reader.batches(3, prefetch=64)), 0.05)
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            backend.hang = False
            assert (await reader.read(1))["tokens"].tolist() == [5, 6, 7, 8, 9]

    run(main(), loop_factory)


def test_an_error_comes_in_place_of_its_batch(tmp_path: Path) -> None:
    """C56, promise 4: batches before it are delivered, then the error, with shard and sample."""
    root = store(stream_files(counted([100, 100])), tmp_path)
    dataset = gl.open_dataset(root, window=10)
    (root / "shards" / "00001-0.bin").unlink()

    async def main() -> None:
        async with dataset.async_reader() as reader:
            batches = reader.batches(4, prefetch=8)
            assert [(await anext(batches))["tokens"][0, 0] for _ in range(2)] == [0, 40]
            with pytest.raises(MissingFileError, match=r"sample 10 of .*: shards/00001-0\.bin is missing") as caught:
                await anext(batches)
            assert caught.value.sample == 10
            assert isinstance(caught.value, FileNotFoundError)

    asyncio.run(main())
    with dataset.sync_reader() as reader:
        again = reader.batches(4, prefetch=8)
        assert [next(again)["tokens"][0, 0] for _ in range(2)] == [0, 40]
        with pytest.raises(MissingFileError, match="sample 10"):
            next(again)


def test_threads_may_share_a_reader(dataset: gl.StreamDataset) -> None:
    """Promise 6."""
    with dataset.sync_reader() as reader, ThreadPoolExecutor(8) as pool:
        for i, sample in enumerate(pool.map(lambda i: reader[i % 32], range(400))):
            assert sample["tokens"][0] == (i % 32) * 3


def test_closing_under_other_threads_ends_their_reads(dataset: gl.StreamDataset) -> None:
    """Nothing hangs: a read that meets a close ends right, or with an error that says so."""
    for _ in range(30):
        reader = dataset.sync_reader()
        reader.open()
        started = threading.Barrier(5)

        def work(reader: Any = reader, started: threading.Barrier = started) -> str:
            started.wait()
            try:
                for i in range(10_000):
                    assert reader[i % 32]["tokens"][0] == (i % 32) * 3
            except ClosedError:
                return "closed"
            return "done"

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(work) for _ in range(4)]
            started.wait()
            reader.close()
            assert {future.result(10) for future in futures} <= {"closed", "done"}


def test_a_reader_that_is_dropped_takes_its_thread_along(dataset: gl.StreamDataset) -> None:
    """C57."""
    before = bridges()
    for _ in range(10):
        reader = dataset.sync_reader()
        reader.open()
        assert reader[0]["tokens"][0] == 0
        del reader
        gc.collect()
    assert bridges() == before


def test_a_reader_pickles_to_one_like_it_and_what_cannot_says_what_can(dataset: gl.StreamDataset) -> None:
    """C49: a reader is sent to another process as its dataset, and opens itself there if it was open here."""
    reader = dataset.sync_reader()
    with pytest.raises(ClosedError):
        pickle.loads(pickle.dumps(reader))[0]
    with reader:
        with pickle.loads(pickle.dumps(reader)) as copy:
            assert reader[4]["tokens"].tolist() == copy[4]["tokens"].tolist()
        with pytest.raises(TypeError, match="pickle its dataset"):
            pickle.dumps(AsyncReader(dataset))
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(reader.batches(2))
