"""Streams to measure with, written by the library and kept between runs.

Token ``i`` of every stream is ``i``, so that what was read can be checked without the file.
"""

import os
import shutil
import sys
from pathlib import Path

import numpy as np

from benchmarks import work_folder
from guideloom import FlatSpans, StreamStorage, StreamWithMetadataStorage
from guideloom.formats import NumpyArray

TOKEN_BYTES = 4

LAYER = "concepts"
SPAN_TOKENS = 100
SPAN_VALUES = 20

_CHUNK_TOKENS = 1 << 20


def stream(num_shards: int, shard_tokens: int) -> Path:
    """Return the folder of a stream of int32 tokens, after writing what is missing of it.

    Parameters
    ----------
    num_shards : int
        Shards.
    shard_tokens : int
        Tokens of each.
    """
    path = work_folder() / f"stream-{num_shards}x{shard_tokens}"
    try:
        storage = StreamStorage.create(path, dtype=np.dtype("<i4"))
    except FileExistsError:
        storage = StreamStorage.open(path)
    if len(storage.manifest.shards) == num_shards:
        return path
    missing = storage.missing(range(num_shards))
    _announce(path, len(missing) * shard_tokens * TOKEN_BYTES)
    for shard in missing:
        with storage.writer(shard=shard) as writer:
            for start in range(shard * shard_tokens, (shard + 1) * shard_tokens, _CHUNK_TOKENS):
                writer.append(_tokens(start, min(start + _CHUNK_TOKENS, (shard + 1) * shard_tokens)))
    storage.commit(shards=range(num_shards))
    return path


def layered_stream(num_shards: int, shard_tokens: int) -> Path:
    """Return the folder of a stream like `stream`, with a layer of spans side by side, each with some int32."""
    path = work_folder() / f"layered-{num_shards}x{shard_tokens}"
    layers = {LAYER: NumpyArray("<i4")}
    try:
        storage: StreamStorage = StreamWithMetadataStorage.create(path, dtype=np.dtype("<i4"), layers=layers)
    except FileExistsError:
        storage = StreamStorage.open(path)
    if len(storage.manifest.shards) == num_shards:
        return path
    start = np.arange(0, shard_tokens, SPAN_TOKENS)
    end = np.minimum(start + SPAN_TOKENS, shard_tokens)
    for shard in storage.missing(range(num_shards)):
        values = np.arange(SPAN_VALUES * len(start), dtype="<i4")
        spans = FlatSpans(start, end, values, np.arange(len(start) + 1) * SPAN_VALUES)
        with storage.writer(shard=shard) as writer:
            writer.append(_tokens(shard * shard_tokens, (shard + 1) * shard_tokens), {LAYER: spans})
    storage.commit(shards=range(num_shards))
    return path


def shard_files(path: Path) -> list[Path]:
    """Return the data files of a stream, in order."""
    return [path / shard.files[0].file for shard in StreamStorage.open(path).manifest.shards]


def raw_file(num_tokens: int) -> Path:
    """Return one file of int32 tokens and nothing else, for those that cannot read shards."""
    path = work_folder() / f"tokens-{num_tokens}.bin"
    if not path.exists():
        _announce(path, num_tokens * TOKEN_BYTES)
        fresh = path.with_suffix(f".{os.getpid()}.tmp")
        with fresh.open("wb") as file:
            for start in range(0, num_tokens, _CHUNK_TOKENS):
                file.write(_tokens(start, min(start + _CHUNK_TOKENS, num_tokens)).data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    return path


def _tokens(start: int, stop: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.arange(start, stop, dtype="<i4")


def _announce(path: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < num_bytes * 1.05:
        raise OSError(
            f"{path} needs {num_bytes / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free; GUIDELOOM_BENCH_DIR names "
            "another folder"
        )
    print(f"writing {num_bytes / 1e6:,.0f} MB to {path}, kept for the next run", file=sys.stderr, flush=True)
