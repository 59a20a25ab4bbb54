"""The files of an annotation layer, what its payloads are, and what may be wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from guideloom._speedups.spans import UNEVEN
from guideloom._typing import Int64Array
from guideloom.datasets.pieces import CheckedFiles
from guideloom.datasets.spans import Spans
from guideloom.errors import CorruptionError, DecodeError, GuideLoomError
from guideloom.formats.arrays import NumpyArray, Rows
from guideloom.formats.encoding import Encoding
from guideloom.storage.span_table import SPAN_BYTES


@dataclass(frozen=True, slots=True)
class LayerFiles:
    """The files of one layer, an entry a shard.

    Parameters
    ----------
    name : str
        Of the layer.
    encoding : Encoding
        Of its payloads.
    spans : CheckedFiles
        The files of rows and index.
    payload_paths : sequence of str
        The files of payloads.
    num_spans, num_entries, block_elements, payload_bytes : int64 array of shape (num_shards,)
        Rows, entries of the index and elements they are apart, and bytes of all payloads.
    """

    name: str
    encoding: Encoding
    spans: CheckedFiles
    payload_paths: Sequence[str]
    num_spans: Int64Array
    num_entries: Int64Array
    block_elements: Int64Array
    payload_bytes: Int64Array

    @property
    def item(self) -> np.dtype[Any] | None:
        """The dtype of an item where payloads are delivered back to back, without decoding each."""
        return _flat_dtype(self.encoding)

    @property
    def item_bytes(self) -> int:
        """Bytes of what the offsets of payloads count."""
        return 1 if self.item is None else self.item.itemsize

    def disorder(self, shard: int, number: int) -> CorruptionError:
        """Make the error for a row that no writer makes."""
        path, offset = self.spans.paths[shard], SPAN_BYTES * number
        return CorruptionError(
            f"{path} is damaged: span {number}, at byte {offset}, contradicts the spans before it or the size of its "
            "shard. Restore the file, or write the layer again",
            path=path,
            offset=offset,
            length=SPAN_BYTES,
        )

    def bad_payload(
        self, shard: int, number: int, status: int, detail: int, offset: int, length: int
    ) -> GuideLoomError:
        """Make the error for a payload that does not match its row; it is among `length` bytes at `offset`."""
        path = self.payload_paths[shard]
        if status == UNEVEN:
            return DecodeError(
                f"the payload of span {number} in {path} has {detail} bytes, and items of layer {self.name!r} have "
                f"{self.item_bytes}",
                path=path,
                offset=offset,
                length=length,
            )
        expected, found = detail >> 32 & 0xFFFFFFFF, detail & 0xFFFFFFFF
        return CorruptionError(
            f"{path} is damaged: the payload of span {number}, among bytes {offset} to {offset + length}, should have "
            f"checksum {expected:#010x}, and has {found:#010x}, twice. Restore the file, or write the layer again",
            path=path,
            offset=offset,
            length=length,
            expected=expected,
            found=found,
        )

    def undecodable(self, spans: Spans, number: int, error: Exception) -> DecodeError:
        """Make the error for a payload that its encoding refuses."""
        place = f"{int(spans.true_start[number])} to {int(spans.true_end[number])}"
        made = DecodeError(
            f"layer {self.name!r}: the payload of the span of elements {place} is not what {self.encoding!r} "
            f"decodes: {type(error).__name__}: {error}"
        )
        made.__cause__ = error
        return made


def _flat_dtype(encoding: Encoding) -> np.dtype[Any] | None:
    if type(encoding) is NumpyArray:
        field = encoding.sections[0].fields[0]
        return np.dtype((field.dtype, field.shape))
    return encoding.sections[0].dtype if type(encoding) is Rows else None
