"""Datasets over every kind of backend."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import guideloom as gl
from guideloom.backends.portable import PortableBackend
from guideloom.datasets.stream import StreamDataset
from tests.streams import store, stream_files

KINDS = ["local", "local, by threads", "memory", "custom", "portable"]


class OneMethod(gl.RangeBackend):
    """What a user writes: one method. It answers out of order."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(max_concurrency=5)
        self.files = files
        self.calls = 0

    async def read_range(self, path: str, offset: int, length: int) -> bytes:
        self.calls += 1
        for _ in range(self.calls % 3):
            await asyncio.sleep(0)
        try:
            return self.files[path][offset : offset + length]
        except KeyError:
            raise FileNotFoundError(path) from None


@contextlib.contextmanager
def backend_of(kind: str, files: Mapping[str, bytes]) -> Iterator[gl.ReadBackend]:
    """Give a backend that holds these files."""
    if kind == "memory":
        yield gl.MemoryBackend(files)
    elif kind == "custom":
        yield OneMethod(files)
    else:
        with tempfile.TemporaryDirectory() as folder:
            root = store(files, Path(folder))
            if kind == "portable":
                yield PortableBackend(root)
            else:
                yield gl.LocalBackend(root, inline_bytes=131_072 if kind == "local" else 0)


def in_memory(shards: Sequence[Any], *, window: int, dtype: Any = None, **options: Any) -> StreamDataset:
    """Open a dataset of these shards that lies in memory."""
    return gl.open_dataset(gl.MemoryBackend(stream_files(shards, dtype)), window=window, **options)
