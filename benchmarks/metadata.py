"""Windows of a stream with an annotation layer: how fast they are read, and what the layer costs on the disk.

Every figure is the median of paired rounds, in which each contender runs once, in a fresh process. The machine should
have nothing else to do.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data, page_cache
from benchmarks.clock import Clock, Timing
from benchmarks.contenders import BATCH_SIZE, SEED
from benchmarks.measure import Benchmark, Contender, Goal, Report, run_rounds, select
from benchmarks.report import as_json, machine, machine_line, show

WINDOW = 2048

_SHARDS = 8
_SHARD_TOKENS = 4_000_000
_QUICK_SHARD_TOKENS = 65_599


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run what the command line asks for, print tables, and return the reports."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metadata", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny stream and one round: does it run at all?")
    parser.add_argument("--rounds", type=int, help="rounds (5, or 1 if quick)")
    parser.add_argument("--only", default="", metavar="NAME", help="contenders")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("at least one round")
    num_rounds = options.rounds or (1 if options.quick else 5)
    found = machine()
    print(machine_line(found), flush=True)
    path = data.layered_stream(_SHARDS, _QUICK_SHARD_TOKENS if options.quick else _SHARD_TOKENS)
    timing = Timing(warmup_seconds=0.02, seconds=0.05) if options.quick else Timing()
    reports = []
    for benchmark in (reading(path, timing), storing(path)):
        chosen = select(benchmark, options.only)
        if chosen.contenders:
            reports.append(run_rounds(chosen, num_rounds))
            show(reports[-1])
    if not reports:
        parser.error(f"no contender is called {options.only!r}")
    if options.json:
        options.json.write_text(as_json(reports, found, {"rounds": num_rounds, "quick": options.quick}) + "\n")
    return reports


def read_windows(path: str, how: str, timing: dict[str, Any], *, verify: bool = True) -> dict[str, Any]:
    """Read shuffled batches for a while, and take of each what a training loop would.

    Parameters
    ----------
    path : str
        Folder of the stream.
    how : str
        One of `TAKERS`.
    timing : dict
        A `Timing`, as plain JSON.
    verify : bool
        Whether everything is checked.
    """
    import guideloom as gl

    layers, loader, take = TAKERS[how]
    clock = Clock(Timing(**timing))
    dataset = gl.open_dataset(path, window=WINDOW, layers=layers, verify=verify)
    source: Any = getattr(gl, loader)(dataset, batch_size=BATCH_SIZE, shuffle=True, seed=SEED, drop_last=True)
    clock.start()
    try:
        while True:
            for batch in source:
                take(batch)
                if clock.add(BATCH_SIZE):
                    _check(batch, layers)
                    return clock.result(4 * WINDOW)
    finally:
        source.close()


def stored_bytes(path: str) -> dict[str, Any]:
    """Return the bytes of metadata for each element of the stream, without payloads, and with them."""
    from guideloom import StreamStorage

    manifest = StreamStorage.open(path).manifest
    entries = [shard.layers[0] for shard in manifest.shards]
    tables = sum((Path(path) / name).stat().st_size for entry in entries for name in (entry.file, entry.checksums))
    payloads = sum(entry.payload_bytes for entry in entries)
    return {
        "values": [tables / manifest.num_rows],
        "costs": {"with payloads": (tables + payloads) / manifest.num_rows},
    }


def _check(batch: Any, layers: Sequence[str]) -> None:
    """Raise ``RuntimeError`` unless the spans are those of the windows, and their values are there."""
    for name in layers:
        spans = getattr(batch[name], "spans", batch[name])
        first = np.repeat(np.asarray(batch["tokens"])[:, 0], np.diff(spans.row_offsets))
        lengths = np.diff(spans.offsets)
        steps = np.delete(np.diff(spans.values), spans.offsets[1:-1] - 1)
        if (
            (spans.element_index() < 0).any()
            or (spans.start != np.maximum(spans.true_start - first, 0)).any()
            or (lengths != data.SPAN_VALUES).any()
            or (spans.values[spans.offsets[:-1]] % data.SPAN_VALUES != 0).any()
            or (steps != 1).any()
        ):
            raise RuntimeError("these are not the spans that were written")


def _flat(batch: Any) -> Any:
    spans = batch[data.LAYER]
    return spans.values, spans.offsets, spans.start, spans.end


def _each(batch: Any) -> Any:
    return batch[data.LAYER].payloads


def _documents(batch: Any) -> Any:
    return batch[data.LAYER].document_layout()


def _tokens(batch: Any) -> Any:
    return batch["tokens"]


TAKERS: dict[str, tuple[list[str], str, Callable[[Any], Any]]] = {
    "tokens": ([], "Loader", _tokens),
    "flat": ([data.LAYER], "Loader", _flat),
    "each": ([data.LAYER], "Loader", _each),
    "documents": ([data.LAYER], "Loader", _documents),
    "torch flat": ([data.LAYER], "StatefulDataLoader", _flat),
}


def reading(path: Path, timing: Timing) -> Benchmark:
    """Return the race of all ways to read the layer over pages in the cache."""
    warm = partial(page_cache.warm, page_cache.files_of(path))

    def contender(name: str, how: str, *goals: Goal, verify: bool = True) -> Contender:
        arguments = {"path": str(path), "how": how, "timing": asdict(timing), "verify": verify}
        return Contender(name, "benchmarks.metadata:read_windows", arguments, goals, warm)

    contenders = [
        contender("tokens alone", "tokens"),
        contender("flat values and offsets", "flat", Goal(200_000)),
        contender("one array a span", "each", Goal(120_000)),
        contender("flat, no checks", "flat", verify=False),
        contender("flat, StatefulDataLoader", "torch flat"),
        contender("document layout", "documents"),
    ]
    size = f"{data.SPAN_TOKENS}-token spans of {data.SPAN_VALUES} int32"
    title = f"T = {WINDOW} int32, batches of {BATCH_SIZE}, shuffled, a layer of {size}, warm"
    return Benchmark(title, "windows/s", contenders)


def storing(path: Path) -> Benchmark:
    """Return what the layer takes on the disk."""
    arguments = {"path": str(path)}
    goals = [Goal(0.2, at_most=True)]
    contender = Contender("rows, index and checksums", "benchmarks.metadata:stored_bytes", arguments, goals)
    return Benchmark(f"Metadata of {data.SPAN_TOKENS}-token spans", "bytes an element", [contender])


if __name__ == "__main__":
    main(sys.argv[1:])
