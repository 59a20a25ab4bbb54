"""The loader as a training loop sees it: batches, lengths, order, errors, ends."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import pickle
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import guideloom as gl
from guideloom.errors import ClosedError, ReadError
from tests.datasets.opened import OneMethod, in_memory
from tests.loader.samples import dataset_of, epochs, ids, take
from tests.reference import deal, epoch_order
from tests.strategies import deals, prefetches
from tests.streams import counted, store, stream_files


@given(st.integers(0, 60), deals(), prefetches(), st.booleans(), st.integers(0, 2**64 - 1))
def test_every_sample_once_and_all_ranks_together_the_global_order(
    num_samples: int, deal_out: dict[str, Any], prefetch: int | None, shuffle: bool, seed: int
) -> None:
    """Promise 1: whatever prefetch, batch size, world size; epoch after epoch. C15, C16, C19, C24: steps are equal."""
    dataset = dataset_of(num_samples)
    found = [
        epochs(dataset, 2, **deal_out, rank=rank, shuffle=shuffle, seed=seed, prefetch=prefetch)
        for rank in range(deal_out["world_size"])
    ]
    for epoch in range(2):
        order = epoch_order(num_samples, shuffle=shuffle, seed=seed, epoch=epoch)
        steps = deal(order, **deal_out)
        assert [list(step) for step in zip(*(of_rank[epoch] for of_rank in found), strict=True)] == steps
        delivered = sorted(sample for step in steps for part in step for sample in part)
        dropped = num_samples % (deal_out["batch_size"] * deal_out["world_size"]) if deal_out["drop_last"] else 0
        assert len(delivered) == len(set(delivered)) == num_samples - dropped


def test_batches_are_arrays_that_belong_to_the_caller() -> None:
    """Promise 3."""
    dataset = in_memory(
        [np.zeros(100, np.dtype([("tokens", "<u2"), ("mask", "u1"), ("concepts", "<i4", (4,))]))], window=10
    )
    with gl.Loader(dataset, 4) as loader:
        batches = list(loader)
    assert [len(batch["tokens"]) for batch in batches] == [4, 4, 2]
    shapes = {name: (array.shape, array.dtype.str) for name, array in batches[0].items()}
    assert shapes == {"tokens": ((4, 10), "<u2"), "mask": ((4, 10), "|u1"), "concepts": ((4, 10, 4), "<i4")}
    for batch in batches:
        for array in batch.values():
            assert array.flags.owndata
            assert array.flags.writeable
            assert array.flags.c_contiguous


def test_the_last_batch_may_be_smaller_or_left_out() -> None:
    """C17: 201 samples in pairs; `len` tells how many, before and after a resume."""
    dataset = dataset_of(201)
    for drop_last, count, last in ((True, 100, 2), (False, 101, 1)):
        with gl.Loader(dataset, 2, drop_last=drop_last) as loader:
            assert len(loader) == count
            sizes = [len(batch["tokens"]) for batch in loader]
            assert sizes == [2] * (count - 1) + [last]
            take(loader, 99)
            state = loader.state_dict()
        with gl.Loader(dataset, 2, drop_last=drop_last) as loader:
            loader.load_state_dict(state)
            assert len(loader) == count
            assert len(iter(loader)) == count - 99
            assert [len(batch["tokens"]) for batch in loader] == sizes[99:]


def test_ranks_take_equal_numbers_of_steps() -> None:
    """C15: 145 windows, four ranks, pairs, drop_last: 18 batches each, one window left over. C16, C24."""
    dataset = dataset_of(145)
    for epoch in range(2):
        parts = [
            epochs(dataset, 2, batch_size=2, world_size=4, rank=rank, drop_last=True, shuffle=True)[epoch]
            for rank in range(4)
        ]
        assert [len(part) for part in parts] == [18] * 4
        assert len({sample for part in parts for batch in part for sample in batch}) == 144
    few = dataset_of(3)
    for rank in range(7):
        with gl.Loader(few, 1, rank=rank, world_size=7, drop_last=True) as loader:
            assert len(loader) == 0
            assert list(loader) == []
        with gl.Loader(few, 1, rank=rank, world_size=7) as loader:
            assert len(loader) == 1
            (batch,) = loader
            assert batch["tokens"].shape == (1, 4)  # padded, and marked
            assert len(ids(batch)) == int(batch["num_valid"])


def test_orders_differ_by_epoch_and_by_seed_and_are_the_same_everywhere() -> None:
    """C18, C20: a new order each epoch without being told, the same in another process, whatever PYTHONHASHSEED."""
    dataset = dataset_of(22)
    orders = [
        [sample for batch in epoch for sample in batch]
        for epoch in epochs(dataset, 3, batch_size=5, shuffle=True, seed=5)
    ]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(22)) for order in orders)
    assert epochs(dataset, 1, batch_size=5, shuffle=True, seed=6) != epochs(
        dataset, 1, batch_size=5, shuffle=True, seed=5
    )
    script = (
        "from tests.loader.samples import *\n"
        "print([[s for b in e for s in b] for e in epochs(dataset_of(22), 3, batch_size=5, shuffle=True, seed=5)])"
    )
    for hash_seed in ("0", "1"):
        result = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True,
            env={"PYTHONHASHSEED": hash_seed}, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert result.stdout.strip() == str(orders)


def test_random_generators_of_the_program_are_neither_read_nor_moved() -> None:
    """C21: ranks agree though each has seeded everything else differently."""
    parts = []
    for rank in range(2):
        random.seed(1000 + rank)
        np.random.seed(1000 + rank)
        torch.manual_seed(1000 + rank)
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
        parts.append(epochs(dataset_of(16), 1, rank=rank, world_size=2, shuffle=True, seed=3)[0])
        after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
        assert before == after
    assert sorted(sample for part in parts for batch in part for sample in batch) == list(range(16))


def test_two_billion_samples_cost_nothing() -> None:
    """C22: no array as long as the dataset; the first thousand positions of two ranks in a moment."""
    from guideloom.sampling.order import Order
    from guideloom.sampling.partition import Partition
    from guideloom.sampling.plan import EpochPlan

    begin = time.monotonic()
    seen: set[int] = set()
    for rank in range(2):
        plan = EpochPlan(Order(2_000_000_000, True, 7), Partition(10, rank, 2), 0)
        seen.update(plan.samples(0, 50)[0].tolist())
    assert len(seen) == 1000
    assert min(seen) >= 0
    assert max(seen) < 2_000_000_000
    assert time.monotonic() - begin < 1


@pytest.mark.parametrize("num_samples", [0, 1, 2])
def test_few_samples_or_none(num_samples: int) -> None:
    """C23, C26."""
    for batch_size in (1, 64):
        with gl.Loader(dataset_of(num_samples), batch_size, shuffle=True) as loader:
            assert len(loader) == -(-num_samples // batch_size)
            for epoch in range(3):
                assert sorted(sample for batch in loader for sample in ids(batch)) == list(range(num_samples))
                assert loader.state_dict()["epoch"] == (epoch + 1 if num_samples else 0)


def test_arguments_are_checked() -> None:
    dataset = dataset_of(10)
    for options, error, message in (
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be an int"),
        ({"batch_size": True}, TypeError, "batch_size must be an int"),
        ({"rank": 0}, ValueError, "both rank and world_size"),
        ({"rank": 2, "world_size": 2}, ValueError, r"rank must be in 0 \.\. 1"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": 2**64}, ValueError, "seed"),
        ({"seed": 0.5}, TypeError, "seed must be an int"),
        ({"shuffle": "local"}, ValueError, "shuffle"),
        ({"prefetch": -1}, ValueError, "prefetch"),
        ({"max_bytes_in_flight": 0}, ValueError, "max_bytes_in_flight"),
    ):
        with pytest.raises(error, match=message):
            gl.Loader(dataset, **options)


def test_numpy_integers_are_plain_ones_in_states() -> None:
    """C38."""
    options: dict[str, Any] = {
        "batch_size": np.int32(2),
        "seed": np.uint64(7),
        "rank": np.int8(0),
        "world_size": np.int64(1),
    }
    with (
        gl.Loader(dataset_of(10), **options, shuffle=True) as loader,
        gl.Loader(dataset_of(10), 2, seed=7, shuffle=True) as plain,
    ):
        assert take(loader, 2) == take(plain, 2)
        assert loader.state_dict() == plain.state_dict()
        three: Any = np.int64(3)
        loader.set_epoch(three)
        plain.set_epoch(3)
        assert loader.state_dict() == plain.state_dict()
        for epoch in (True, 1.0, "1"):
            with pytest.raises(TypeError, match="epoch must be an int"):
                loader.set_epoch(epoch)  # type: ignore[arg-type]


def test_it_tells_what_was_and_what_will_be_in_a_step() -> None:
    with gl.Loader(dataset_of(50), 4, shuffle=True, seed=3, rank=1, world_size=2) as loader:
        expected = [[ids(batch) for batch in loader] for _ in range(2)]
        for epoch in range(2):
            for step, samples in enumerate(expected[epoch]):
                assert loader.sample_ids(step, epoch).tolist() == samples
        assert loader.sample_ids(0).tolist() == loader.sample_ids(0, 2).tolist()
        for step in (-1, len(loader)):
            with pytest.raises(IndexError, match=f"not {step}"):
                loader.sample_ids(step)


def test_its_repr_tells_where_it_is() -> None:
    with gl.Loader(dataset_of(50), 4, shuffle=True, seed=3) as loader:
        take(loader, 2)
        for part in ("batch_size=4", "seed=3", "rank 0 of 1", "epoch 0", "batch 2 of 13", "50 windows"):
            assert part in repr(loader)
    assert "closed" in repr(loader)


class Failing(OneMethod):
    """Fails where it is told to, for good or for some times."""

    bad: tuple[int, int] = (10**9, 10**9)
    times = 10**9

    async def read_range(self, path: str, offset: int, length: int) -> bytes:
        if path.endswith(".bin") and offset < self.bad[1] and offset + length > self.bad[0] and self.times:
            self.times -= 1
            raise OSError(errno.EIO, "Input/output error")
        return await super().read_range(path, offset, length)


@pytest.mark.parametrize("prefetch", [0, 1, 4, 64])
def test_an_error_comes_in_its_turn_and_the_position_stands_before_it(prefetch: int) -> None:
    """C56: batches 0 to 5 arrive, then the error with shard, offset and sample; asking again does not hang."""
    backend = Failing(stream_files(counted([50 * 4], "<i4")))
    backend.bad = (30 * 16, 31 * 16)
    dataset = gl.open_dataset(backend, window=4, verify=False)
    begin = time.monotonic()
    with gl.Loader(dataset, 5, prefetch=prefetch) as loader:
        batches = iter(loader)
        assert [ids(next(batches))[0] for _ in range(6)] == [0, 5, 10, 15, 20, 25]
        for _ in range(3):
            with pytest.raises(
                ReadError, match=r"sample 30 of .*: cannot read shards/00000-0\.bin, 16 bytes at offset 480"
            ) as caught:
                next(batches)
            assert isinstance(caught.value, OSError)
            assert caught.value.errno == errno.EIO
            assert (caught.value.sample, caught.value.path, caught.value.offset) == (30, "shards/00000-0.bin", 480)
            assert isinstance(caught.value.__cause__, OSError)
            assert loader.state_dict()["step"] == 6
        assert time.monotonic() - begin < 5
        backend.times = 0  # the fault is repaired
        loader.load_state_dict(loader.state_dict())
        assert [ids(batch)[0] for batch in loader] == [30, 35, 40, 45]


def test_closing_ends_iteration_threads_and_files(tmp_path: Path) -> None:
    """Promise 6: close may come at any time, twice, and from another thread."""
    dataset = gl.open_dataset(store(stream_files(counted([4000], "<i4")), tmp_path), window=4)
    loader = gl.Loader(dataset, 5)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    loader.close()
    loader.close()
    assert loader.state_dict() == state
    for action in (lambda: next(batches), lambda: iter(loader)):
        with pytest.raises(ClosedError):
            action()
    with gl.Loader(dataset, 5, prefetch=1) as loader, ThreadPoolExecutor(1) as pool:
        batches = iter(loader)
        consumed = pool.submit(lambda: [threading.Event().wait(0.001) for _ in batches])
        time.sleep(0.02)
        loader.close()
        with pytest.raises(ClosedError):
            consumed.result(5)


def test_an_exhausted_iterator_stays_so() -> None:
    loader = gl.Loader(dataset_of(10), 3)
    batches = iter(loader)
    assert len(list(batches)) == 4
    assert list(batches) == []
    loader.close()
    assert next(batches, None) is None


def test_threads_may_share_an_iterator() -> None:
    """Promise 6, promise 1: each batch goes to one of them."""
    with gl.Loader(dataset_of(500), 2, shuffle=True) as loader, ThreadPoolExecutor(4) as pool:
        batches = iter(loader)
        parts = pool.map(lambda _: [sample for batch in batches for sample in ids(batch)], range(4))
        assert sorted(sample for part in parts for sample in part) == list(range(500))
        assert loader.state_dict()["epoch"] == 1


def test_loaders_work_beside_a_running_loop() -> None:
    """C50."""

    async def main() -> list[list[int]]:
        with gl.Loader(dataset_of(20), 3) as loader:
            return [ids(batch) for batch in loader]

    assert len(asyncio.run(main())) == 7
    assert len(asyncio.run(main())) == 7


def test_nothing_starts_before_the_first_iteration() -> None:
    """Promise 6: making a loader, and asking for its state, takes no thread."""
    before = threading.active_count()
    loader = gl.Loader(dataset_of(20), 3)
    loader.load_state_dict(loader.state_dict())
    assert len(loader) == 7
    assert threading.active_count() == before
    next(iter(loader))
    assert threading.active_count() > before
    loader.close()


def test_one_loader_has_one_loop_however_often_it_iterates() -> None:
    def loops() -> int:
        return sum(thread.name == "guideloom-loop" for thread in threading.enumerate())

    before = loops()
    with gl.Loader(dataset_of(20), 3) as loader:
        for _ in range(10):
            take(loader, 2)
            assert loops() == before + 1
    assert loops() == before


def test_look_ahead_is_bounded_by_batches_and_by_bytes() -> None:
    """B1: the consumer takes one batch and rests; no more than the budget has been read."""
    files = stream_files(counted([40_000], "<i4"))
    cases: list[tuple[dict[str, Any], int]] = [
        ({"prefetch": 8}, 10),
        ({"prefetch": 0}, 3),
        ({"prefetch": 1000, "max_bytes_in_flight": 160 * 8}, 10),
        ({"max_bytes_in_flight": 1}, 3),
    ]
    for options, most in cases:
        read: list[int] = []

        class Recording(OneMethod):
            async def read_range(self, path: str, offset: int, length: int, read: list[int] = read) -> bytes:
                read.append(offset)
                return await super().read_range(path, offset, length)

        dataset = gl.open_dataset(Recording(files), window=4, verify=False)
        read.clear()
        with gl.Loader(dataset, 10, **options) as loader:
            batches = iter(loader)
            for taken in range(1, 30):
                next(batches)
                time.sleep(0.002)
                assert len(read) <= (taken + most) * 10
            del batches


def test_a_loader_pickles_to_its_position() -> None:
    """C49: configuration and position; the copy goes on where this one stands."""
    dataset = dataset_of(40)
    with gl.Loader(dataset, 3, shuffle=True, seed=2) as loader:
        before = take(loader, 4)
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert copy.state_dict() == loader.state_dict()
            rest = [ids(batch) for batch in copy]
        assert before + rest == epochs(dataset, 1, batch_size=3, shuffle=True, seed=2)[0]
        assert loader.state_dict()["step"] == 4


def test_dropping_a_loader_in_mid_epoch_leaves_nothing(tmp_path: Path) -> None:
    """C57: loop, threads and files go with it, though its dataset stays."""
    dataset = gl.open_dataset(store(stream_files(counted([4000], "<i4")), tmp_path), window=4)
    before = threading.active_count()
    for _ in range(10):
        loader: gl.Loader[Any] = gl.Loader(dataset, 5, shuffle=True)
        take(loader, 2)
        del loader
    gc.collect()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before  # one of an earlier test may have ended meanwhile


def test_a_healthy_epoch_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), gl.Loader(dataset_of(40), 3) as loader:
        assert len(list(loader)) == 14
    assert [record for record in caplog.records if record.name.startswith("guideloom")] == []


@pytest.mark.parametrize(
    ("window", "drop_last", "reason"),
    [(101, False, "100 elements, which is not one window of 101"), (4, True, "25 samples, less than a step of 26")],
)
def test_a_loader_without_batches_says_why(
    window: int, drop_last: bool, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An epoch that ends at once must not look like one that went well."""
    dataset = gl.open_dataset(gl.MemoryBackend(stream_files(counted([100], "<i4"))), window=window)
    with gl.Loader(dataset, 26, drop_last=drop_last) as loader:
        assert list(loader) == []
    assert reason in caplog.text
