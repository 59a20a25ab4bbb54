"""The files of an annotation layer of a shard, held against their hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

from guideloom.storage.document_content import DocumentFileContent
from guideloom.storage.records import LayerEntry, StoredFile
from guideloom.storage.span_table import SPAN_BYTES, SPAN_DTYPE, content_rows
from guideloom.storage.stream_manifest import StreamManifest
from guideloom.storage.verification import Damage


class SpanContent:
    """The hash of what the spans of a layer of a shard mean, as far as their rows have been read.

    Rows hold starts modulo 2**32, so this is for shards of fewer elements.

    Parameters
    ----------
    entry : LayerEntry
        The layer of the shard.
    shard : int
        Number of the shard.
    """

    def __init__(self, entry: LayerEntry, shard: int) -> None:
        self.file = StoredFile(entry.file, SPAN_BYTES * entry.spans, entry.sha256, entry.checksum_seed)
        self._shard = shard
        self._sha256 = hashlib.sha256()

    def add(self, piece: memoryview) -> None:
        """Take the next bytes: whole rows."""
        rows = np.frombuffer(piece, SPAN_DTYPE)
        self._sha256.update(content_rows(rows["start"], rows["length"], rows["payload_bytes"]).view(np.uint8).data)

    def finish(self) -> Iterator[Damage]:
        """Yield what is wrong with the rows."""
        found = self._sha256.hexdigest()
        if found != self.file.sha256:
            reason = "damaged or exchanged: the SHA-256 of its spans differs"
            yield Damage(self.file.file, reason, self._shard, 0, self.file.bytes, self.file.sha256, found)


def layer_contents(manifests: Iterable[StreamManifest]) -> list[SpanContent | DocumentFileContent]:
    """Return the rows of spans, and the payloads, that manifests name, each once."""
    entries = {entry.file: (entry, shard) for each in manifests for shard in each.shards for entry in shard.layers}
    contents: list[SpanContent | DocumentFileContent] = []
    for entry, shard in entries.values():
        if shard.rows < 2**32:  # of longer ones, the checksums of their blocks are compared
            contents.append(SpanContent(entry, shard.number))
        payloads = StoredFile(entry.payloads, entry.payload_bytes, entry.payload_sha256, entry.checksum_seed)
        contents.append(DocumentFileContent(payloads, shard.number, 0))
    return contents
