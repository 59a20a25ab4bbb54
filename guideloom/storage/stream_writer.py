"""The writer of one shard of a stream."""

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from guideloom.formats.rows import check_rows
from guideloom.formats.schema import Schema
from guideloom.storage.group_file import GroupFile
from guideloom.storage.layer_file import LayerFile
from guideloom.storage.layer_manifest import encoding_of
from guideloom.storage.layer_values import EncodedSpans, SpansGiven, encode_spans
from guideloom.storage.records import LayerRecord, ShardEntry
from guideloom.storage.stream_manifest import encode_shard
from guideloom.storage.writer import ShardWriter


class StreamShardWriter(ShardWriter[GroupFile | LayerFile]):
    """Writes one shard of a stream. Made by `StreamStorage.writer`; a context manager.

    The shard appears, complete, when it is closed without an error, and belongs to the dataset from the next
    `StreamStorage.commit`. An exception inside the ``with`` block, or `abort`, leaves nothing behind. Neither does a
    writer that is never closed; a warning on the logger ``guideloom`` tells of it. A writer belongs to one thread of
    the process that made it.

    Parameters
    ----------
    root : Path
        Folder of the dataset.
    number : int
        Number of the shard.
    schema : Schema
        What a row holds.
    groups : tuple of Schema
        The column groups that rows are stored in, a file for each.
    layers : tuple of LayerRecord
        The annotation layers of the stream.

    Raises
    ------
    WriteError
        If the files cannot be made.
    """

    def __init__(
        self,
        root: Path,
        number: int,
        schema: Schema,
        groups: tuple[Schema, ...],
        layers: tuple[LayerRecord, ...] = (),
    ) -> None:
        self._schema = schema
        self._groups = groups
        self._layers = layers
        self._encodings = {layer.name: encoding_of(layer) for layer in layers}
        self._positions = [[schema.names.index(name) for name in group.names] for group in groups]
        self._same_dtype, self._same_ndim = _same(schema) if len(groups) == 1 else (None, 0)
        self._group_files: list[GroupFile] = []
        self._layer_files: list[LayerFile] = []
        super().__init__(root, number, self._make_files(root, number))

    @property
    def rows(self) -> int:
        """Rows appended so far."""
        return self._rows

    def append(self, rows: Any, spans: Mapping[str, SpansGiven] | None = None) -> None:
        """Append rows; all of them, or, if they are refused, none.

        Parameters
        ----------
        rows : mapping of str to array-like, structured array, or array-like
            A column for each field, of shape ``(n, *field.shape)``, n any number: lists, tensors, arrays of any byte
            order. Integers may be of any dtype that the values fit. A stream of one field also takes its column as
            such. The data are copied.
        spans : mapping of str to iterable of (start, end, value) or FlatSpans, optional
            For each annotation layer, spans of these rows: half-open, counted from the first of them, in the order of
            their starts. They may leave gaps, overlap and be empty. A layer that is left out gets none.

        Raises
        ------
        ValueError
            If a value does not fit its field (named with its position in this call), a field is missing or unknown, or
            lengths or shapes differ; a span is out of order or out of range, or there is no such layer.
        TypeError
            If a column is of a kind that its field does not take, or a payload of one that its encoding does not.
        WriteError
            If the system refused to write. This is final: the shard cannot be published.
        ClosedError
            If the writer is closed, aborted or failed, or belongs to the parent of this process.
        """
        self._check_open()
        is_plain = spans is None and type(rows) is np.ndarray
        if is_plain and rows.dtype is self._same_dtype and rows.ndim == self._same_ndim:
            try:
                self._group_files[0].append_same(rows)
            except BaseException as error:
                self._fail(error)
                raise
            self._rows += len(rows)
            return
        columns = check_rows(self._schema, rows)
        num_rows = len(columns[0])
        encoded = self._encode_spans({} if spans is None else spans, num_rows)
        try:
            for file, positions in zip(self._group_files, self._positions, strict=True):
                file.append([columns[position] for position in positions])
            for layer_file, found in zip(self._layer_files, encoded, strict=True):
                if found is not None:
                    start, end, payload, payload_bytes = found
                    layer_file.append(start + self._rows, end + self._rows, payload, payload_bytes)
        except BaseException as error:
            self._fail(error)
            raise
        self._rows += num_rows

    def _encode_spans(self, spans: Mapping[str, SpansGiven], num_rows: int) -> list[EncodedSpans | None]:
        """Return the spans of each layer, checked and encoded; None for a layer without any."""
        for name in spans:
            if name not in self._encodings:
                raise ValueError(f"there is no layer {name!r} among {list(self._encodings)}")
        encoded: list[EncodedSpans | None] = []
        for name, encoding in self._encodings.items():
            try:
                found = encode_spans(encoding, spans[name], after=0, num_elements=num_rows) if name in spans else None
            except (TypeError, ValueError) as error:
                error.add_note(f"in layer {name!r}")
                raise
            encoded.append(found)
        return encoded

    def _make_files(self, root: Path, number: int) -> Iterator[Callable[[], GroupFile | LayerFile]]:
        def make_group(group: Schema) -> GroupFile:
            self._group_files.append(GroupFile(root, number, group))
            return self._group_files[-1]

        def make_layer() -> LayerFile:
            self._layer_files.append(LayerFile(root, number))
            return self._layer_files[-1]

        for group in self._groups:
            yield functools.partial(make_group, group)
        for _ in self._layers:
            yield make_layer

    def _publish_files(self) -> bytes:
        entries = tuple(file.publish() for file in self._group_files)
        layers = tuple(file.publish(self._rows) for file in self._layer_files)
        return encode_shard(
            self._schema, self._groups, ShardEntry(self._number, self._rows, entries, layers), self._layers
        )


def _same(schema: Schema) -> tuple[np.dtype[Any] | None, int]:
    """Return dtype and number of dimensions of arrays that are rows as they are, without a look at their values."""
    (field, *others) = schema.fields
    if not others and not field.shape and not schema.has_padding:
        return field.dtype, 1
    return None, 0
