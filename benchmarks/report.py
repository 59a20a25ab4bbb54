"""Show reports as tables, and keep them as JSON."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.measure import Goal, Report, Verdict

# Wider than any table, so that nothing is cut off; a terminal that is too narrow wraps the lines.
_WIDTH = 240


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, system, versions, and how busy the machine is."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("guideloom", "numpy", "torch", "uvloop")},
        "load_average": os.getloadavg(),
    }


def machine_line(found: dict[str, Any]) -> str:
    """Return what `machine` found as one line."""
    packages = ", ".join(f"{name} {number}" for name, number in found["packages"].items() if number)
    return (
        f"{found['cpu']}, {found['cores']} cores; {found['system']}; Python {found['python']}, {packages}; "
        f"load average {found['load_average'][0]:.1f}"
    )


def show(report: Report) -> None:
    """Print a report as a table, with rich if it is there."""
    header, rows = _table(report)
    title = f"{report.benchmark.title}: {report.benchmark.unit}"
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(_plain(title, header, rows), flush=True)
        return
    table = Table()
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i == 0 or i >= len(header) - 2 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(width=_WIDTH)
    console.print(title, style="bold", highlight=False)
    console.print(table)


def as_json(reports: Sequence[Report], machine: dict[str, Any], options: dict[str, Any]) -> str:
    """Return reports, with every run of every round, as JSON."""
    benchmarks = [
        {
            "title": report.benchmark.title,
            "unit": report.benchmark.unit,
            "contenders": [
                {
                    "name": name,
                    "figure": asdict(outcome.spread),
                    "ratios": {other: asdict(ratio) for other, ratio in report.ratios(name).items()},
                    "costs": outcome.costs,
                    "goals": [
                        {**asdict(verdict.goal), "figure": verdict.figure, "reached": verdict.reached}
                        for verdict in report.verdicts(name)
                    ],
                    "runs": outcome.runs,
                }
                for name, outcome in report.outcomes.items()
            ],
        }
        for report in reports
    ]
    return json.dumps({"machine": machine, "options": options, "benchmarks": benchmarks}, indent=1)


def _plain(title: str, header: list[str], rows: list[list[str]]) -> str:
    cells = [header, *([cell.replace("\n", "; ") for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join([title, *lines, ""])


def _table(report: Report) -> tuple[list[str], list[list[str]]]:
    costs = list(dict.fromkeys(name for outcome in report.outcomes.values() for name in outcome.costs))
    marks = {name: outcome.contender.mark or name for name, outcome in report.outcomes.items()}
    yardsticks = [name for name in report.benchmark.yardsticks if name in marks]
    rows = []
    for name, outcome in report.outcomes.items():
        spread, ratios, verdicts = outcome.spread, report.ratios(name), report.verdicts(name)
        row = [f"{name} ({marks[name]})" if marks[name] != name else name]
        row += [_number(spread.median), f"{_number(spread.least)}–{_number(spread.most)}"]
        row += [f"{ratios[other].median:.2f}" if other != name else "" for other in yardsticks]
        row += [_number(outcome.costs[cost]) if cost in outcome.costs else "" for cost in costs]
        row.append("\n".join(_goal(verdict.goal, marks) for verdict in verdicts))
        row.append("\n".join(_verdict(verdict) for verdict in verdicts))
        rows.append(row)
    compared = [f"× {marks[name]}" for name in yardsticks]
    return ["", "median", "min–max", *compared, *costs, "goal", "verdict"], rows


def _goal(goal: Goal, marks: Mapping[str, str]) -> str:
    sign = "≤" if goal.at_most else "≥"
    return f"{sign} {goal.bound:g}" + (f" × {marks[goal.times]}" if goal.times else "")


def _verdict(verdict: Verdict) -> str:
    return f"{_number(verdict.figure)}: {'reached' if verdict.reached else 'MISSED'}"


def _number(figure: float) -> str:
    for unit, name in ((1e6, " M"), (1e3, " k")):
        if abs(figure) >= 0.9995 * unit:
            return f"{figure / unit:.3g}{name}"
    return f"{figure:.3g}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
