"""Writing a token stream: appends against the bare system call, and what durability costs.

Every figure is the median of paired rounds, in which each contender runs once, in a fresh process. Appends go to the
page cache, whoever makes them; shards of 64 MiB go to the disk. The machine should have nothing else to do.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Benchmark, Contender, Goal, Report, run_rounds, select
from benchmarks.report import as_json, machine, machine_line, show

WRITE, HASH = "write()", "SHA-256 alone"
SHARD = "shard"


def appends(append_tokens: int, num_bytes: int) -> Benchmark:
    """Return the race of appends of one length."""

    def contender(name: str, way: str, goals: Sequence[Goal] = (), mark: str = "") -> Contender:
        arguments = {"way": way, "append_tokens": append_tokens, "num_bytes": num_bytes}
        return Contender(name, "benchmarks.writers:append_speed", arguments, goals, mark=mark)

    contenders = [
        contender(WRITE, "write", mark="a"),
        contender(HASH, "hash", mark="b"),
        contender("write() and SHA-256, one thread", "write and hash"),
        contender(SHARD, "shard", [Goal(0.6, WRITE)]),
    ]
    title = f"Appends of {2 * append_tokens:,} bytes, {num_bytes / 1e6:,.0f} MB"
    return Benchmark(title, "MB/s", contenders, (WRITE, HASH))


def durability(shard_bytes: int, num_shards: int) -> Benchmark:
    """Return the race of whole shards, synced and less synced."""

    def contender(name: str, way: str, goals: Sequence[Goal] = (), mark: str = "") -> Contender:
        arguments = {"way": way, "shard_bytes": shard_bytes, "num_shards": num_shards}
        return Contender(name, "benchmarks.writers:shard_speed", arguments, goals, mark=mark)

    less = "shard, only its data synced"
    contenders = [
        contender("file, written and synced", "file"),
        contender(less, "data alone", mark="a"),
        contender(SHARD, "all syncs", [Goal(0.95, less)]),
    ]
    title = f"{num_shards} shards of {shard_bytes / 2**20:,.0f} MiB, on disk"
    return Benchmark(title, "MB/s", contenders, (less,))


def main(arguments: Sequence[str] | None = None) -> list[Report]:
    """Run what the command line asks for, print tables, and return the reports."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.writing", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little data and one round: does it run at all?")
    parser.add_argument("--rounds", type=int, help="rounds (7, or 1 if quick)")
    parser.add_argument("--only", default="", metavar="NAME", help="contenders whose names hold this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("at least one round")
    num_rounds = options.rounds or (1 if options.quick else 7)
    scale = 64 if options.quick else 1
    found = machine()
    print(machine_line(found), flush=True)
    if found["load_average"][0] > 0.5 and not options.quick:
        print("the machine has other work; absolute figures will be low, ratios less so", file=sys.stderr)
    benchmarks = [
        appends(32_768, 512 * 2**20 // scale),
        appends(100, 64 * 2**20 // scale),
        durability(64 * 2**20 // scale, 4),
    ]
    reports = []
    for benchmark in benchmarks:
        selected = select(benchmark, options.only)
        if not selected.contenders:
            continue
        reports.append(run_rounds(selected, num_rounds))
        show(reports[-1])
        if options.json:
            options.json.write_text(as_json(reports, found, {"rounds": num_rounds, "quick": options.quick}) + "\n")
    if not reports:
        parser.error(f"no contender is called {options.only!r}")
    return reports


if __name__ == "__main__":
    main()
