"""Reading a stream with NumPy alone, and faults in the system calls that write one."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from guideloom._typing import AnyArray
from guideloom.storage import durable
from guideloom.storage.checksums import BlockChecksums
from guideloom.storage.kinds import load_manifest
from guideloom.storage.stream_manifest import StreamManifest

CALLS = ("open", "write", "fsync", "close", "rename", "mkdir", "unlink")


def read_manifest(root: Path) -> StreamManifest:
    """The manifest that a reader finds; it is also that of its snapshot."""
    data = (root / "guideloom.json").read_bytes()
    manifest = load_manifest(data, path="guideloom.json")
    assert isinstance(manifest, StreamManifest)
    assert (root / "snapshots" / str(manifest.snapshot) / "guideloom.json").read_bytes() == data
    return manifest


def read_shards(root: Path) -> list[AnyArray]:
    """The rows of each shard, once every byte has been held against hash and checksums."""
    manifest = read_manifest(root)
    shards = []
    for shard in manifest.shards:
        rows = np.zeros(shard.rows, manifest.schema.dtype)
        for group, entry in zip(manifest.groups, shard.files, strict=True):
            data = (root / entry.file).read_bytes()
            assert len(data) == entry.bytes == shard.rows * group.row_bytes
            assert hashlib.sha256(data).hexdigest() == entry.sha256
            checksums = BlockChecksums(file_seed=entry.checksum_seed)
            checksums.update(data)
            assert (root / entry.checksums).read_bytes() == checksums.finish()
            for name in group.names:
                rows[name] = np.frombuffer(data, group.dtype)[name]
        shards.append(rows)
    return shards


def read_rows(root: Path) -> AnyArray:
    """All rows of the stream."""
    return np.concatenate([np.zeros(0, read_manifest(root).schema.dtype), *read_shards(root)])


def files(root: Path) -> set[str]:
    """Names of all files below `root`."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@contextlib.contextmanager
def intercepted(act: Callable[[int, str, Callable[[], Any]], Any]) -> Iterator[None]:
    """Call ``act(count, name, call)`` in place of each system call that writes; ``call()`` carries it out.

    Nothing is synced for real: the faults of these tests spare the page cache.
    """
    count = 0
    written: set[int] = set()  # descriptors, and those of folders to sync

    def stand_in(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def carry_out(*args: Any, **kwargs: Any) -> Any:
            result: Any = None if name == "fsync" else original(*args, **kwargs)
            if name == "open":
                written.add(result)
            return result

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if name == "open" and not args[1] & (os.O_CREAT | os.O_DIRECTORY):
                return original(*args, **kwargs)
            if name == "close":
                if args[0] not in written:
                    return original(*args, **kwargs)
                written.remove(args[0])
            count += 1
            return act(count, name, lambda: carry_out(*args, **kwargs))

        return call

    with contextlib.ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(mock.patch.object(os, name, stand_in(name, getattr(os, name))))
        stack.enter_context(mock.patch.object(durable, "rename_new", stand_in("rename", durable.rename_new)))
        yield


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Yield the names of the system calls that write, as they come."""
    log: list[str] = []

    def act(_count: int, name: str, call: Callable[[], Any]) -> Any:
        log.append(name)
        return call()

    with intercepted(act):
        yield log
