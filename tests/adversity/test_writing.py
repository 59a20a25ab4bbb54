"""Writers that are killed, or whose system calls fail, at every one of them: the real calls, under strace.

The tests of `tests.storage` do the same to the calls of Python, at every point, each time. Here the process is another,
and what happens between its calls is the kernel's. A sample of the points is tried; all of them to prove.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

import guideloom as gl
from guideloom.errors import CommitConflict
from tests.adversity import strace
from tests.adversity.strace import SystemCall, calls_below, needs_strace

ALL = os.environ.get("GUIDELOOM_PROVE") == "1"
T = TypeVar("T")

# Two commits, of which the second adds shards; a claim; a third that leaves shards uncommitted; and the end of history.
JOB = """
    import os, sys
    import numpy as np
    import guideloom as gl
    from guideloom.errors import GuideLoomError

    def job(root):
        try:
            storage = gl.StreamStorage.create(root, dtype="<u2")
        except FileExistsError:
            storage = gl.StreamStorage.open(root)
        for stop in (4, 6):
            for number in storage.missing(range(stop)):
                with storage.writer(number, task=f"job/{number}") as shard:
                    for part in range(3):
                        shard.append(np.arange(300_000 if number == 5 else 1000, dtype="<u2") + part)
            os.write(1, b"%d\\n" % storage.commit(shards=range(stop)))
        with storage.writer(6) as shard:
            shard.append([1])
        gl.prune(root, keep=1, min_age_seconds=0)
        os.write(1, b"pruned\\n")

    try:
        job(sys.argv[1])
    except (GuideLoomError, OSError) as error:
        try:
            os.write(1, b"%s\\n" % type(error).__name__.encode())
        finally:
            os._exit(3)
