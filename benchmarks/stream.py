"""Windows of a token stream: how fast they are read, how soon the first one is there, and what that costs.

Every figure is the median of paired rounds, in which each contender runs once, in a fresh process. The machine should
have nothing else to do.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import data, page_cache
from benchmarks.clock import Timing
from benchmarks.contenders import BATCH_SIZE, Workload
from benchmarks.measure import Benchmark, Contender, Goal, Report, run_rounds, select
from benchmarks.probes import half_way
from benchmarks.report import as_json, machine, machine_line, show
from benchmarks.yardstick import compile_yardstick

PREAD = "C pread"
GATHER = "NumPy take, memory map"
TORCH = "torch DataLoader, memory map"

SECTIONS = ("warm", "cold", "start", "memory", "shuffle")

# What a cold run reads, spread evenly over the stream: random reads from a disk may come at a thousand a second.
_COLD_WINDOWS = 8192
_COLD_BYTES = 64 * 2**20
# With longer windows torch's loader waits for memory too: two threads of C that check nothing make 3.5 times as many.
_MOST_TIMES_TORCH = 2048
# Threads of C beside the loader's two: how many reads at a time a disk of this kind can use.
_MANY_THREADS = 64


@dataclass(frozen=True, slots=True)
class Size:
    """How large the streams are, and how long is measured.

    Parameters
    ----------
    num_shards, shard_tokens : int
        The stream that is read.
    many_shards, many_tokens : int
        The stream of many shards, whose first batch is timed.
    timing : Timing
        Of each run.
    """

    num_shards: int
    shard_tokens: int
    many_shards: int
    many_tokens: int
    timing: Timing

    @property
    def num_tokens(self) -> int:
        """Tokens of the stream that is read."""
        return self.num_shards * self.shard_tokens


FULL = Size(16, 12_500_000, 1024, 65_536, Timing())
QUICK = Size(16, 65_599, 64, 4096, Timing(warmup_seconds=0.02, seconds=0.05))


def warm(size: Size, window: int) -> Benchmark:
    """Return the race of all readers over pages in the cache."""
    work = _workload(size, window, stride=window)
    stream_cache = partial(_warm, page_cache.files_of(Path(work.path)))
    raw_cache = partial(_warm, [Path(work.raw)])
    contenders = [
        _contender(PREAD, "c_pread", work, size.timing, stream_cache, mark="a", **_c_options(1)),
        _contender(f"{PREAD}, 2 threads", "c_pread", work, size.timing, stream_cache, **_c_options(2)),
        _contender(GATHER, "numpy_take", work, size.timing, raw_cache, mark="b"),
        *_if_torch(_contender(TORCH, "torch_memmap", work, size.timing, raw_cache, mark="c")),
    ]
    for verify, suffix, least in ((True, "", 0.8), (False, ", no checks", 1.1)):
        goals = [Goal(least, PREAD), *([Goal(3, TORCH)] if window <= _MOST_TIMES_TORCH else [])]
        within = [Goal(0.9, f"Loader{suffix}")]
        contenders += [
            _contender(f"Loader{suffix}", "loader", work, size.timing, stream_cache, goals, verify=verify),
            *_if_torch(
                _contender(
                    f"StatefulDataLoader{suffix}", "torch_loader", work, size.timing, stream_cache, goals, verify=verify
                )
            ),
            _contender(f"async reader{suffix}", "async_reader", work, size.timing, stream_cache, within, verify=verify),
        ]
    return Benchmark(f"{_describe(work)}, warm", "windows/s", contenders, (PREAD, GATHER, TORCH))


def cold(size: Size, window: int) -> Benchmark:
    """Return the race over pages that the cache does not hold, on a bounded number of windows."""
    most = min(_COLD_WINDOWS, _COLD_BYTES // (4 * window), size.num_tokens // window)
    num_windows = max(most // BATCH_SIZE, 1) * BATCH_SIZE
    work = _workload(size, window, stride=max((size.num_tokens - window) // (num_windows - 1), 1))
    timing = Timing(warmup_seconds=0, seconds=float("inf"), segments=1, most_items=num_windows)
    drop = partial(_drop, page_cache.files_of(Path(work.path)))
    pread, many = f"{PREAD}, 2 threads", f"{PREAD}, {_MANY_THREADS} threads"
    contenders = [
        _contender(pread, "c_pread", work, timing, drop, mark="a", **_c_options(2)),
        _contender(many, "c_pread", work, timing, drop, mark=f"a{_MANY_THREADS}", **_c_options(_MANY_THREADS)),
    ]
    for verify, suffix, least in ((True, "", 0.8), (False, ", no checks", 1.1)):
        goals = [Goal(least, pread)]
        contenders += [
            _contender(f"Loader{suffix}", "loader", work, timing, drop, goals, verify=verify),
            _contender(f"async reader{suffix}", "async_reader", work, timing, drop, goals, verify=verify),
        ]
    title = f"{_describe(work)}, cold, {num_windows:,} windows {4 * work.stride / 1e3:,.0f} kB apart"
    return Benchmark(title, "windows/s", contenders, (pread, many))


def start(size: Size) -> Benchmark:
    """Return the time from the end of the imports to the first batch, at the start and at half an epoch."""
    window = min(2048, size.many_tokens)
    contenders = []
    for shards, tokens, most in ((size.num_shards, size.shard_tokens, 60), (size.many_shards, size.many_tokens, 80)):
        path = data.stream(shards, tokens)
        prepare = partial(_warm, page_cache.files_of(path))
        for resume, where in ((None, ""), (half_way(str(path), window), ", at 50 %")):
            for with_torch, name in ((True, "StatefulDataLoader"), (False, "Loader")):
                contender = Contender(
                    f"{name}, {shards:,} shards{where}",
                    "benchmarks.probes:first_batch",
                    {"path": str(path), "window": window, "with_torch": with_torch, "resume": resume},
                    [Goal(most, at_most=True)],
                    prepare,
                )
                contenders += _if_torch(contender) if with_torch else [contender]
    return Benchmark(f"First batch, T = {window}, after the imports", "ms", contenders)


def memory(size: Size) -> Benchmark:
    """Return the private memory of the loaders, beyond torch and the batches in flight."""
    work = _workload(size, 2048, stride=2048)
    contenders = [
        Contender(
            name,
            "benchmarks.probes:private_memory",
            {"contender": key, "workload": asdict(work), "timing": asdict(size.timing)},
            [Goal(10, at_most=True)],
        )
        for name, key in (("StatefulDataLoader", "torch_loader"), ("Loader", "loader"))
    ]
    title = f"Private memory, {_describe(work)}, beyond numpy, torch and the batches in flight"
    return Benchmark(title, "MB", _if_torch(contenders[0]) + contenders[1:])


def shuffle(size: Size) -> Benchmark:
    """Return the time that an index of a shuffle takes."""
    seconds = size.timing.seconds
    length = 200_000_000 // 2048
    contenders = [
        Contender(
            f"{at_once:,} at a time",
            "benchmarks.probes:shuffled_index",
            {"length": length, "at_once": at_once, "seconds": seconds},
            [Goal(5, at_most=True)] if at_once == 65_536 else [],  # below, it is the call that costs
        )
        for at_once in (65_536, 512, 32)
    ]
    whole = Contender(
        "NumPy permutation", "benchmarks.probes:numpy_permutation", {"length": length, "seconds": seconds}
    )
    return Benchmark(f"Index of a shuffle of {length:,}", "ns", [*contenders, whole])


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run what the command line asks for, print tables, and return the reports."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("at least one round")
    size, num_rounds = (QUICK, 1) if options.quick else (FULL, 5)
    num_rounds = options.rounds or num_rounds
    found = machine()
    print(machine_line(found), flush=True)
    if options.quick:
        print("tiny streams, for a moment: that it runs is what this shows, not how fast", flush=True)
    elif found["load_average"][0] > 0.5:
        print("the machine has other work; absolute figures will be low, ratios less so", file=sys.stderr)
    reports = []
    for benchmark in _benchmarks(size, options.windows, options.only, with_cold=options.cold):
        report = run_rounds(benchmark, num_rounds)
        show(report)
        reports.append(report)
        if options.json:
            options.json.write_text(as_json(reports, found, {"rounds": num_rounds, "quick": options.quick}) + "\n")
    if not reports:
        parser.error(f"no section ({', '.join(SECTIONS)}) or contender is called {options.only!r}")
    return reports


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stream", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny streams and one round: does it run at all?")
    parser.add_argument("--rounds", type=int, help="rounds (5, or 1 if quick)")
    parser.add_argument("--windows", type=int, nargs="+", default=[512, 2048, 8192], metavar="TOKENS", help="lengths")
    parser.add_argument("--cold", action="store_true", help="also read what the page cache does not hold")
    parser.add_argument("--only", default="", metavar="NAME", help=f"a section ({', '.join(SECTIONS)}) or contenders")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    return parser


def _benchmarks(size: Size, windows: Sequence[int], only: str, *, with_cold: bool) -> Iterator[Benchmark]:
    """Yield what is to run; the data that it needs is written then."""
    makers: dict[str, list[Callable[[], Benchmark]]] = {
        "warm": [partial(warm, size, window) for window in windows],
        "cold": [partial(cold, size, window) for window in windows if with_cold or only == "cold"],
        "start": [partial(start, size)],
        "memory": [partial(memory, size)],
        "shuffle": [partial(shuffle, size)],
    }
    for section in SECTIONS:
        for make in makers[section]:
            if only in SECTIONS:
                if only == section:
                    yield make()
            elif (benchmark := select(make(), only)).contenders:
                yield benchmark


def _workload(size: Size, window: int, stride: int) -> Workload:
    path = data.stream(size.num_shards, size.shard_tokens)
    files = [str(file) for file in data.shard_files(path)]
    raw = data.raw_file(size.num_tokens)
    return Workload(str(path), files, str(raw), size.num_tokens, window, stride)


def _contender(
    name: str,
    key: str,
    work: Workload,
    timing: Timing,
    prepare: Callable[[], Mapping[str, float] | None],
    goals: Sequence[Goal] = (),
    mark: str = "",
    **options: Any,
) -> Contender:
    arguments = {"contender": key, "workload": asdict(work), "timing": asdict(timing), **options}
    return Contender(name, "benchmarks.contenders:read_windows", arguments, goals, prepare, mark)


def _c_options(num_threads: int) -> dict[str, Any]:
    return {"library": str(compile_yardstick()), "num_threads": num_threads}


def _if_torch(contender: Contender) -> list[Contender]:
    return [contender] if find_spec("torch") else []


def _describe(work: Workload) -> str:
    size = f"{4e-6 * work.num_tokens:,.0f} MB in {len(work.files)} shards"
    return f"T = {work.window} int32, batches of {BATCH_SIZE}, {size}"


def _warm(files: Sequence[Path]) -> None:
    page_cache.warm(files)


def _drop(files: Sequence[Path]) -> Mapping[str, float]:
    page_cache.drop(files)
    share = page_cache.cached_share(files)
    if share > 0.01:
        print(f"{share:.0%} of the pages stayed in the cache: these figures are not cold", file=sys.stderr)
    return {"cached %": 100 * share}


if __name__ == "__main__":
    main()
