"""The span table of one annotation layer of one shard: its rows, and the sparse index that finds them."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from guideloom._speedups.spans import checksum_spans
from guideloom._typing import Int64Array, UInt8Array

SPAN_DTYPE = np.dtype([("start", "<u4"), ("length", "<u4"), ("payload_bytes", "<u4"), ("checksum", "<u4")])
INDEX_DTYPE = np.dtype([("lowest", "<u4"), ("first", "<u4"), ("payload_offset", "<u8")])
SPAN_BYTES = SPAN_DTYPE.itemsize
INDEX_BYTES = INDEX_DTYPE.itemsize

LEAST_BLOCK_ELEMENTS = 2**10
MOST_BLOCK_ELEMENTS = 2**30
MAX_SPANS = 2**32 - 1
MAX_SPAN_ELEMENTS = 2**32 - 1
MAX_PAYLOAD_BYTES = 2**32 - 1

# Blocks of elements get no smaller than that many spans lie in one, on average: so the index costs by the span too.
_LEAST_BLOCK_SPANS = 8
# More entries than that are made only where as many spans are: 16 MiB.
_MOST_NEW_ENTRIES = 2**20
# What a span is in the content hash: 64 bits of start, 32 of length, 32 of payload length.
_CONTENT_DTYPE = np.dtype([("start", "<u8"), ("length", "<u4"), ("payload_bytes", "<u4")])


class SpanTable:
    """Rows, sparse index and content hash of the spans of one shard, as they are appended.

    A row is a span: its start (modulo 2**32) and length in elements of the shard, the bytes of its payload, and the
    CRC32C of the file's seed, the number of the span, the row so far, and the payload. Rows come in the order of their
    starts, and payloads lie back to back in that order.

    The index divides the elements of the shard into blocks of ``block_elements``, and has an entry for each block and
    one for the end: the lowest span that ends after the block's start or does not start before it, the first span that
    does not start before it, and where in the file of payloads that of the lowest span begins. So the spans that touch
    elements ``a`` to ``b`` are among those from ``lowest[a // block_elements]`` to ``first[-(-b // block_elements)]``.

    Parameters
    ----------
    file_seed : int
        32 bits of the random id of the file of rows.
    block_elements : int, optional
        Elements of a block, if they are settled; else `finish` chooses by the spans.

    Attributes
    ----------
    num_spans : int
        Spans so far.
    payload_bytes : int
        Bytes of their payloads.
    """

    def __init__(self, *, file_seed: int, block_elements: int | None = None) -> None:
        self._file_seed = file_seed
        self.num_spans = 0
        self.payload_bytes = 0
        self._sha256 = hashlib.sha256()
        self._is_settled = block_elements is not None
        self._block_elements = LEAST_BLOCK_ELEMENTS if block_elements is None else block_elements
        self._entries: list[npt.NDArray[np.void]] = []
        self._num_entries = 0
        # The spans that end later than all before them, as (number, end, payload offset): the only ones that can be
        # the lowest to end after some element.
        self._records = np.empty((0, 3), np.int64)

    def append(
        self, start: Int64Array, end: Int64Array, payload: UInt8Array, payload_bytes: Int64Array
    ) -> npt.NDArray[np.void]:
        """Take the next spans, which `check_spans` found right, and return their rows.

        Parameters
        ----------
        start, end : int64 array of shape (n,)
            Elements of the shard.
        payload : uint8 array of shape (sum of `payload_bytes`,)
            The payloads, back to back.
        payload_bytes : int64 array of shape (n,)
            Bytes of each.

        Returns
        -------
        array of `SPAN_DTYPE` of shape (n,)

        Raises
        ------
        ValueError
            If the shard gets more than 2**32 - 1 spans.
        """
        n = len(start)
        if self.num_spans + n > MAX_SPANS:
            raise ValueError(f"a layer has at most {MAX_SPANS} spans in one shard; write more shards")
        rows = np.empty(n, SPAN_DTYPE)
        rows["start"] = start & 0xFFFFFFFF
        rows["length"] = end - start
        rows["payload_bytes"] = payload_bytes
        checksum_spans(rows.view("<u4").reshape(n, 4), payload, file_seed=self._file_seed, first_span=self.num_spans)
        self.add(start, end, payload_bytes)
        return rows

    def add(self, start: Int64Array, end: Int64Array, payload_bytes: Int64Array) -> None:
        """Take the next spans as `append` does, whose rows are there already."""
        n = len(start)
        content = np.empty(n, _CONTENT_DTYPE)
        content["start"], content["length"], content["payload_bytes"] = start, end - start, payload_bytes
        self._sha256.update(content.view(np.uint8).data)
        offsets = self.payload_bytes + np.cumsum(payload_bytes) - payload_bytes
        if n:
            self._index_up_to(start, end, offsets)
        self.num_spans += n
        self.payload_bytes += int(payload_bytes.sum())

    def content_hash(self) -> str:
        """Return the SHA-256 of all spans so far, in hexadecimal: starts, lengths and payload lengths."""
        return self._sha256.hexdigest()

    def finish(self, num_elements: int) -> tuple[int, npt.NDArray[np.void]]:
        """Return the elements of a block, and the index.

        Parameters
        ----------
        num_elements : int
            Elements of the shard.

        Returns
        -------
        block_elements : int
            A power of two.
        index : array of `INDEX_DTYPE` of shape (ceil(num_elements / block_elements) + 1,)
        """
        most = max(self.num_spans // _LEAST_BLOCK_SPANS, 1)
        while num_blocks(num_elements, self._block_elements) > most and self._can_double:
            self._double_blocks()
        nothing = np.empty(0, np.int64)
        self._add_entries(num_blocks(num_elements, self._block_elements) + 1, nothing, nothing)
        return self._block_elements, np.concatenate(self._entries)

    def _index_up_to(self, start: Int64Array, end: Int64Array, offsets: Int64Array) -> None:
        """Add the entries of the blocks that begin at or before the last of these spans: nothing later changes them."""
        highest = np.maximum.accumulate(end)
        before = int(self._records[-1, 1]) if len(self._records) else -1
        is_record = highest > np.concatenate(([before], np.maximum(highest[:-1], before)))
        number = self.num_spans + np.flatnonzero(is_record)
        new = np.stack([number, end[is_record], offsets[is_record]], axis=1)
        self._records = np.concatenate([self._records, new])
        last = int(start[-1])
        while last // self._block_elements + 1 - self._num_entries > _MOST_NEW_ENTRIES or (
            self._num_entries > max(_MOST_NEW_ENTRIES, self.num_spans // _LEAST_BLOCK_SPANS)
        ):
            if not self._can_double:
                break
            self._double_blocks()
        self._add_entries(last // self._block_elements + 1, start, offsets)
        self._records = self._records[self._records[:, 1] > self._num_entries * self._block_elements]

    def _add_entries(self, num_entries: int, start: Int64Array, offsets: Int64Array) -> None:
        """Add the entries that are missing to so many, where the next spans have these starts and payload offsets."""
        if num_entries <= self._num_entries:
            return
        block = np.arange(self._num_entries, num_entries, dtype=np.int64) * self._block_elements
        entries = np.empty(len(block), INDEX_DTYPE)
        following = np.searchsorted(start, block)
        entries["first"] = first = self.num_spans + following
        number, ends, offset = self._records.T
        record = np.searchsorted(ends, block, "right")
        number, offset = np.append(number, MAX_SPANS + 1), np.append(offset, 0)
        reaches_in = number[record] < first
        entries["lowest"] = np.where(reaches_in, number[record], first)
        own = np.append(offsets, self.payload_bytes if not len(offsets) else 0)[following]
        entries["payload_offset"] = np.where(reaches_in, offset[record], own)
        self._entries.append(entries)
        self._num_entries = num_entries

    @property
    def _can_double(self) -> bool:
        return not self._is_settled and self._block_elements < MOST_BLOCK_ELEMENTS

    def _double_blocks(self) -> None:
        entries = np.concatenate([np.empty(0, INDEX_DTYPE), *self._entries])[::2]
        self._block_elements *= 2
        self._entries, self._num_entries = [entries], len(entries)


def num_blocks(num_elements: int, block_elements: int) -> int:
    """Return how many blocks so many elements have."""
    return -(-num_elements // block_elements)


def check_spans(
    start: Int64Array, end: Int64Array, payload_bytes: Int64Array, *, after: int, num_elements: int
) -> None:
    """Raise ``ValueError`` unless some spans can follow one that starts at `after`, in a shard of so many elements.

    Parameters
    ----------
    start, end, payload_bytes : int64 array of shape (n,)
        Elements of the shard, and bytes of each payload.
    after : int
        The start of the span before, 0 for none.
    num_elements : int
        Elements of the shard so far; no span may end after them.
    """
    if not len(start):
        return
    previous = np.concatenate(([after], start[:-1]))
    for wrong, why in (
        (start < 0, "starts before the first element"),
        (end < start, "ends before it starts"),
        (end > num_elements, f"ends after the {num_elements} elements there are"),
        (start < previous, "starts before the one before it; sort the spans by their starts"),
        (end - start > MAX_SPAN_ELEMENTS, f"has more than {MAX_SPAN_ELEMENTS} elements"),
        (payload_bytes > MAX_PAYLOAD_BYTES, f"has a payload of more than {MAX_PAYLOAD_BYTES} bytes"),
    ):
        if wrong.any():
            i = int(wrong.argmax())
            raise ValueError(f"span {i}, {int(start[i])} to {int(end[i])}, {why}")
