"""Documents of any length: write them, read them awaited and blocking, and train on them with exact resume.

Chats are written as JSON and compressed, their token ids as arrays; a sample is one whole document.

    python examples/documents.py data/documents
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import numpy as np

import guideloom as gl
from guideloom.pytorch import Nested, Padded

NUM_CHATS = 1000
TOPICS = ("weather", "chess", "bread", "tides")


def write(chats: Path, tokens: Path) -> None:
    """Write the same chats twice: as JSON, and as arrays of ids, here the bytes of their text."""
    storage = gl.DocumentStorage.create(chats, encoding=gl.formats.JSON(), compression="zstd")
    arrays = gl.DocumentStorage.create(tokens, encoding=gl.formats.NumpyArrays({"ids": "<u2", "answer": "u1"}))
    for number in range(4):
        with storage.writer(shard=number) as shard, arrays.writer(shard=number) as ids_shard:
            for i in range(number, NUM_CHATS, 4):
                question = f"What is new about {TOPICS[i % 4]}?"
                answer = f"In chat {i}, " + "a lot, " * (i % 7) + "and more."
                messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
                shard.append({"id": i, "messages": messages})
                ids = np.frombuffer((question + answer).encode(), np.uint8)
                ids_shard.append({"ids": ids, "answer": np.arange(len(ids)) >= len(question)})
    storage.commit()
    arrays.commit()


async def read_async(chats: Path) -> int:
    """Read single chats at the same time, then an epoch in batches; return the messages of the epoch."""
    dataset = gl.open_dataset(chats)
    async with dataset.async_reader() as reader:
        first, last = await asyncio.gather(reader.read(0), reader.read(-1))
        print(f"{len(dataset)} chats, from {first['id']} to {last['id']}: {first['messages'][0]['content']}")
        return sum([len(chat["messages"]) async for batch in reader.batches(64, shuffle=True) for chat in batch])


def read_sync(tokens: Path) -> None:
    """Read arrays: a batch is flat values and offsets, without a Python object a document."""
    with gl.open_dataset(tokens).sync_reader() as reader:
        batch = reader.read_batch([5, 3, 900])
        ids = batch["ids"]
        print(f"lengths {ids.lengths.tolist()}, offsets {ids.offsets.tolist()}, first ids {ids[0][:4].tolist()}")


def train(tokens: Path) -> None:
    """Read padded and nested tensors; stop, and continue at exactly the next batch."""
    dataset = gl.open_dataset(tokens)
    padded = Padded(fill={"ids": 256})
    seen = 0
    with gl.StatefulDataLoader(dataset, 32, shuffle=True, seed=17, collate_fn=padded) as loader:
        for step, batch in enumerate(loader):
            seen += int(batch["ids_lengths"].sum())  # batch["ids"] has shape (32, longest), 256 where nothing is
            if step == 9:
                break
        state = loader.state_dict()
    with gl.StatefulDataLoader(dataset, 32, shuffle=True, seed=17, collate_fn=padded) as loader:
        loader.load_state_dict(state)
        seen += sum(int(batch["ids_lengths"].sum()) for batch in loader)
    with gl.StatefulDataLoader(dataset, 32, shuffle=True, seed=17, collate_fn=Nested()) as loader:
        nested = sum(batch["ids"].values().numel() for batch in loader)
    print(f"an epoch has {seen} tokens, read in two parts, and {nested} as nested tensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("data/documents"), help="default: %(default)s")
    folder = parser.parse_args().folder
    chats, tokens = folder / "chats", folder / "tokens"
    if not (tokens / "guideloom.json").exists():
        write(chats, tokens)
        print(f"wrote {chats} and {tokens}")
    print(f"{asyncio.run(read_async(chats))} messages in an epoch")
    read_sync(tokens)
    train(tokens)


if __name__ == "__main__":
    main()
