"""Documents of any length: how fast they are read in a shuffled order, checked, as one array each or as flat ones.

Every figure is the median of paired rounds, in which each contender runs once, in a fresh process. The machine should
have nothing else to do.
"""

import argparse
import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import document_data, page_cache
from benchmarks.clock import Clock, Timing
from benchmarks.measure import Benchmark, Contender, Goal, Report, run_rounds, select
from benchmarks.report import as_json, machine, machine_line, show
from benchmarks.yardstick import compile_yardstick

BATCH_SIZE = 64
PREAD = "C pread"
MEMMAP = "NumPy memory map, a loop"

# What the yardstick reads at a time: some milliseconds of work.
_AT_ONCE = 16_384


def read_documents(
    contender: str, path: str, num_documents: int, timing: dict[str, Any], **options: Any
) -> dict[str, Any]:
    """Let a contender read documents for a while; see `benchmarks.contenders.read_windows`."""
    function, *modules = CONTENDERS[contender]
    for module in modules:
        import_module(module)
    clock = Clock(Timing(**timing))
    _check(function(path, num_documents, clock, **options))
    return clock.result(4 * document_data.MEAN_TOKENS)


# Each contender starts the clock when it is ready to read, stops when the clock says so, and returns its last batch, as
# arrays.


def loader(path: str, num_documents: int, clock: Clock, *, as_list: bool) -> list[Any]:
    """Read by `guideloom.Loader`: flat values and offsets, or one array a document."""
    import guideloom as gl

    options: dict[str, Any] = {"shuffle": True, "seed": 17, "rank": 0, "world_size": 1, "drop_last": True}
    batches: gl.Loader[Any] = gl.Loader(gl.open_dataset(path), BATCH_SIZE, **options)
    with batches:
        clock.start()
        while True:
            for batch in batches:
                field = batch["tokens"]
                got = len(field.rows()) if as_list else len(field)
                if clock.add(got):
                    return list(field)


def async_reader(path: str, num_documents: int, clock: Clock) -> list[Any]:
    """Read by ``async for`` from an async reader: flat values and offsets."""
    import guideloom as gl

    async def main() -> list[Any]:
        async with gl.open_dataset(path).async_reader() as reader:
            clock.start()
            epoch = 0
            while True:
                async for batch in reader.batches(BATCH_SIZE, shuffle=True, seed=17, epoch=epoch, drop_last=True):
                    if clock.add(len(batch["tokens"])):
                        return list(batch["tokens"])
                epoch += 1

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    return uvloop.run(main())


def torch_loader(path: str, num_documents: int, clock: Clock, *, nested: bool) -> list[Any]:
    """Read by `guideloom.StatefulDataLoader`: padded tensors with lengths, or nested ones."""
    import guideloom as gl
    from guideloom.pytorch import Nested, Padded

    options: dict[str, Any] = {"shuffle": True, "seed": 17, "rank": 0, "world_size": 1, "drop_last": True}
    collate = Nested() if nested else Padded()
    with gl.StatefulDataLoader(gl.open_dataset(path), BATCH_SIZE, collate_fn=collate, **options) as batches:
        clock.start()
        while True:
            for batch in batches:
                if clock.add(BATCH_SIZE):
                    tokens = batch["tokens"]
                    if nested:
                        return [row.numpy() for row in tokens.unbind()]
                    return [row[:n].numpy() for row, n in zip(tokens, batch["tokens_lengths"], strict=True)]


