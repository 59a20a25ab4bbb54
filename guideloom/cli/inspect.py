"""``guideloom inspect``: what a dataset holds."""

from __future__ import annotations

from typing import Any

import click

from guideloom.cli.text import print_table

_MOST_NUMBERS = 16  # of a field that is not shown as text
_MOST_LETTERS = 300  # of a document

_EXAMPLE = """\b
Example:
  guideloom inspect data/corpus --window 32
  guideloom inspect data/corpus --samples 0 --json
"""


@click.command(no_args_is_help=True, epilog=_EXAMPLE)
@click.argument("dataset")
@click.option("--window", type=click.IntRange(1), default=64, show_default=True, help="Elements of a window.")
@click.option("--samples", type=click.IntRange(0), default=3, show_default=True, help="Windows or documents to show.")
@click.option("--tokenizer", metavar="FILE|bytes", help="What decodes the tokens; by default what built the dataset.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def inspect(dataset: str, window: int, samples: int, tokenizer: str | None, as_json: bool) -> None:
    """Show what DATASET holds, and a few of its windows or documents.

    Reads the manifest and these samples, whatever the size of the dataset. They lie at even distances over it.
    """
    from guideloom.cli.contents import decoder_of, facts, windows
    from guideloom.datasets.opening import find_dataset, open_dataset
    from guideloom.storage.document_manifest import DocumentManifest

    if isinstance(find_dataset(dataset)[2], DocumentManifest):
        _inspect_documents(dataset, samples, as_json=as_json)
        return
    opened = open_dataset(dataset, window=window)
    found = facts(opened)
    if not as_json:
        _print_facts(dataset, found)
    shown = windows(opened, samples, decoder_of(opened, tokenizer) if samples else None)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"dataset": dataset, **found, "window": window, "windows": shown}))
    elif samples:
        _print_windows(window, len(opened), shown)


def _inspect_documents(name: str, samples: int, *, as_json: bool) -> None:
    from guideloom.cli.documents import document_facts, open_documents, some_documents

    dataset = open_documents(name)
    found, shown = document_facts(dataset), some_documents(dataset, samples)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"dataset": name, **found, "samples": shown}))
        return
    rows = [
        ("kind", f"{found['kind']}, snapshot {found['snapshot']}"),
        ("encoding", ", ".join([found["encoding"], *([found["compression"]] if found["compression"] else [])])),
    ]
    if found["fields"]:
        rows.append(
            ("fields", ", ".join(f"{item['name']} {item['dtype']}{item['shape'] or ''}" for item in found["fields"]))
        )
    rows += [
        ("shards", f"{found['shards']:,}"),
        ("documents", f"{found['documents']:,}, of {found['mean_bytes']:,} bytes on average"),
        ("bytes", f"{found['bytes']:,}"),
        ("fingerprint", found["fingerprint"]),
        ("checksums", "CRC32C of every document"),
    ]
    rows += [(f"metadata: {key}", str(value)) for key, value in found["metadata"].items()]
    print_table(name, rows)
    if shown:
        title = f"{len(shown):,} of {found['documents']:,} documents"
        print_table(title, [(f"{item['index']:,}", _shortened(item["document"])) for item in shown])


def _shortened(document: Any) -> str:
    if isinstance(document, dict) and all(isinstance(part, list) for part in document.values()):
        return "; ".join(f"{name}: {_numbers(values)}" for name, values in document.items())
    text = str(document)
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"


def _print_facts(dataset: str, facts: dict[str, Any]) -> None:
    fields = [f"{field['name']} {field['dtype']}{field['shape'] or ''}" for field in facts["schema"]]
    shards = f"{facts['shards']:,}"
    if facts["shards"] > 1:
        shards += f", of {facts['smallest_shard']:,} to {facts['largest_shard']:,} elements"
    rows = [
        ("kind", f"{facts['kind']}, snapshot {facts['snapshot']}"),
        ("schema", f"{', '.join(fields)}; {facts['row_bytes']:,} bytes an element"),
        ("shards", shards),
        ("elements", f"{facts['elements']:,}"),
        ("bytes", f"{facts['bytes']:,}"),
        *((f"layer: {layer['name']}", _layer(layer)) for layer in facts["layers"]),
        ("fingerprint", facts["fingerprint"]),
        ("checksums", f"CRC32C of every {facts['checksums']['block_bytes']:,} bytes"),
    ]
    rows += [(f"metadata: {key}", str(value)) for key, value in facts["metadata"].items()]
    print_table(dataset, rows)


def _layer(layer: dict[str, Any]) -> str:
    return f"{layer['spans']:,} spans, payloads of {layer['payload_bytes']:,} bytes, encoded as {layer['encoding']}"


def _print_windows(window: int, total: int, windows: list[dict[str, Any]]) -> None:
    if not windows:
        click.echo(f"It is shorter than one window of {window:,} elements.")
        return
    rows: list[tuple[str, ...]] = []
    for shown in windows:
        cells = {name: _numbers(values) for name, values in shown["fields"].items()}
        if "text" in shown:
            cells["tokens"] = repr(shown["text"])
        names = [f"{shown['index']:,}"] + [""] * (len(cells) - 1)
        rows += [(index, name, cell) for index, (name, cell) in zip(names, cells.items(), strict=True)]
    print_table(f"{len(windows):,} of {total:,} windows of {window:,} elements", rows)


def _numbers(values: list[Any]) -> str:
    return " ".join(map(str, values[:_MOST_NUMBERS])) + (" …" if len(values) > _MOST_NUMBERS else "")
