"""Statistics of the shuffle: its orders against what is known of uniform ones.

Everything is seeded, so each test gives the same answer every time. A test takes all statistics of one length as
z-scores under the null of a uniform permutation, and fails where the smallest two-sided p-value times their number
(Bonferroni) is below 0.001. ``GUIDELOOM_PROVE=1`` draws eight times as much, in some minutes.

The probabilities of single positions and of pairs are exact. Chi-square sums become z-scores by the cube root of Wilson
and Hilferty (1931); the moments of the circular serial correlation are those of Wald and Wolfowitz (1943).
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from guideloom.sampling.permutation import Permutation
from tests.sampling.shuffle_reference import Network, words

EFFORT = 8 if os.environ.get("GUIDELOOM_PROVE") == "1" else 1
LEAST_P = 0.001
NUM_KEYS = 2**16 * EFFORT
LENGTHS = [1000, 4096, 4097, 8192, 97_656, 2**40, 2**62 + 1]
WHOLE = {1000: 1500, 4097: 400, 8192: 200, 65_537: 25}  # length: orders drawn, for seeds and for epochs

Orders = Callable[[int, int], Permutation]
FAMILIES: dict[str, Orders] = {
    "seeds": lambda n, key: Permutation(n, key),
    "epochs": lambda n, key: Permutation(n, 0, key),
}
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def assert_plausible(scores: dict[str, float]) -> None:
    """Fail if one z-score is too far from 0, given how many there are."""
    p_values = {name: math.erfc(abs(z) / math.sqrt(2)) for name, z in scores.items()}
    worst = min(p_values, key=p_values.__getitem__)
    assert p_values[worst] * len(scores) >= LEAST_P, f"{worst}: z = {scores[worst]:.1f}, one of {len(scores)}"


def chi_square(observed: Ints, probability: Floats) -> float:
    """Return the z-score of counts against the probabilities of their cells; cells of probability 0 must be empty."""
    possible = probability > 0
    assert not observed[~possible].any()
    expected = probability[possible] * observed.sum()
    freedom = possible.sum() - 1
    total = ((observed[possible] - expected) ** 2 / expected).sum()
    spread = 2 / (9 * freedom)
    return float((np.cbrt(total / freedom) - (1 - spread)) / np.sqrt(spread))


def sum_score(values: npt.ArrayLike, mean: float, variance: float) -> float:
    """Return the z-score of a sum of independent values of one known mean and variance."""
    array = np.asarray(values, dtype=float)
    return float((array.sum() - array.size * mean) / math.sqrt(array.size * variance))


class Bins:
    """A division of ``range(n)`` into `num` equal parts, as nearly as may be."""

    def __init__(self, n: int, num: int) -> None:
        self.n, self.num = n, num
        self.edges = np.array([-(-n * b // num) for b in range(1, num)], dtype=np.int64)
        sizes = np.diff([0, *self.edges.tolist(), n])
        self.share = sizes / n
        # Two different values: the same one cannot come twice.
        self.pair_share = (np.outer(self.share, sizes) - np.diag(self.share)) / (n - 1)

    def of(self, values: Ints) -> Ints:
        return np.searchsorted(self.edges, values, side="right").astype(np.int64)

    def single(self, values: Ints) -> float:
        return chi_square(np.bincount(self.of(values), minlength=self.num), self.share)

    def joint(self, first: Ints, second: Ints, probability: Floats) -> float:
        cells = self.of(first) * self.num + self.of(second)
        return chi_square(np.bincount(cells, minlength=self.num**2), probability.ravel())


def lags(n: int) -> list[int]:
    """Return distances at which a position shares a half with another, or is next to one that does, and plain ones."""
    row = 1 << (n - 1).bit_length() // 2
    return [1, 2, row // 2, row, row + 1, n // 3, n // 2]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", LENGTHS)
def test_positions_and_pairs(n: int, family: str) -> None:
    """The index at a position, those at two positions, and those of neighbouring keys at one position."""
    starts = [0, 1, n // 2, n - 1]
    positions = np.array([*starts, *lags(n)])
    drawn = np.array([FAMILIES[family](n, key).at(positions) for key in range(NUM_KEYS)])
    fine, coarse = Bins(n, 256), Bins(n, 16)
    differences = Bins(n - 1, 256)
    low_byte = (n // 256 + (np.arange(256) < n % 256)) / n
    independent = np.outer(coarse.share, coarse.share)
    scores: dict[str, float] = {}
    for position, values in zip(positions.tolist(), drawn.T, strict=True):
        scores[f"at {position}"] = fine.single(values)
        scores[f"low byte at {position}"] = chi_square(np.bincount(values & 255, minlength=256), low_byte)
        now, later = values[:-1], values[1:]
        scores[f"next key at {position}"] = coarse.joint(now, later, independent)
        scores[f"difference to next key at {position}"] = fine.single((later - now) % n)
    first = drawn[:, 0]
    for lag, values in zip(lags(n), drawn.T[len(starts) :], strict=True):
        scores[f"pair at lag {lag}"] = coarse.joint(first, values, coarse.pair_share)
        scores[f"difference at lag {lag}"] = differences.single((values - first) % n - 1)
    assert_plausible(scores)


def cycle_count(order: Ints) -> int:
    """Count cycles: every index learns the least index that it reaches in 1, 2, 4, … steps."""
    least, ahead = np.arange(order.size), order
    for _ in range(order.size.bit_length()):
        least, ahead = np.minimum(least, least[ahead]), ahead[ahead]
    return int((least == np.arange(order.size)).sum())


def serial_score(order: Ints) -> float:
    """Return the z-score of the circular serial correlation of one order."""
    n = order.size
    x = order - (n - 1) / 2
    squares, fourths = (x**2).sum(), (x**4).sum()
    mean = -squares / (n - 1)
    variance = (squares**2 - fourths) / (n - 1) + (squares**2 - 2 * fourths) / ((n - 1) * (n - 2)) - mean**2
    return float(((x * np.roll(x, -1)).sum() - mean) / math.sqrt(variance))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", WHOLE)
def test_whole_orders(n: int, family: str) -> None:
    orders = [FAMILIES[family](n, key).span(0, n) for key in range(WHOLE[n] * EFFORT)]
    positions = np.arange(n)
    steps = [np.diff(order) for order in orders]
    cycles = [cycle_count(order) for order in orders]
    serial = [serial_score(order) for order in orders]
    harmonic = float((1 / np.arange(1, n + 1)).sum())
    harmonic_squares = float((1 / np.arange(1, n + 1) ** 2.0).sum())
    fixed = np.array([(order == positions).sum() for order in orders])
    poisson = np.array([math.exp(-1) / math.factorial(k) for k in range(4)])
    poisson = np.append(poisson, 1 - poisson.sum())
    assert_plausible(
        {
            "fixed points": sum_score(fixed, 1, 1),
            "distribution of fixed points": chi_square(np.bincount(np.minimum(fixed, 4), minlength=5), poisson),
            "matches with the next key": sum_score([(a == b).sum() for a, b in itertools.pairwise(orders)], 1, 1),
            "cycles": sum_score(cycles, harmonic, harmonic - harmonic_squares),
            "parity": sum_score([(n - count) % 2 for count in cycles], 1 / 2, 1 / 4),
            "serial correlation": sum_score(serial, 0, 1),
            "size of serial correlation": sum_score(np.square(serial), 1, 2),
            "successions up": sum_score([(step == 1).sum() for step in steps], 1 - 1 / n, 1),
            "successions down": sum_score([(step == -1).sum() for step in steps], 1 - 1 / n, 1),
            "descents": sum_score([(step < 0).sum() for step in steps], (n - 1) / 2, (n + 1) / 12),
        }
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_all_orders_of_few(family: str) -> None:
    """Each of the n! orders is as likely as any other."""
    scores = {}
    for n in range(2, 6):
        base = n ** np.arange(n)
        codes = [int(FAMILIES[family](n, key).span(0, n) @ base) for key in range(NUM_KEYS)]
        possible = np.zeros(n**n)
        for order in itertools.permutations(range(n)):
            possible[int(np.array(order) @ base)] = 1 / math.factorial(n)
        scores[f"n = {n}"] = chi_square(np.bincount(codes, minlength=n**n), possible)
    assert_plausible(scores)


def structure_scores(orders: Iterable[Ints], low_bits: int) -> dict[str, float]:
    """Count pairs of positions that share a half, and whose indices share a half or differ in one by as much.

    This two-point attack on Feistel networks (Patarin 2001) shows too few rounds where other statistics do not. A
    z-score is that of the mean over orders, with the spread found among them. Lengths: multiples of ``2**low_bits``.
    """
    excess: dict[str, list[float]] = {}
    for order in orders:
        n, num_low = order.size, 1 << low_bits
        num_high = n // num_low
        high, low = np.divmod(np.arange(n), num_low)
        new_high, new_low = np.divmod(order, num_low)
        for half, other, new_half, new_other, num_half, num_other, name in (
            (high, low, new_high, new_low, num_high, num_low, "high"),
            (low, high, new_low, new_high, num_low, num_high, "low"),
        ):
            step = (new_other - other) % num_other  # equal where the difference of the two stays
            num_pairs = num_half * num_other * (num_other - 1) / 2
            for relation, key, size, chance in (
                ("same half", new_half, num_half, num_other - 1),
                ("other half", new_other, num_other, num_half - 1),
                ("same difference", step, num_other, num_half),
                ("same half and difference", new_half * num_other + step, n, 1),
            ):
                counts = np.bincount(half * size + key)
                sharing = (counts * (counts - 1)).sum() / 2
                excess.setdefault(f"{name} half shared, then {relation}", []).append(
                    sharing - num_pairs * chance / (n - 1)
                )
    return {name: float(np.mean(x) / (np.std(x, ddof=1) / math.sqrt(len(x)))) for name, x in excess.items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [65 * 64, 128 * 64])
def test_structure_of_the_network(n: int, family: str) -> None:
    orders = (FAMILIES[family](n, key).span(0, n) for key in range(200 * EFFORT))
    assert_plausible(structure_scores(orders, low_bits=6))


@pytest.mark.parametrize(("half_rounds", "num_orders"), [(4, 20), (6, 40)])
def test_structure_shows_too_few_rounds(half_rounds: int, num_orders: int) -> None:
    """The test above can fail: it refuses the same network cut short."""
    n = 128 * 64

    def shortened() -> Iterator[Ints]:
        for seed in range(num_orders):
            network = Network(n, words(seed, 0, n), num_rounds=half_rounds // 2)
            yield np.array([network.encipher(position) for position in range(n)])

    scores = structure_scores(shortened(), low_bits=6)
    with pytest.raises(AssertionError, match="half shared, then"):
        assert_plausible(scores)
