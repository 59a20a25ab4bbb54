"""Paired rounds: every contender once a round, in turn, so that what the machine does meanwhile hits all alike."""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.process import call_fresh


@dataclass(frozen=True, slots=True)
class Goal:
    """What a contender should reach.

    Parameters
    ----------
    bound : float
        The least, or with `at_most` the most, that will do.
    times : str
        The contender whose figure of the same round it is a multiple of; none for the bare figure.
    at_most : bool
        Whether less is better.
    """

    bound: float
    times: str = ""
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Contender:
    """One line of a benchmark: a function to call in a fresh process, once a round.

    Parameters
    ----------
    name : str
        How tables call it.
    function : str
        ``"package.module:name"``. It returns plain JSON: ``values``, the figures measured, and perhaps ``costs``,
        further figures by name.
    arguments : mapping
        Its keyword arguments, plain JSON.
    goals : sequence of Goal
        What it should reach.
    prepare : callable, optional
        Called before each run; may return further costs.
    mark : str, optional
        One letter that tables may call it by.
    """

    name: str
    function: str
    arguments: Mapping[str, Any]
    goals: Sequence[Goal] = ()
    prepare: Callable[[], Mapping[str, float] | None] | None = None
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Contenders that are measured together.

    Parameters
    ----------
    title : str
        What they do.
    unit : str
        Of their figures.
    contenders : sequence of Contender
        In the order in which they run.
    yardsticks : sequence of str
        The contenders that all others are compared with, by name; none by default.
    """

    title: str
    unit: str
    contenders: Sequence[Contender]
    yardsticks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most of some figures."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        """Return the spread of some figures, at least one."""
        return cls(statistics.median(figures), min(figures), max(figures))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a contender's runs gave, a dict a round."""

    contender: Contender
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def spread(self) -> Spread:
        """Of the figures of all rounds."""
        return Spread.of([value for run in self.runs for value in run["values"]])

    @property
    def costs(self) -> dict[str, float]:
        """Medians over the rounds."""
        names = self.runs[0].get("costs", {})
        return {name: statistics.median(run["costs"][name] for run in self.runs) for name in names}

    def ratio(self, other: "Outcome") -> Spread:
        """Return how many times the other's figure this one's is, from the medians of each round."""
        pairs = zip(self.runs, other.runs, strict=True)
        return Spread.of([statistics.median(mine["values"]) / statistics.median(its["values"]) for mine, its in pairs])


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a goal was reached, by what figure."""

    goal: Goal
    figure: float

    @property
    def reached(self) -> bool:
        """Whether it was."""
        return self.figure <= self.goal.bound if self.goal.at_most else self.figure >= self.goal.bound


@dataclass(frozen=True, slots=True)
class Report:
    """A benchmark and what came of it, by contender."""

    benchmark: Benchmark
    outcomes: Mapping[str, Outcome]

    def ratios(self, name: str) -> dict[str, Spread]:
        """Return how a contender compares with each yardstick that ran."""
        outcomes = self.outcomes
        return {
            other: outcomes[name].ratio(outcomes[other]) for other in self.benchmark.yardsticks if other in outcomes
        }

    def verdicts(self, name: str) -> list[Verdict]:
        """Return what became of a contender's goals; those relative to a contender that did not run are left out."""
        outcome = self.outcomes[name]
        verdicts = []
        for goal in outcome.contender.goals:
            if not goal.times:
                verdicts.append(Verdict(goal, outcome.spread.median))
            elif goal.times in self.outcomes:
                verdicts.append(Verdict(goal, outcome.ratio(self.outcomes[goal.times]).median))
        return verdicts


def run_rounds(benchmark: Benchmark, num_rounds: int) -> Report:
    """Run every contender once a round, in turn, each in a fresh process.

    Parameters
    ----------
    benchmark : Benchmark
        What to run.
    num_rounds : int
        Rounds, at least 1.

    Raises
    ------
    RuntimeError
        If a contender fails.
    """
    outcomes = {contender.name: Outcome(contender) for contender in benchmark.contenders}
    for number in range(1, num_rounds + 1):
        print(f"{benchmark.title}: round {number} of {num_rounds}", file=sys.stderr, flush=True)
        for contender in benchmark.contenders:
            found = (contender.prepare and contender.prepare()) or {}
            run = call_fresh(contender.function, dict(contender.arguments))
            run["costs"] = {**run.get("costs", {}), **found}
            outcomes[contender.name].runs.append(run)
    return Report(benchmark, outcomes)


def select(benchmark: Benchmark, wanted: str) -> Benchmark:
    """Return the benchmark with the contenders whose name contains a word, and those they are compared with."""
    chosen = [contender for contender in benchmark.contenders if wanted.casefold() in contender.name.casefold()]
    compared = {goal.times for contender in chosen for goal in contender.goals}.union(benchmark.yardsticks)
    contenders = [c for c in benchmark.contenders if c in chosen or (chosen and c.name in compared)]
    return replace(benchmark, contenders=contenders)
