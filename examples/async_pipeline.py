"""A pipeline of one's own on asyncio: several readers, a bounded queue, and a consumer that counts tokens.

    python examples/async_pipeline.py data/corpus

If there is no dataset, one is made of Python's own documentation, with bytes as tokens. A ticker runs beside the
readers and measures how late the event loop wakes it: reading never blocks the loop for long, so a server, a progress
display or a cluster client can live in it too.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import numpy.typing as npt

import guideloom as gl

Tokens = npt.NDArray[np.integer]

TICK_SECONDS = 0.005


@dataclass
class Statistics:
    """How often each token occurred."""

    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(2**16, np.int64))
    windows: int = 0

    def add(self, tokens: Tokens) -> None:
        self.counts += np.bincount(tokens.reshape(-1), minlength=len(self.counts))
        self.windows += len(tokens)


def make_dataset(folder: Path) -> None:
    storage = gl.StreamStorage.create(folder, dtype=np.uint16, metadata={"tokenizer": "bytes", "eos": 256})
    texts = [np.frombuffer(text.encode(), np.uint8) for text in topics.values()]
    for number in range(4):
        with storage.writer(shard=number) as shard:
            for text in texts[number::4]:
                shard.append(text)
                shard.append([256])  # the document ends
    storage.commit()


async def read(reader: gl.AsyncReader[Any, Any], queue: asyncio.Queue[Tokens], part: int, parts: int) -> None:
    """Put one part of a shuffled epoch into the queue; a full queue makes the reader wait."""
    batches = reader.batches(batch_size=16, shuffle="global", seed=17, rank=part, world_size=parts, prefetch=8)
    async for batch in batches:
        await queue.put(batch["tokens"][: int(batch.get("num_valid", 16))])  # the last batch may be padded


async def count(queue: asyncio.Queue[Tokens], statistics: Statistics) -> None:
    while True:
        statistics.add(await queue.get())
        queue.task_done()


async def tick(late: list[float]) -> None:
    """Note how many seconds late each tick comes."""
    while True:
        due = time.perf_counter() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        late.append(time.perf_counter() - due)


async def pipeline(dataset: gl.StreamDataset, num_readers: int) -> tuple[Statistics, list[float]]:
    """Count the tokens of one epoch."""
    statistics = Statistics()
    late: list[float] = []
    queue: asyncio.Queue[Tokens] = asyncio.Queue(maxsize=4)
    # The groups end whatever is running as soon as anything fails, on either side of the queue.
    async with dataset.async_reader() as reader, asyncio.TaskGroup() as group:
        beside = [group.create_task(tick(late)), group.create_task(count(queue, statistics))]
        async with asyncio.TaskGroup() as readers:
            for part in range(num_readers):
                readers.create_task(read(reader, queue, part, num_readers))
        await queue.join()
        for task in beside:
            task.cancel()
    return statistics, late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("data/pipeline"), help="default: %(default)s")
    parser.add_argument("--window", type=int, default=256, help="default: %(default)s")
    parser.add_argument("--readers", type=int, default=3, help="default: %(default)s")
    args = parser.parse_args()
    if not (args.folder / "guideloom.json").exists():
        make_dataset(args.folder)
        print(f"wrote {args.folder}")

    dataset = gl.open_dataset(args.folder, window=args.window, fields=["tokens"])
    print(dataset)
    start = time.perf_counter()
    statistics, late = asyncio.run(pipeline(dataset, args.readers))
    seconds = time.perf_counter() - start
    total = int(statistics.counts.sum())
    print(f"{args.readers} readers brought {statistics.windows:,} windows, {total / seconds / 1e6:.1f} M tokens/s")
    for token in np.argsort(statistics.counts)[::-1][:5].tolist():
        print(f"  token {token}: {100 * statistics.counts[token] / total:.1f} %")
    worst = 1000 * max(late, default=0.0)
    print(f"meanwhile the loop ticked {len(late)} times, at worst {worst:.1f} ms late")


if __name__ == "__main__":
    main()
