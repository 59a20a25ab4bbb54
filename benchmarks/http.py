"""Ranges and windows over HTTP, against a bare aiohttp loop on the same nginx: ``python -m benchmarks.http``.

Every figure is the median of paired rounds, in which each contender runs once, in a fresh process. Server and client
share the machine, so absolute figures say what one of its cores gives; ratios are what counts.
"""

import argparse
import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import data, page_cache
from benchmarks.clock import Clock, Timing
from benchmarks.measure import Benchmark, Contender, Goal, Report, run_rounds
from benchmarks.report import as_json, machine, machine_line, show
from benchmarks.web_server import nginx

BARE = "aiohttp loop"
SEED = 17
CONCURRENCY = 32
# Ranges of one call: what a slice of batches asks for.
CALL_RANGES = 1024
BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Size:
    """How large the stream is, and how long is measured."""

    num_shards: int
    shard_tokens: int
    timing: Timing


FULL = Size(16, 1_600_000, Timing())
QUICK = Size(4, 65_536, Timing(warmup_seconds=0.02, seconds=0.05))


@dataclass(frozen=True, slots=True)
class Work:
    """What is read: ranges of so many bytes at multiples of them, in random order, of the data files of a stream."""

    url: str
    files: list[str]
    file_bytes: int
    range_bytes: int
    timing: dict[str, Any]

    def ranges(self) -> list[tuple[str, int]]:
        """Return all of them in random order, as path and offset."""
        import numpy as np

        each = self.file_bytes // self.range_bytes
        order = np.random.default_rng(SEED).permutation(each * len(self.files))
        return [(self.files[i // each], i % each * self.range_bytes) for i in order.tolist()]


def aiohttp_loop(work: dict[str, Any]) -> dict[str, Any]:
    """Read by as many loops over ``session.get`` as requests may be under way, checking nothing."""
    import aiohttp

    given = Work(**work)
    ranges = given.ranges()
    clock = Clock(Timing(**given.timing))

    async def main() -> None:
        connector = aiohttp.TCPConnector(limit=CONCURRENCY)
        async with aiohttp.ClientSession(connector=connector) as session:
            at, full = 0, False

            async def read() -> None:
                nonlocal at, full
                while not full:
                    path, offset = ranges[at % len(ranges)]
                    at += 1
                    headers = {"Range": f"bytes={offset}-{offset + given.range_bytes - 1}"}
                    async with session.get(f"{given.url}/{path}", headers=headers) as response:
                        assert len(await response.read()) == given.range_bytes
                    full = full or clock.add(1)

            clock.start()
            await asyncio.gather(*(read() for _ in range(CONCURRENCY)))

    _run(main)
    return _result(clock, given.range_bytes, {"requests each": 1.0, "read ×": 1.0})


def backend(work: dict[str, Any], *, coalesce: bool) -> dict[str, Any]:
    """Read by calls of `HTTPBackend.read_ranges`, with or without coalescing."""
    import numpy as np

    from guideloom.backends import CoalescingBackend, HTTPBackend
    from guideloom.ranges import ByteRanges

    given = Work(**work)
    ranges = given.ranges()
    clock = Clock(Timing(**given.timing))
    http = HTTPBackend(given.url, max_concurrency=CONCURRENCY)
    wrapped = CoalescingBackend(http) if coalesce else http
    counted = {"ranges": 0, "requests": 0, "bytes": 0}

    async def main() -> None:
        views = [row.data for row in np.zeros((CALL_RANGES, given.range_bytes), np.uint8)]
        calls = [
            ByteRanges.of((path, offset, given.range_bytes) for path, offset in ranges[at : at + CALL_RANGES])
            for at in range(0, len(ranges), CALL_RANGES)
        ]  # a loader's plan comes from compiled code
        await wrapped.open()
        clock.start()
        for asked in itertools.cycle(calls):
            await wrapped.read_ranges(asked, views[: len(asked)])
            counted["ranges"] += len(asked)
            if clock.add(len(asked)):
                break
        stats = http.stats()
        counted["requests"], counted["bytes"] = stats["requests"], stats["bytes_received"]
        await wrapped.close()

    _run(main)
    return _result(clock, given.range_bytes, _costs(counted, given.range_bytes))


def loader(url: str, window: int, timing: dict[str, Any]) -> dict[str, Any]:
    """Read shuffled windows by `guideloom.Loader`, checked against their checksums."""
    import guideloom as gl

    clock = Clock(Timing(**timing))
    dataset = gl.open_dataset(url, window=window)
    wrapped: Any = dataset.backend
    counted = {"ranges": 0, "requests": 0, "bytes": 0}
    with gl.Loader(dataset, BATCH_SIZE, shuffle=True, seed=SEED, drop_last=True) as batches:
        clock.start()
        full = False
        while not full:
            for batch in batches:
                counted["ranges"] += len(batch["tokens"])
                full = clock.add(len(batch["tokens"]))
                if full:
                    stats = wrapped.stats()
                    counted["requests"], counted["bytes"] = stats["requests"], stats["bytes_received"]
                    break
    return _result(clock, 4 * window, _costs(counted, 4 * window))


def ranges_benchmark(size: Size, url: str, path: Path, range_bytes: int) -> Benchmark:
    """Return the race of reading ranges of one size."""
    files = [str(file.relative_to(path)) for file in data.shard_files(path)]
    work = asdict(Work(url, files, 4 * size.shard_tokens, range_bytes, asdict(size.timing)))
    contenders = [
        Contender(BARE, "benchmarks.http:aiohttp_loop", {"work": work}),
        Contender("HTTPBackend", "benchmarks.http:backend", {"work": work, "coalesce": False}, [Goal(0.9, BARE)]),
        Contender("… coalescing", "benchmarks.http:backend", {"work": work, "coalesce": True}, [Goal(1.0, BARE)]),
    ]
    total = size.num_shards * size.shard_tokens * 4 / 1e6
    title = f"Random ranges of {range_bytes:,} bytes of {total:,.0f} MB, {CALL_RANGES} a call, {CONCURRENCY} requests"
    return Benchmark(title, "ranges/s", contenders, (BARE,))


def windows_benchmark(size: Size, url: str) -> Benchmark:
    """Return what a loader makes of it."""
    contenders = [
        Contender(
            f"Loader, T = {window}",
            "benchmarks.http:loader",
            {"url": url, "window": window, "timing": asdict(size.timing)},
        )
        for window in (512, 2048, 8192)
    ]
    return Benchmark("Shuffled windows of int32, checked", "windows/s", contenders)


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run, print tables, and return the reports."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny stream and one round: does it run at all?")
    parser.add_argument("--rounds", type=int, default=0, help="rounds (5, or 1 if quick)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    options = parser.parse_args(arguments)
    size, num_rounds = (QUICK, options.rounds or 1) if options.quick else (FULL, options.rounds or 5)
    found = machine()
    print(machine_line(found), flush=True)
    path = data.stream(size.num_shards, size.shard_tokens)
    page_cache.warm(page_cache.files_of(path))
    reports = []
    with nginx(path) as url:
        benchmarks = [ranges_benchmark(size, url, path, range_bytes) for range_bytes in (8192, 65_536)]
        for benchmark in (*benchmarks, windows_benchmark(size, url)):
            reports.append(run_rounds(benchmark, num_rounds))
            show(reports[-1])
    if options.json:
        options.json.write_text(as_json(reports, found, {"rounds": num_rounds, "quick": options.quick}) + "\n")
    return reports


def _run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run on the kind of loop that the loaders have."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
        return
    uvloop.run(main())


def _costs(counted: dict[str, int], range_bytes: int) -> dict[str, float]:
    return {
        "requests each": counted["requests"] / counted["ranges"],
        "read ×": counted["bytes"] / (counted["ranges"] * range_bytes),
    }


def _result(clock: Clock, range_bytes: int, costs: dict[str, float]) -> dict[str, Any]:
    result = clock.result(range_bytes)
    kept = {name: result["costs"][name] for name in ("GB/s", "CPU s/GB")}
    return {**result, "costs": {**kept, **costs}}


if __name__ == "__main__":
    main()
