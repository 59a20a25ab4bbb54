"""Training over HTTP: exactly the samples of an undisturbed run, whatever the server does meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

import guideloom as gl
from guideloom.backends import CoalescingBackend, HTTPBackend, RetryingBackend, RetryPolicy
from guideloom.errors import CorruptionError, FileChangedError
from tests.http.misbehaving import Answer, MisbehavingServer, Request, proper
from tests.http.reading import faults
from tests.http.servers import Nginx
from tests.loader.samples import WINDOW, ids
from tests.streams import counted, store, stream_files

NUM_SAMPLES = 3000
FILES = stream_files(counted([5000, 0, 1, 4000, NUM_SAMPLES * WINDOW - 9001], "<i4"))
DATA_FILES = sorted(name for name in FILES if name.endswith(".bin"))
POLICY = RetryPolicy(first_delay_seconds=0.01, max_delay_seconds=0.3)


def backend_of(url: str, **options: Any) -> gl.ReadBackend:
    """Return what a URL gives, but for shorter waits."""
    http = HTTPBackend(url, max_concurrency=8, **options)
    return CoalescingBackend(RetryingBackend(http, POLICY), max_gap_bytes=100, max_coalesced_bytes=2000)


def epoch(backend: gl.ReadBackend, rank: int = 0, world_size: int = 1) -> Iterator[list[int]]:
    """Yield the samples of each batch of a shuffled epoch."""
    dataset = gl.open_dataset(backend, window=WINDOW)
    options = {"rank": rank, "world_size": world_size, "shuffle": True, "seed": 5, "prefetch": 4}
    with gl.Loader(dataset, 25, **options) as loader:  # type: ignore[arg-type]  # each fits
        for batch in loader:
            yield ids(batch)


UNDISTURBED = list(epoch(gl.MemoryBackend(FILES)))


def test_a_url_is_a_dataset() -> None:
    with MisbehavingServer({f"corpus/{name}": data for name, data in FILES.items()}) as server:
        dataset = gl.open_dataset(f"{server.url}/corpus", window=WINDOW)
        with dataset.sync_reader() as reader:
            assert ids(reader.read_batch([0, 7, NUM_SAMPLES - 1])) == [0, 7, NUM_SAMPLES - 1]
        assert f"{server.url}/corpus" in repr(dataset)


def test_coalescing_asks_for_much_less_often() -> None:
    with MisbehavingServer(FILES) as server:
        assert list(epoch(backend_of(server.url))) == UNDISTURBED
        assert len(server.requests) < NUM_SAMPLES / 2


@pytest.mark.parametrize("rank", range(2))
def test_ranks_share_the_epoch(rank: int) -> None:
    with MisbehavingServer(FILES) as server:
        expected = list(epoch(gl.MemoryBackend(FILES), rank, 2))
        assert list(epoch(backend_of(server.url), rank, 2)) == expected


@pytest.mark.parametrize("seed", range(3))
def test_truncated_bodies_and_errors_change_nothing(seed: int) -> None:
    with MisbehavingServer(FILES, faults(seed, FILES)) as server:
        backend = CoalescingBackend(RetryingBackend(HTTPBackend(server.url), replace(POLICY, budget=10_000)))
        assert list(epoch(backend)) == UNDISTURBED
        assert backend.stats()["retries"] > 0


def test_a_restart_of_the_server_changes_nothing() -> None:
    with MisbehavingServer(FILES) as server:
        batches = epoch(backend_of(server.url))
        found = [next(batches) for _ in range(10)]
        server.stop()
        timer = threading.Timer(1.0, server.start)
        timer.start()
        found += batches
        timer.join()
        assert found == UNDISTURBED


def test_a_restart_of_nginx_changes_nothing(nginx: Nginx, tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "work").mkdir()
    with Nginx(store(FILES, tmp_path / "www"), tmp_path / "work") as own:
        batches = epoch(backend_of(own.url()))
        found = [next(batches) for _ in range(10)]
        own.stop()
        timer = threading.Timer(1.0, own.start)
        timer.start()
        found += batches
        timer.join()
        assert found == UNDISTURBED


def test_throttling_changes_nothing() -> None:
    until = 0.0

    def act(request: Request) -> Answer | None:
        return Answer(429, {"Retry-After": "1"}) if time.monotonic() < until else None

    with MisbehavingServer(FILES, act) as server:
        batches = epoch(backend_of(server.url))
        found = [next(batches) for _ in range(10)]
        until = time.monotonic() + 2.5
        found += batches
        assert found == UNDISTURBED


def test_a_shard_that_is_replaced_is_an_error_that_names_it() -> None:
    """R1."""
    files = dict(FILES)
    with MisbehavingServer(files) as server:
        batches = epoch(backend_of(server.url))
        for _ in range(3):
            next(batches)
        for name in DATA_FILES:
            files[name] = files[name][::-1]
        with pytest.raises(FileChangedError, match=r"shards/\d+-0\.bin was replaced") as caught:
            list(batches)
        assert caught.value.path in DATA_FILES
        assert caught.value.sample in range(NUM_SAMPLES)


def test_a_rewrite_that_keeps_its_validators_is_found_by_the_checksums() -> None:
    """R3: as nginx does for one within the same second."""
    files = dict(FILES)

    def act(request: Request) -> Answer:
        answer = proper(files, request, preconditions=False)
        if answer.status == 206:
            answer.headers["ETag"] = '"the same"'
        return answer

    with MisbehavingServer(files, act) as server:
        batches = epoch(backend_of(server.url))
        for _ in range(3):
            next(batches)
        for name in DATA_FILES:
            files[name] = files[name][::-1]
        with pytest.raises(CorruptionError, match="twice"):
            list(batches)


def _child(dataset: gl.StreamDataset, connection: Any) -> None:
    with dataset.sync_reader() as reader:
        connection.send([ids(reader.read_batch([i]))[0] for i in range(20)])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_of_a_parent_that_has_read(method: Literal["fork", "spawn"]) -> None:
    """P2, C51: each has connections of its own, and the parent keeps its own."""
    with MisbehavingServer(FILES) as server:
        dataset = gl.open_dataset(server.url, window=WINDOW)
        with dataset.sync_reader() as reader:
            assert ids(reader.read_batch([1])) == [1]
            context: Any = multiprocessing.get_context(method)
            pipes = [context.Pipe() for _ in range(2)]
            children = [context.Process(target=_child, args=(dataset, end)) for _, end in pipes]
            for child in children:
                child.start()
            for near, _ in pipes:
                assert near.poll(60)
                assert near.recv() == list(range(20))
            for child in children:
                child.join(30)
                assert child.exitcode == 0
            assert ids(reader.read_batch([2])) == [2]


def test_one_dataset_in_several_loops_at_a_time() -> None:
    with MisbehavingServer(FILES) as server:
        dataset = gl.open_dataset(server.url, window=WINDOW)
        with dataset.sync_reader() as one, dataset.sync_reader() as other:
            for i in range(5):
                assert ids(one.read_batch([i])) == ids(other.read_batch([i])) == [i]
        assert server.wait_until_closed()


def test_nothing_is_left_open() -> None:
    """B3, B4: sockets of all kinds."""
    with MisbehavingServer(FILES, faults(9, FILES)) as server:
        backend = CoalescingBackend(RetryingBackend(HTTPBackend(server.url), replace(POLICY, budget=10_000)))
        list(epoch(backend))
        assert server.wait_until_closed()
        before = _num_sockets()
        for seed in range(3):
            server.act = faults(seed, FILES)
            list(epoch(backend))
        assert server.wait_until_closed()
        assert _num_sockets() <= before


def _num_sockets() -> int:
    links = [entry.path for entry in os.scandir("/proc/self/fd")]
    return sum(os.readlink(link).startswith("socket:") for link in links if os.path.islink(link))
