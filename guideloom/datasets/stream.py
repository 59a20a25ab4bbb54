"""A token stream as windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from guideloom._typing import as_int
from guideloom.backends.base import ReadBackend
from guideloom.datasets.grid import WindowGrid
from guideloom.datasets.layer_selection import Layers, check_layers, layer_files
from guideloom.datasets.pieces import CheckedFiles
from guideloom.datasets.readers import AsyncReader, SyncReader
from guideloom.datasets.samples import Batch, Sample
from guideloom.datasets.selection import Fields, Output, select
from guideloom.datasets.windows import GroupFiles, WindowReader
from guideloom.storage.stream_manifest import StreamManifest


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StreamDataset:
    """Windows of a token stream, over the concatenation of all its shards.

    Window ``i`` is elements ``offset + i * stride`` to ``offset + i * stride + window``. Windows may cross shard
    edges; the incomplete last one is left out. Made by `guideloom.open_dataset`; holds no open file, thread or loop,
    and pickles to its location and options.

    Parameters
    ----------
    backend : ReadBackend
        Where the dataset lies.
    manifest : StreamManifest
        What it holds.
    location : str
        How to call it in messages.
    window, stride, offset : int
        Elements of a window, from one to the next, and before the first.
    fields : None, sequence of str, or mapping of str to dtype
        The fields to deliver.
    verify : bool
        Whether blocks are compared with their checksums.
    layers : sequence of str, or mapping of str to Encoding
        The annotation layers to deliver, perhaps by another encoding.

    Raises
    ------
    ValueError
        If an argument is out of range, or a field does not exist.
    """

    backend: ReadBackend
    manifest: StreamManifest
    location: str
    window: int
    stride: int
    offset: int = 0
    fields: Fields = None
    verify: bool = True
    layers: Layers = ()
    outputs: tuple[Output, ...] = field(init=False)
    grid: WindowGrid = field(init=False)

    def __post_init__(self) -> None:
        for name, least in (("window", 1), ("stride", 1), ("offset", 0)):
            value = as_int(getattr(self, name), name)
            if not least <= value < 2**63:
                raise ValueError(f"{name} must be at least {least}, and fit in 63 bits, not {value}")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "outputs", select(self.manifest.schema.fields, self.fields))
        object.__setattr__(self, "layers", check_layers(self.manifest, self.layers, self.window))
        starts = np.zeros(len(self.manifest.shards) + 1, np.int64)
        np.cumsum([shard.rows for shard in self.manifest.shards], out=starts[1:])
        object.__setattr__(self, "grid", WindowGrid(self.window, self.stride, self.offset, starts))

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.grid)

    def __repr__(self) -> str:
        parts = [f"{output.name} {_describe(output)}" for output in self.outputs]
        fields = ", ".join(parts + [f"layer {name}" for name in self.layers])
        stride = f", stride={self.stride}" if self.stride != self.window else ""
        offset = f", offset={self.offset}" if self.offset else ""
        return (
            f"StreamDataset({self.location!r}, window={self.window}{stride}{offset})\n"
            f"  {fields}\n"
            f"  {len(self):,} windows of {self.num_elements:,} elements in {len(self.manifest.shards):,} shards, "
            f"snapshot {self.manifest.snapshot}{'' if self.verify else ', not verified'}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        from guideloom.datasets.opening import reopen

        options = {name: getattr(self, name) for name in ("window", "stride", "offset", "fields", "verify", "layers")}
        return reopen, (self.backend, self.location, self.manifest.snapshot, self.fingerprint, options)

    @property
    def num_elements(self) -> int:
        """Elements of the whole stream."""
        return int(self.grid.starts[-1])

    @property
    def fingerprint(self) -> str:
        """Hash of schema and content, of the stream and the layers read; the same however the data were written."""
        return self.manifest.fingerprint_of(self.layers)

    @property
    def geometry(self) -> tuple[int, int, int]:
        """Window, stride and offset."""
        return self.window, self.stride, self.offset

    def async_reader(self) -> AsyncReader[Sample, Batch]:
        """Return a reader for use inside an event loop, with ``async with``."""
        return AsyncReader(self)

    def sync_reader(self) -> SyncReader[Sample, Batch]:
        """Return a reader for use without an event loop, with ``with``."""
        return SyncReader(self)

    def with_fields(self, fields: Fields) -> StreamDataset:
        """Return the same windows with other fields, or other dtypes."""
        return dataclasses.replace(self, fields=fields)

    def slice_reader(self) -> WindowReader:
        """Return a reader of whole slices of batches; the backend must be open."""
        layers = check_layers(self.manifest, self.layers, self.window)
        return WindowReader(
            self.backend,
            self.grid,
            self._groups(),
            self.outputs,
            [layer_files(self.manifest, *layer) for layer in layers.items()],
            verify=self.verify,
            location=self.location,
        )

    def why_empty(self) -> str:
        """Say why there is no window."""
        return (
            f"{self.location} has {self.num_elements:,} elements, which is not one window of {self.window:,} from "
            f"element {self.offset:,} on"
        )

    def requested_dtype(self, output: Output) -> bool:
        """Return whether the caller chose the dtype of an output."""
        return isinstance(self.fields, Mapping) and self.fields[output.name] is not None

    def _groups(self) -> list[GroupFiles]:
        """Return the column groups that hold a field to deliver, as arrays over the shards."""
        groups = []
        for number, group in enumerate(self.manifest.groups):
            offsets = {field.name: field.offset for field in group.fields}
            outputs = [(output, offsets[output.name]) for output in self.outputs if output.name in offsets]
            if not outputs:
                continue
            files = [shard.files[number] for shard in self.manifest.shards]
            groups.append(
                GroupFiles(
                    CheckedFiles(
                        paths=[file.file for file in files],
                        side_paths=[file.checksums for file in files],
                        file_bytes=np.array([file.bytes for file in files], np.int64),
                        seeds=np.array([file.checksum_seed for file in files], np.uint32),
                    ),
                    byte_offsets=np.array([file.byte_offset for file in files], np.int64),
                    row_bytes=group.row_bytes,
                    outputs=outputs,
                )
            )
        return groups


def _describe(output: Output) -> str:
    shape = "".join(f"[{length}]" for length in output.field.shape)
    as_stored = output.dtype == output.field.dtype
    return f"{output.field.dtype}{shape}" + ("" if as_stored else f" as {output.dtype}")
