"""Processes: a child has right data or an error at once, never a hang; the parent does not notice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import guideloom as gl
from guideloom.errors import ClosedError
from tests.adversity.programs import succeeds
from tests.loader.samples import ids, take
from tests.streams import counted, store, stream_files

SECONDS = 20.0


@pytest.fixture
def dataset(tmp_path: Path) -> gl.StreamDataset:
    return gl.open_dataset(store(stream_files(counted([1700, 0, 1, 2299], "<i4")), tmp_path), window=4)


def in_child(work: Callable[[], None]) -> int:
    """Call a function in a forked child, and return its exit status; kill it if it hangs."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -9


def test_a_child_reads_with_its_parents_reader(dataset: gl.StreamDataset) -> None:
    """C47: the reader opens itself anew in the child; both go on reading."""
    with dataset.sync_reader() as reader:
        assert reader[0]["tokens"][0] == 0

        def child() -> None:
            for i in range(20):
                assert reader[i * 7]["tokens"][0] == i * 28
            assert [ids(batch) for batch in reader.batches(300)][-1][-1] == 999
            reader.close()

        assert in_child(child) == 0
        assert reader[999]["tokens"].tolist() == [3996, 3997, 3998, 3999]


def test_a_child_iterates_its_parents_loader_but_not_its_iterator(dataset: gl.StreamDataset) -> None:
    """C47, C48: the iterator says at once whose it is; the loader begins an epoch of its own."""
    with gl.Loader(dataset, 8, shuffle=True, prefetch=32) as loader:
        batches = iter(loader)
        before = [ids(next(batches)) for _ in range(3)]

        def child() -> None:
            state = loader.state_dict()
            assert state["step"] == 3
            with pytest.raises(ClosedError, match="parent process"):
                next(batches)
            loader.load_state_dict(state)
            assert len([ids(batch) for batch in loader]) == len(loader) - 3
            loader.close()

        assert in_child(child) == 0
        everything = before + [ids(batch) for batch in batches]
        assert sorted(sample for batch in everything for sample in batch) == list(range(1000))


def test_a_child_that_drops_or_closes_what_it_inherited_disturbs_nobody(dataset: gl.StreamDataset) -> None:
    loader = gl.Loader(dataset, 8, prefetch=32)
    reader = dataset.sync_reader()
    reader.open()
    batches = iter(loader)
    next(batches)

    def child() -> None:
        nonlocal loader, reader, batches
        batches.close()
        loader.close()
        reader.close()
        del loader, reader, batches

    assert in_child(child) == 0
    assert [ids(batch)[0] for batch in batches][-1] == 992
    assert reader[1]["tokens"][0] == 4
    loader.close()
    reader.close()


def test_a_lock_that_another_thread_held_does_not_hang_the_child(dataset: gl.StreamDataset) -> None:
    """C48: forked while a thread stands inside of `next`."""
    with gl.Loader(dataset, 8) as loader:
        batches = iter(loader)
        next(batches)
        with batches._lock:

            def child() -> None:
                with pytest.raises(ClosedError):
                    next(batches)
                assert len(take(loader, 5)) == 5

            assert in_child(child) == 0
        assert ids(next(batches))[0] == 8


STORM = """
    import os, sys, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12, about forks beside threads: the subject
    import guideloom as gl
    from pathlib import Path
    from tests.loader.samples import ids
    from tests.streams import counted, store, stream_files

    dataset = gl.open_dataset(store(stream_files(counted([170, 0, 1, 229], "<i4")), Path(sys.argv[1])), window=4)
    reader = dataset.sync_reader()
    reader.open()
    loader = gl.Loader(dataset, 1, shuffle=True, prefetch=16)
    for round_number in range(int(sys.argv[2])):
        batches = iter(loader)
        found = [ids(next(batches)) for _ in range(round_number % 7)]
        children = []
        for number in range(4):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for i in range(25):
                        assert reader[4 * i]["tokens"][0] == 16 * i
                    with gl.Loader(dataset, 1, shuffle=True) as mine:
                        assert len([ids(batch) for batch in mine]) == 100
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        found += [ids(batch) for batch in batches]
        assert sorted(found) == [[i] for i in range(100)], found
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
    loader.close()
    reader.close()
    print("done")
"""


def test_fifty_times_four_children_in_full_flight(tmp_path: Path) -> None:
    """C48: forked while batches are being read ahead; each child reads 25 windows and an epoch, the parent its 100."""
    assert succeeds(STORM, tmp_path, 50, seconds=90) == "done\n"


SHARED = """
    import gc, json, os, sys
    import numpy as np
    import guideloom as gl
    from guideloom.storage.manifest import MANIFEST_NAME
    from tests.datasets.test_opening import manifest_of
    from guideloom.storage.manifest import encode_manifest

    def private():
        with open("/proc/self/smaps_rollup") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) / 1024

    files = {MANIFEST_NAME: encode_manifest(manifest_of(2000, 2000))}
    gl.open_dataset(gl.MemoryBackend({MANIFEST_NAME: encode_manifest(manifest_of(1, 1))}), window=1)
    before = private()
    dataset = gl.open_dataset(gl.MemoryBackend(files), window=4)
    loader = gl.Loader(dataset, 1000, shuffle=True)
    assert private() < before + 100
    gc.collect()
    for child in range(4):
        if os.fork() == 0:
            status = 1
            try:
                start = private()
                seen = sum(len(loader.sample_ids(step)) for step in range(len(loader)))
                assert seen == len(dataset) == 1_000_000
                assert dataset.manifest.shards[-1].rows == 2000
                assert private() < start + 30, (start, private())
                status = 0
            finally:
                os._exit(status)
    assert [os.wait()[1] for _ in range(4)] == [0] * 4
"""


def test_children_share_the_index_of_their_parent() -> None:
    """C60: a million windows in 2,000 shards, each looked up once in four children; no copy grows there."""
    succeeds(SHARED)


class Windows(Dataset[torch.Tensor]):
    """A map-style dataset, as a user writes one: it opens its reader when the first sample is asked for."""

    def __init__(self, dataset: gl.StreamDataset, *, eager: bool = False) -> None:
        self.dataset = dataset
        self.reader = dataset.sync_reader() if eager else None
        if self.reader is not None:
            self.reader.open()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.reader is None:
            self.reader = self.dataset.sync_reader()
            self.reader.open()
        return torch.from_numpy(self.reader[index]["tokens"])


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_torch_workers_read_through_a_map_style_wrapper(dataset: gl.StreamDataset, method: str, eager: bool) -> None:
    """C47, C49, P2: two workers, whose parent has read already or not; a reader that was open travels open."""
    windows = Windows(dataset, eager=eager)
    if eager:
        assert windows[3].tolist() == [12, 13, 14, 15]
    loader: Any = DataLoader(windows, batch_size=50, num_workers=2, multiprocessing_context=method)
    found = torch.cat(list(loader))
    assert found.reshape(-1).tolist() == list(range(4000))
    if windows.reader is not None:
        assert windows[3].tolist() == [12, 13, 14, 15]
        windows.reader.close()
