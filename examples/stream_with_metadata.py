"""A stream with annotation layers: write it, add a layer later, read both ways, and train on it with exact resume.

Articles are written as one stream of tokens, with a layer that says where each begins, and what it is about. A second
layer, concepts found in spans of tokens, is added when the stream is there already. Run it with a folder to keep the
data:

    python examples/stream_with_metadata.py data/articles
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

import numpy as np

import guideloom as gl

NUM_ARTICLES = 400
TOPICS = ("weather", "chess", "bread", "tides")
WINDOW = 256
SPAN = 50


def write(folder: Path) -> None:
    """Write four shards of tokens, with a span of the layer "document" for each article."""
    storage = gl.StreamWithMetadataStorage.create(folder, dtype="<u2", layers={"document": gl.formats.JSON()})
    for number in range(4):
        with storage.writer(shard=number) as shard:
            for i in range(number, NUM_ARTICLES, 4):
                ids = np.arange(100 + 37 * (i % 11)) + i
                shard.append(ids, spans={"document": [(0, len(ids), {"id": i, "topic": TOPICS[i % 4]})]})
    storage.commit()


def add_concepts(folder: Path) -> None:
    """Add a layer to what is written: some concepts, int32, for each fifty tokens. The tokens stay as they are."""
    storage = gl.StreamStorage.open(folder)
    concepts = storage.add_layer("concepts", gl.formats.NumpyArray("<i4"))
    for number in concepts.missing():
        with concepts.writer(shard=number) as spans:
            start = np.arange(0, spans.num_elements, SPAN)
            end = np.minimum(start + SPAN, spans.num_elements)
            counts = np.arange(len(start)) % 4
            offsets = np.concatenate([[0], np.cumsum(counts)])
            spans.append(gl.FlatSpans(start, end, np.arange(offsets[-1]), offsets))
    print(f"the layer is in snapshot {concepts.commit()}")


async def read_async(folder: Path) -> int:
    """Read single windows, then an epoch in batches; return the concepts of the epoch."""
    dataset = gl.open_dataset(folder, window=WINDOW, layers=["document", "concepts"])
    async with dataset.async_reader() as reader:
        window = await reader.read(1)
        for i, article in enumerate(window["document"].payloads):
            spans = window["document"]
            place = f"tokens {spans.start[i]} to {spans.end[i]} of the window"
            print(f"article {article['id']} about {article['topic']}: {place}, {spans.true_start[i]} of the stream")
        return sum([len(batch["concepts"].values) async for batch in reader.batches(16, shuffle=True)])


def read_sync(folder: Path) -> int:
    """Read a batch: spans of all its windows as flat arrays; return how many tokens of it no article covers."""
    with gl.open_dataset(folder, window=WINDOW, layers=["document", "concepts"]).sync_reader() as reader:
        batch = reader.read_batch([3, 0, 20])
        concepts = batch["concepts"]
        print(f"{concepts}: those of window 1 are {concepts.row(1).values[:5].tolist()} …")
        # Per token: which span covers it, and by that what is known of it.
        return int((batch["document"].element_index() < 0).sum())


def train(folder: Path) -> int:
    """Stop after ten batches, and continue at exactly the next. Return the documents that attention saw."""
    dataset = gl.open_dataset(folder, window=WINDOW, layers=["document"])
    seen = 0
    with gl.StatefulDataLoader(dataset, 4, shuffle=True, seed=17, drop_last=True) as loader:
        for step, batch in enumerate(loader):
            # Attention within documents: ids for a mask, or the edges of runs for kernels that take `cu_seqlens`.
            layout = batch["document"].document_layout()
            seen += len(layout.cu_seqlens) - 1
            if step == 9:
                break
        state = loader.state_dict()
    with gl.StatefulDataLoader(dataset, 4, shuffle=True, seed=17, drop_last=True) as loader:
        loader.load_state_dict(state)
        seen += sum(len(batch["document"].document_layout().cu_seqlens) - 1 for batch in loader)
    print(f"an epoch has {seen} runs of one document")
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where the data go (default: a temporary one)")
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as temporary:
        path = folder or Path(temporary) / "articles"
        write(path)
        add_concepts(path)
        print(f"an epoch has {asyncio.run(read_async(path))} concepts")
        print(f"{read_sync(path)} tokens of the batch are in no article")
        train(path)


if __name__ == "__main__":
    main()
