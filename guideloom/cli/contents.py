"""What a dataset holds, as plain JSON types: the facts of its manifest, and some of its windows."""

from __future__ import annotations

from typing import Any

import click

from guideloom.bridge import run_sync
from guideloom.cli.tokenizer import BYTES, TOKENIZER_FILE, BytesTokenizer, FileTokenizer, Tokenizer, load_tokenizer
from guideloom.datasets.stream import StreamDataset
from guideloom.errors import MissingFileError
from guideloom.formats.schema import PLAIN_FIELD
from guideloom.storage.checksums import BLOCK_BYTES

_MOST_TOKENIZER_BYTES = 64 * 2**20


def facts(dataset: StreamDataset) -> dict[str, Any]:
    """Return what the manifest says."""
    manifest = dataset.manifest
    rows = [shard.rows for shard in manifest.shards]
    return {
        "kind": manifest.kind,
        "snapshot": manifest.snapshot,
        "schema": [
            {"name": field.name, "dtype": str(field.dtype), "shape": list(field.shape)}
            for field in manifest.schema.fields
        ],
        "row_bytes": manifest.schema.row_bytes,
        "shards": len(rows),
        "smallest_shard": min(rows, default=0),
        "largest_shard": max(rows, default=0),
        "elements": manifest.num_rows,
        "bytes": manifest.num_bytes,
        "fingerprint": manifest.fingerprint,
        "checksums": {"algorithm": "crc32c", "block_bytes": BLOCK_BYTES},
        "layers": [
            {
                "name": layer.name,
                "encoding": layer.encoding.name,
                "spans": sum(shard.layers[position].spans for shard in manifest.shards),
                "payload_bytes": sum(shard.layers[position].payload_bytes for shard in manifest.shards),
            }
            for position, layer in enumerate(manifest.layers)
        ],
        "metadata": manifest.metadata,
    }


def windows(dataset: StreamDataset, samples: int, decoder: Tokenizer | None) -> list[dict[str, Any]]:
    """Return a few windows at even distances, with a text where `decoder` can make one of the tokens."""
    count = min(samples, len(dataset))
    if not count:
        return []
    indices = [k * len(dataset) // count for k in range(count)]
    with dataset.sync_reader() as reader:
        batch = reader.read_batch(indices)
    shown = []
    for row, index in enumerate(indices):
        values = {name: array[row] for name, array in batch.items()}
        window: dict[str, Any] = {"index": index, "fields": {name: part.tolist() for name, part in values.items()}}
        tokens = values.get(PLAIN_FIELD)
        if decoder and tokens is not None and tokens.ndim == 1 and tokens.dtype.kind in "iu" and tokens.min() >= 0:
            window["text"] = decoder.decode(tokens)
        shown.append(window)
    return shown


def decoder_of(dataset: StreamDataset, option: str | None) -> Tokenizer | None:
    """Return what makes text of the tokens: what the user names, or else what the dataset was built with."""
    name, sha256 = (dataset.manifest.metadata.get(key) for key in ("tokenizer", "tokenizer_sha256"))
    if option is not None:
        chosen = load_tokenizer(option)
        if (name, sha256) != (None, None) and chosen.sha256 != sha256:
            _note(f"the dataset was built with another tokenizer than {option}")
        return chosen
    if name == BYTES:
        return BytesTokenizer()
    file = run_sync(_read_tokenizer(dataset)) if isinstance(sha256, str) else None
    if file is None:
        return None
    try:
        found = FileTokenizer(f"the dataset's {TOKENIZER_FILE}", file)
    except click.ClickException as error:
        _note(f"windows are shown as numbers: {error.message}")
        return None
    if found.sha256 != sha256:
        _note(f"windows are shown as numbers: {found.name} is not the one that the dataset was built with")
        return None
    return found


def _note(text: str) -> None:
    click.echo(f"note: {text}", err=True)


async def _read_tokenizer(dataset: StreamDataset) -> bytes | None:
    await dataset.backend.open()
    try:
        return await dataset.backend.read_file(TOKENIZER_FILE, max_bytes=_MOST_TOKENIZER_BYTES)
    except MissingFileError:
        return None
    finally:
        await dataset.backend.close()
