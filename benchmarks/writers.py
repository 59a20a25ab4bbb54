"""Ways to write tokens to disk, each taken in a fresh process."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import work_folder
from guideloom import StreamStorage
from guideloom._typing import AnyArray

TOKEN_BYTES = 2


def append_speed(way: str, *, append_tokens: int, num_bytes: int) -> dict[str, Any]:
    """Return how fast appends of some length are taken, in MB/s; nothing is synced.

    Parameters
    ----------
    way : str
        ``"write"``: the system call alone. ``"write and hash"``: each piece is hashed with SHA-256 before it is
        written, by the same thread. ``"hash"``: SHA-256 alone. ``"shard"``: `StreamStorage.writer`.
    append_tokens : int
        uint16 tokens of an append.
    num_bytes : int
        Bytes in all.
    """
    tokens = np.random.default_rng(0).integers(0, 50_000, num_bytes // TOKEN_BYTES, dtype=np.uint16)
    pieces = [tokens[start : start + append_tokens] for start in range(0, len(tokens), append_tokens)]
    with _Folder() as folder:
        append: Callable[[AnyArray], object]
        end: Callable[[], object]
        if way == "shard":
            writer = StreamStorage.create(f"{folder}/stream", dtype="<u2").writer(0)
            append, end = writer.append, writer.abort
        else:
            append, end = _plain(way, f"{folder}/file")
        begin = time.perf_counter()
        for piece in pieces:
            append(piece)
        seconds = time.perf_counter() - begin
        end()
    return {"values": [tokens.nbytes / seconds / 1e6]}


def shard_speed(way: str, *, shard_bytes: int, num_shards: int) -> dict[str, Any]:
    """Return how fast whole shards are written, from the first append to the end of their close, in MB/s.

    Parameters
    ----------
    way : str
        ``"all syncs"``: as the library writes them. ``"data alone"``: of its syncs that of the data file alone is
        carried out, so that the bytes reach the disk, without names and checksums. ``"file"``: a file written and
        synced by the system calls.
    shard_bytes, num_shards : int
        Bytes of a shard, and shards.
    """
    tokens = np.random.default_rng(0).integers(0, 50_000, shard_bytes // TOKEN_BYTES, dtype=np.uint16)
    pieces = np.array_split(tokens, max(1, shard_bytes // 2**20))
    seconds = []
    with _Folder() as folder, mock.patch.object(os, "fsync", _data_alone if way == "data alone" else os.fsync):
        storage = StreamStorage.create(f"{folder}/stream", dtype="<u2")
        for number in range(num_shards):
            begin = time.perf_counter()
            if way == "file":
                descriptor = os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT)
                for piece in pieces:
                    os.write(descriptor, piece.data)
                os.fsync(descriptor)
                os.close(descriptor)
            else:
                with storage.writer(number) as writer:
                    for piece in pieces:
                        writer.append(piece)
            seconds.append(time.perf_counter() - begin)
    return {"values": [tokens.nbytes / each / 1e6 for each in seconds]}


_fsync = os.fsync


def _data_alone(descriptor: int) -> None:
    if ".bin." in os.readlink(f"/proc/self/fd/{descriptor}"):
        _fsync(descriptor)


def _plain(way: str, path: str) -> tuple[Callable[[AnyArray], object], Callable[[], object]]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    sha256 = hashlib.sha256()

    def write(piece: AnyArray) -> None:
        os.write(descriptor, piece.data)

    def write_and_hash(piece: AnyArray) -> None:
        sha256.update(piece.data)
        os.write(descriptor, piece.data)

    ways: dict[str, Callable[[AnyArray], object]] = {
        "write": write,
        "write and hash": write_and_hash,
        "hash": lambda piece: sha256.update(piece.data),
    }
    return ways[way], lambda: os.close(descriptor)


class _Folder:
    """A folder beside the streams that are kept, gone at the end."""

    def __enter__(self) -> str:
        self._path = work_folder() / f"writing-{os.getpid()}"
        self._path.mkdir()
        return str(self._path)

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path)
