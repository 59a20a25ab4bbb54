"""What a dataset of documents holds, as plain JSON types: the facts of its manifest, and some of its documents."""

from __future__ import annotations

import json
from typing import Any

from guideloom.datasets.documents import DocumentDataset
from guideloom.datasets.opening import open_dataset
from guideloom.errors import UnknownEncodingError
from guideloom.formats import Bytes


def open_documents(name: str) -> DocumentDataset:
    """Open a dataset of documents; as stored bytes where its encoding is not known here."""
    try:
        return open_dataset(name)
    except UnknownEncodingError:
        return open_dataset(name, encoding=Bytes())


def document_facts(dataset: DocumentDataset) -> dict[str, Any]:
    """Return what the manifest says."""
    manifest = dataset.manifest
    return {
        "kind": manifest.kind,
        "snapshot": manifest.snapshot,
        "encoding": manifest.encoding.name,
        "compression": manifest.compression,
        "fields": [
            {"name": field.name, "dtype": str(field.dtype), "shape": list(field.shape)}
            for section in manifest.sections
            for field in section.fields
        ],
        "shards": len(manifest.shards),
        "documents": manifest.num_documents,
        "bytes": manifest.num_bytes,
        "mean_bytes": manifest.decoded_bytes // max(manifest.num_documents, 1),
        "fingerprint": manifest.fingerprint,
        "metadata": manifest.metadata,
    }


def some_documents(dataset: DocumentDataset, samples: int) -> list[dict[str, Any]]:
    """Return a few documents at even distances."""
    count = min(samples, len(dataset))
    indices = [k * len(dataset) // count for k in range(count)]
    with dataset.sync_reader() as reader:
        return [{"index": i, "document": _plain(reader.read(i))} for i in indices]


def _plain(document: Any) -> Any:
    if isinstance(document, bytes):
        return document.decode(errors="backslashreplace")
    if isinstance(document, dict) and all(hasattr(part, "tolist") for part in document.values()):
        return {name: array.tolist() for name, array in document.items()}
    try:
        json.dumps(document)
    except (TypeError, ValueError):  # of an encoding of the user's own
        return repr(document)
    return document