def c_pread(path: str, num_documents: int, clock: Clock, *, library: str, num_threads: int) -> list[Any]:
    """Read by ``pread`` in C, without a loader: what the machine gives."""
    import numpy as np

    from benchmarks.yardstick import Yardstick
    from guideloom import DocumentStorage

    files = [Path(path) / shard.data.file for shard in DocumentStorage.open(path).manifest.shards]
    sizes = 4 * document_data.lengths(num_documents)
    begins = np.cumsum(sizes) - sizes
    order = np.random.default_rng(17).permutation(num_documents)
    offsets, lengths = begins[order], sizes[order]
    with Yardstick(library, files, int(sizes.max()), num_threads) as yardstick:
        clock.start()
        while True:
            for start in range(0, num_documents, _AT_ONCE):
                part, size = offsets[start : start + _AT_ONCE], lengths[start : start + _AT_ONCE]
                yardstick.read(part, size)
                if clock.add(len(part)):
                    return [yardstick.buffers.view("<i4")[0, : size.min() // 4]]


def memmap_loop(path: str, num_documents: int, clock: Clock) -> list[Any]:
    """Copy each document out of a memory map of one file, into a list."""
    import numpy as np

    tokens = np.memmap(Path(path).with_suffix(".bin"), "<i4", "r")
    ends = np.cumsum(document_data.lengths(num_documents))
    offsets = [0, *ends.tolist()]
    generator = np.random.default_rng(17)
    clock.start()
    while True:
        order = generator.permutation(num_documents).tolist()
        for start in range(0, num_documents, BATCH_SIZE):
            batch = [np.array(tokens[offsets[i] : offsets[i + 1]]) for i in order[start : start + BATCH_SIZE]]
            if clock.add(len(batch)):
                return batch


CONTENDERS: dict[str, tuple[Callable[..., list[Any]], *tuple[str, ...]]] = {
    "loader": (loader, "numpy"),
    "async_reader": (async_reader, "numpy"),
    "torch_loader": (torch_loader, "numpy", "torch.utils.data"),
    "c_pread": (c_pread, "numpy"),
    "memmap_loop": (memmap_loop, "numpy"),
}


def warm(num_shards: int, num_documents: int, timing: Timing) -> Benchmark:
    """Return the race of all readers over pages in the cache."""
    path = document_data.documents(num_shards, num_documents)
    raw = document_data.raw_file(path)
    files = [*page_cache.files_of(path), raw]

    def contender(name: str, key: str, goals: Sequence[Goal] = (), mark: str = "", **options: Any) -> Contender:
        arguments = {"contender": key, "path": str(path), "num_documents": num_documents}
        arguments |= {"timing": {name: getattr(timing, name) for name in timing.__slots__}, **options}
        return Contender(
            name, "benchmarks.documents:read_documents", arguments, goals, partial(page_cache.warm, files), mark
        )

    library = str(compile_yardstick())
    contenders = [
        contender(PREAD, "c_pread", mark="a", library=library, num_threads=1),
        contender(f"{PREAD}, 2 threads", "c_pread", library=library, num_threads=2),
        contender(MEMMAP, "memmap_loop", mark="b"),
        contender("Loader, values and offsets", "loader", [Goal(1_400_000)], as_list=False),
        contender("Loader, a list of arrays", "loader", [Goal(800_000)], as_list=True),
        contender("async reader, values and offsets", "async_reader"),
    ]
    if find_spec("torch"):
        contenders += [
            contender("StatefulDataLoader, padded", "torch_loader", nested=False),
            contender("StatefulDataLoader, nested", "torch_loader", nested=True),
        ]
    megabytes = 4e-6 * document_data.lengths(num_documents).sum()
    mean = document_data.MEAN_TOKENS
    title = f"{num_documents:,} documents of {mean} int32, {megabytes:,.0f} MB, batches of {BATCH_SIZE}"
    return Benchmark(title, "documents/s", contenders, (PREAD, MEMMAP))


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run what the command line asks for, print a table, and return the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.documents", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few documents and one round: does it run at all?")
    parser.add_argument("--rounds", type=int, help="rounds (5, or 1 if quick)")
    parser.add_argument("--only", default="", metavar="NAME", help="contenders whose name holds this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    options = parser.parse_args(arguments)
    num_rounds = options.rounds if options.rounds is not None else (1 if options.quick else 5)
    if num_rounds < 1:
        parser.error("at least one round")
    found = machine()
    print(machine_line(found), flush=True)
    timing = Timing(warmup_seconds=0.02, seconds=0.05) if options.quick else Timing()
    benchmark = warm(16, 2000 if options.quick else 200_000, timing)
    benchmark = select(benchmark, options.only)
    if not benchmark.contenders:
        parser.error(f"no contender is called {options.only!r}")
    report = run_rounds(benchmark, num_rounds)
    show(report)
    if options.json:
        options.json.write_text(as_json([report], found, {"rounds": num_rounds, "quick": options.quick}) + "\n")
    return [report]


def _check(batch: list[Any]) -> None:
    """Raise an error unless every array is a document, in which each token is one more than that before."""
    import numpy as np

    if not batch or any(len(array) < 1 or (np.diff(array) != 1).any() or array[0] < 0 for array in batch):
        raise RuntimeError(f"what was read are not documents: {batch}")


if __name__ == "__main__":
    main()