"""


def sample(items: Iterable[T], count: int, seed: int) -> list[T]:
    """All of them to prove; else some, the same each time."""
    found = list(items)
    return found if ALL or len(found) <= count else random.Random(seed).sample(found, count)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[SystemCall], str]:
    """The calls of an undisturbed job, and the fingerprint of its outcome."""
    root = tmp_path_factory.mktemp("calls") / "corpus"
    found = calls_below(JOB, root)
    return found, gl.StreamStorage.open(root).manifest.fingerprint


def check(root: Path, output: str, fingerprint: str) -> None:
    """What a reader sees is whole and holds all that was acknowledged; and the job can be run to its end."""
    acknowledged = [int(line) for line in output.split() if line.isdigit()]
    if (root / "guideloom.json").exists():
        found = gl.verify(root)
        assert found.damages == ()
        opened = gl.open_dataset(root, window=1000)
        assert opened.num_elements in (12_000, 915_000)
        assert found.snapshot is not None
        assert found.snapshot >= max(acknowledged, default=0)
    else:
        assert not acknowledged
    again = strace.run(JOB, root)
    assert (again.returncode, again.stderr) == (0, "")
    assert gl.StreamStorage.open(root).manifest.fingerprint == fingerprint
    assert gl.verify(root).damages == ()
    shutil.rmtree(root)


@needs_strace
def test_killed_at_any_system_call(tmp_path: Path, calls: tuple[list[SystemCall], str]) -> None:
    """W1, W3, W4: SIGKILL at the entry of each call that writes: a dataset before or after, never half of one."""
    points = [call for call in calls[0] if call.writes]
    assert len(points) >= 210
    for point in sample(points, 8, 1):
        root = tmp_path / f"{point.name}-{point.count}"
        result = strace.run(JOB, root, inject=f"{point.name}:signal=KILL:when={point.count}")
        assert result.returncode == -signal.SIGKILL, point
        check(root, result.stdout, calls[1])


@needs_strace
@pytest.mark.parametrize("forever", ["", "+"], ids=["once", "for ever"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EDQUOT"])
def test_a_system_call_fails(tmp_path: Path, calls: tuple[list[SystemCall], str], error: str, forever: str) -> None:
    """W6: of each write, sync and rename: an error, and the dataset as it was; what was acknowledged stays."""
    failing = {"write", "fsync", "rename", "renameat2"}
    points = [call for call in calls[0] if call.name in failing and "/claims/" not in call.arguments]
    assert {point.name for point in points} == failing
    for point in sample(points, 2, len(error + forever)):
        root = tmp_path / f"{point.name}-{point.count}"
        result = strace.run(JOB, root, inject=f"{point.name}:error={error}:when={point.count}{forever}")
        assert result.returncode == 3, (point, result.stdout, result.stderr)
        if forever == "" or point.name != "write":  # where every write fails, so does the one that would tell
            assert result.stdout.split()[-1] == "WriteError"
        assert not list((root / "shards").glob(".*.tmp"))
        check(root, result.stdout, calls[1])


@needs_strace
def test_the_order_of_the_calls(calls: tuple[list[SystemCall], str], tmp_path: Path) -> None:
    """W5, W10: written and synced under a temporary name, renamed without replacing, and the folder synced after."""
    log = [event for call in calls[0] for event in _events(call)]
    shard = [
        "sync shards/ID.bin",
        "name shards/ID.bin",
        "sync shards/ID.crc32c",
        "name shards/ID.crc32c",
        "sync shards",
    ]
    shard += ["sync shards/ID.json", "name shards/ID.json", "sync shards"]
    expected = ["sync .", "sync .", *_snapshot(0)]
    for number, num_shards in ((1, 4), (2, 2)):
        expected += [*shard * num_shards, *_snapshot(number), "sync guideloom.json", "replace guideloom.json", "sync ."]
    pruned = ["sync snapshots", "sync shards", "sync shards"]
    assert log == [*expected, *shard, *pruned]


@needs_strace
def test_nothing_committed_is_opened_for_writing_or_replaced(calls: tuple[list[SystemCall], str]) -> None:
    """W9, M11: what is opened to be written is new, and no link; the one name that moves is that of the manifest."""
    opened = [call for call in calls[0] if call.name == "openat" and re.search("O_WRONLY|O_RDWR", call.arguments)]
    assert len(opened) == 7 * 3 + 6 + 2 * 2 + 1
    for call in opened:
        assert "O_CREAT|O_EXCL|O_NOFOLLOW" in call.arguments
    assert all("RENAME_NOREPLACE" in call.arguments for call in calls[0] if call.name == "renameat2")
    replaced = [re.findall(r'"([^"]*)"', call.arguments)[1] for call in calls[0] if call.name == "rename"]
    assert {os.path.basename(name) for name in replaced if not name.endswith(".tmp")} == {"guideloom.json"}


def _snapshot(number: int) -> list[str]:
    manifest = f"snapshots/{number}/guideloom.json"
    folder = f"snapshots/{number}"
    return [f"sync {manifest}", f"name {manifest}", f"sync {folder}", f"name {folder}", "sync snapshots"]


def _events(call: SystemCall) -> Iterator[str]:
    """Say what a call did for durability, with names as they are to be."""
    paths = [_final_name(path) for path in re.findall(r'"([^"]*)"', call.arguments)]
    if "/claims/" in call.arguments:
        return
    if call.name == "fsync":
        (path,) = re.findall("<(.*)>", call.arguments)
        yield f"sync {_final_name(path)}"
    elif call.name == "renameat2":
        assert paths[0] == paths[1]
        yield f"name {paths[1]}"
    elif call.name == "rename" and "pruned" not in call.arguments:
        assert paths[0] == paths[1]
        yield f"replace {paths[1]}"


def _final_name(path: str) -> str:
    name = path.rpartition("/corpus")[2].removeprefix("/") or "."
    name = re.sub(r"\.([^/]+)\.[0-9a-f]{32}\.tmp", r"\1", name)
    return re.sub(r"\d{8}-[0-9a-f]{32}", "ID", name)


NUM_SHARDS, NUM_PROCESSES = 64, 8
SHARD_TOKENS = 1_000_000 if ALL else 10_000


def content(number: int) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    return np.random.default_rng(number).integers(0, 50_000, SHARD_TOKENS, dtype=np.uint16)


def write_share(root: Path, rank: int) -> None:
    storage = gl.StreamStorage.open(root)
    for number in storage.missing(range(rank, NUM_SHARDS, NUM_PROCESSES)):
        with storage.writer(number, task=f"rank {rank}") as shard:
            for part in np.array_split(content(number), 7):
                shard.append(part)


def test_eight_processes_of_which_two_are_killed(tmp_path: Path) -> None:
    """W4: and run again; the dataset is the one that a single process writes."""
    single = gl.StreamStorage.create(tmp_path / "single", dtype="<u2")
    for number in range(NUM_SHARDS):
        with single.writer(number) as shard:
            shard.append(content(number))
    single.commit()
    root = tmp_path / "many"
    storage = gl.StreamStorage.create(root, dtype="<u2")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write_share, args=(root, rank)) for rank in range(NUM_PROCESSES)]
    for process in processes:
        process.start()
    generator = random.Random(5)
    killed = generator.sample(range(NUM_PROCESSES), 2)
    for rank in killed:
        while len(storage.missing(range(NUM_SHARDS))) > NUM_SHARDS - generator.randrange(4, 16):
            time.sleep(0.001)
        processes[rank].kill()
    for process in processes:
        process.join(100)
    with pytest.raises(gl.errors.ShardError, match="shards are missing"):
        storage.commit(shards=range(NUM_SHARDS))
    for rank in killed:
        again = context.Process(target=write_share, args=(root, rank))
        again.start()
        again.join(100)
        assert again.exitcode == 0
    assert storage.missing(range(NUM_SHARDS)) == []
    storage.commit(shards=range(NUM_SHARDS))
    assert storage.manifest.fingerprint == single.manifest.fingerprint
    assert gl.verify(root, expect=single.manifest.fingerprint).ok


def commit_until_all_are_in(root: Path, rank: int) -> None:
    """Write shards, a commit after each, as often as it takes."""
    storage = gl.StreamStorage.open(root)
    for number in range(rank, 4 * 8, 8):
        with storage.writer(number) as shard:
            shard.append([number])
        while True:
            try:
                storage.commit()
            except CommitConflict:
                continue
            except gl.errors.ShardError:  # somebody else is behind with a number before
                break
            break


def test_many_committers_that_retry(tmp_path: Path) -> None:
    """W8: each commit has one winner; nothing that a winner saw is lost."""
    for round_number in range(20 if ALL else 2):
        root = tmp_path / str(round_number)
        storage = gl.StreamStorage.create(root, dtype="<u2")
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=commit_until_all_are_in, args=(root, rank)) for rank in range(8)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(100)
        assert [process.exitcode for process in processes] == [0] * 8
        storage.commit(shards=range(32))
        found = gl.list_snapshots(root)
        assert [each.number for each in found] == list(range(storage.snapshot + 1))
        assert all(earlier.shards < later.shards for earlier, later in itertools.pairwise(found))
        with gl.open_dataset(root, window=32).sync_reader() as reader:
            assert reader[0]["tokens"].tolist() == list(range(32))
        assert gl.verify(root).ok
