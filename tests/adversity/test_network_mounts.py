"""Writers, committers and readers on network filesystems, each on one of two mounts of the same."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import guideloom as gl
from guideloom.storage.kinds import load_manifest
from guideloom.storage.manifest import snapshot_name
from tests.adversity.mounts import PROGRAMS, missing, mounted
from tests.adversity.programs import ROOT

ALL = os.environ.get("GUIDELOOM_PROVE") == "1"
WRITERS = 4
LENGTH = 1000

# Writes every so many-th shard, and commits until it is in; prints what was acknowledged: snapshot and shards in it.
WRITER = """
    import json, sys
    import numpy as np
    import guideloom as gl
    from guideloom.errors import CommitConflict, ShardError

    root, first, step, stop, length = sys.argv[1], *map(int, sys.argv[2:])
    try:
        storage = gl.StreamStorage.create(root, dtype="<i4")
    except FileExistsError:
        storage = gl.StreamStorage.open(root)

    def commit():
        try:
            storage.commit()
        except (CommitConflict, ShardError) as error:  # another was faster, or has not written its shard yet
            print(json.dumps(type(error).__name__), flush=True)
        else:
            print(json.dumps([storage.snapshot, len(storage.manifest.shards)]), flush=True)

    for number in storage.missing(range(first, stop, step)):
        with storage.writer(number) as shard:
            shard.append(np.full(length, number, "<i4"))
        while len(storage.manifest.shards) <= number:
            commit()
    while len(storage.manifest.shards) < stop:
        commit()
"""

# Opens the dataset again and again, and reads all of it, until all shards are there.
READER = """
    import collections, json, sys, time
    import numpy as np
    import guideloom as gl
    from guideloom.errors import BackendError

    root, stop, length = sys.argv[1], *map(int, sys.argv[2:])
    seen, errors, end = [], collections.Counter(), time.monotonic() + 300
    while time.monotonic() < end:
        try:
            dataset = gl.open_dataset(root, window=length)
            with dataset.sync_reader() as reader:
                tokens = reader[:]["tokens"]
        except BackendError as error:
            place = "no dataset yet" if error.path == "guideloom.json" else str(error)
            errors[f"{type(error).__name__}: {place}"] += 1
            continue
        assert tokens.shape[1] == length and (tokens == np.arange(len(tokens))[:, None]).all(), "other data"
        if [dataset.manifest.snapshot, len(tokens)] != (seen or [None])[-1]:
            seen.append([dataset.manifest.snapshot, len(tokens)])
        if len(tokens) == stop:
            break
    print(json.dumps([seen, errors]))
"""


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.timeout(600)
def test_writers_and_readers_on_two_mounts(name: str, tmp_path: Path) -> None:
    """W1, W4, W7, W8: a reader sees a snapshot that was committed; of committers one wins; a killed writer goes on."""
    if reason := missing(name):
        pytest.skip(reason)
    if name != "GlusterFS" and not ALL:
        pytest.skip("GUIDELOOM_PROVE=1 runs it")
    num_shards = 32 if ALL else 16
    folder = tmp_path / "fs"
    folder.mkdir()
    with mounted(name, folder) as mounts, contextlib.ExitStack() as stack:
        roots = [mount / "corpus" for mount in mounts]
        readers = [start(stack, READER, root, num_shards, LENGTH) for root in roots]
        writers = [start(stack, WRITER, roots[i % 2], i, WRITERS, num_shards, LENGTH) for i in range(WRITERS)]
        assert writers[0].stdout is not None
        said = [writers[0].stdout.readline()]
        writers[0].kill()
        writers.append(start(stack, WRITER, roots[1], 0, WRITERS, num_shards, LENGTH))
        outputs = [finish(process, killed=i == 0) for i, process in enumerate(writers)]
        acknowledged = [json.loads(line) for line in [*said, *"".join(outputs).splitlines()] if line.startswith("[")]
        committed = {
            snapshot: len(load_manifest((roots[1] / snapshot_name(snapshot)).read_bytes(), path="m").shards)
            for snapshot, _ in acknowledged
        }
        assert dict(acknowledged) == committed
        assert len({(snapshot, shards) for snapshot, shards in acknowledged}) == len(committed)
        for reader in readers:
            seen, errors = json.loads(finish(reader))
            assert seen[-1][1] == num_shards
            assert all(committed.get(snapshot, shards) == shards for snapshot, shards in seen)
            assert [snapshot for snapshot, _ in seen] == sorted(snapshot for snapshot, _ in seen)
            print(name, len(committed), "snapshots;", "seen", len(seen), errors)
        expected = gl.StreamStorage.create(tmp_path / "alone", dtype="<i4")
        for number in range(num_shards):
            with expected.writer(number) as shard:
                shard.append(np.full(LENGTH, number, "<i4"))
        expected.commit()
        assert gl.StreamStorage.open(roots[1]).manifest.fingerprint == expected.manifest.fingerprint


def start(stack: contextlib.ExitStack, program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program, which ends with the stack at the latest."""
    command = [sys.executable, "-B", "-W", "error", "-c", textwrap.dedent(program), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def finish(process: subprocess.Popen[str], *, killed: bool = False) -> str:
    output, errors = process.communicate(timeout=400)
    assert (process.returncode, errors) == (-9 if killed else 0, "")
    return output
