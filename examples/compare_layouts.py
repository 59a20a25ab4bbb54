"""The same documents in all three layouts, side by side: what each is for, what it costs, and how it is read.

    python examples/compare_layouts.py

A stream is for language models that read windows of one long text; a stream with metadata also knows what lies in each
window; documents are for samples that stay apart.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt

import guideloom as gl


def documents() -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
    """Yield the pages of Python's own documentation: name, and tokens, here the bytes of the text."""
    for name, text in sorted(topics.items()):
        yield name, np.frombuffer(text.encode(), np.uint8)


def write_stream(path: Path) -> None:
    """Write one text after the other, and nothing beside it."""
    storage = gl.StreamStorage.create(path, dtype=np.uint8)
    with storage.writer(shard=0) as shard:
        for _, tokens in documents():
            shard.append(tokens)
    storage.commit()


def write_stream_with_metadata(path: Path) -> None:
    """Write the same stream, and in a layer beside it which page each token is of."""
    layers = {"document": gl.formats.JSON()}
    storage = gl.StreamWithMetadataStorage.create(path, dtype=np.uint8, layers=layers)
    with storage.writer(shard=0) as shard:
        for name, tokens in documents():
            shard.append(tokens, spans={"document": [(0, len(tokens), {"page": name})]})
    storage.commit()


def write_documents(path: Path) -> None:
    """Write each page as a sample of its own, whatever its length."""
    storage = gl.DocumentStorage.create(path, encoding=gl.formats.NumpyArray(np.uint8))
    with storage.writer(shard=0) as shard:
        for _, tokens in documents():
            shard.append(tokens)
    storage.commit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--window", type=int, default=512, help="tokens of a window; default: %(default)s")
    size = parser.parse_args().window
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        write_stream(root / "stream")
        write_stream_with_metadata(root / "metadata")
        write_documents(root / "documents")

        stream = gl.open_dataset(root / "stream", window=size)
        layered = gl.open_dataset(root / "metadata", window=size, layers=["document"])
        pages = gl.open_dataset(root / "documents")

        print("layout                samples  bytes on disk  a batch of 4 holds")
        for name, dataset in (("stream", stream), ("stream with metadata", layered), ("documents", pages)):
            num_bytes = sum(file.stat().st_size for file in root.joinpath(Path(dataset.location)).rglob("*.*"))
            with dataset.sync_reader() as reader:
                batch = reader.read_batch([0, 1, 2, 3])
            held = ", ".join(f"{key}: {_shape(part)}" for key, part in batch.items())
            print(f"{name:20} {len(dataset):8,} {num_bytes:14,}  {held}")

        # The tokens are the same, in whichever layout.
        with stream.sync_reader() as plain, layered.sync_reader() as annotated, pages.sync_reader() as whole:
            every = np.concatenate([tokens for _, tokens in documents()])
            window = annotated[7]
            assert np.array_equal(plain[7]["tokens"], window["tokens"])
            assert np.array_equal(every[7 * size : 8 * size], window["tokens"])
            assert np.array_equal(np.concatenate([sample["tokens"] for sample in whole]), every)
            found = window["document"]
            for i, document in enumerate(found.payloads):
                print(f"window 7 holds {found.end[i] - found.start[i]} tokens of the page {document['page']!r}")


def _shape(part: object) -> str:
    return str(part.shape) if isinstance(part, np.ndarray) else repr(part)


if __name__ == "__main__":
    main()
