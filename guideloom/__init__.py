"""GuideLoom: async-first I/O for training data, and a DataLoader that resumes exactly.

Importing it starts no thread, loop or socket, and loads neither torch nor aiohttp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideloom import errors, formats
from guideloom.backends import LocalBackend, MemoryBackend, RangeBackend, ReadBackend
from guideloom.datasets.documents import DocumentDataset
from guideloom.datasets.opening import open_dataset
from guideloom.datasets.readers import AsyncReader, SyncReader
from guideloom.datasets.spans import DocumentLayout, Spans
from guideloom.datasets.stream import StreamDataset
from guideloom.datasets.verifying import verify
from guideloom.errors import GuideLoomError, StateMismatchError
from guideloom.formats.jagged import Jagged
from guideloom.loader.loader import Loader
from guideloom.ranges import ByteRanges
from guideloom.storage.documents import DocumentStorage
from guideloom.storage.history import list_snapshots
from guideloom.storage.layer_storage import LayerStorage
from guideloom.storage.layer_values import FlatSpans
from guideloom.storage.prune import prune
from guideloom.storage.stream import StreamStorage, StreamWithMetadataStorage

if TYPE_CHECKING:
    from guideloom.backends import HTTPBackend
    from guideloom.pytorch import StatefulDataLoader

__version__ = "2.0.0.dev0"

__all__ = [
    "AsyncReader",
    "ByteRanges",
    "DocumentDataset",
    "DocumentLayout",
    "DocumentStorage",
    "FlatSpans",
    "GuideLoomError",
    "HTTPBackend",
    "Jagged",
    "LayerStorage",
    "Loader",
    "LocalBackend",
    "MemoryBackend",
    "RangeBackend",
    "ReadBackend",
    "Spans",
    "StateMismatchError",
    "StatefulDataLoader",
    "StreamDataset",
    "StreamStorage",
    "StreamWithMetadataStorage",
    "SyncReader",
    "__version__",
    "errors",
    "formats",
    "list_snapshots",
    "open_dataset",
    "prune",
    "verify",
]


def __getattr__(name: str) -> object:
    if name == "StatefulDataLoader":  # imports torch
        from guideloom.pytorch import StatefulDataLoader

        return StatefulDataLoader
    if name == "HTTPBackend":  # imports aiohttp
        from guideloom.backends import HTTPBackend

        return HTTPBackend
    raise AttributeError(f"module 'guideloom' has no attribute {name!r}")
