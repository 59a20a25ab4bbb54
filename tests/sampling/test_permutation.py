"""The shuffle: frozen vectors, equality with the reference, and what callers may count on."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guideloom._speedups.permutation import PermutationKernel
from guideloom.sampling.permutation import SHUFFLE_VERSION, Permutation, derive
from tests.sampling.shuffle_reference import ReferencePermutation
from tests.sampling.shuffle_reference import derive as reference_derive

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("shuffle_vectors.json").read_text())
LONGEST = 2**63 - 1
U64 = st.integers(0, 2**64 - 1)
ACROSS_BOUNDS = [
    *range(4090, 4104),
    *(2**bits + change for bits in (13, 14, 15, 16, 17) for change in (-1, 0, 1)),
    97_656,
]


def lengths() -> st.SearchStrategy[int]:
    """Lengths of every size, and those next to a power of two, where halves change their sizes."""
    near_powers = st.builds(lambda bits, change: 2**bits + change, st.integers(2, 62), st.integers(-2, 2))
    any_size = st.integers(1, 63).flatmap(lambda bits: st.integers(2 ** (bits - 1), 2**bits - 1))
    return st.one_of(any_size, near_powers, st.integers(4090, 4200), st.integers(LONGEST - 9, LONGEST))


class TestVectors:
    def test_version(self) -> None:
        assert SHUFFLE_VERSION == 1, "new orders need new vectors; these are frozen"

    @pytest.mark.parametrize("vector", VECTORS["first"], ids=lambda vector: f"n={vector['n']}")
    def test_first_indices(self, vector: dict[str, Any]) -> None:
        order = Permutation(int(vector["n"]), int(vector["seed"]), int(vector["epoch"]))
        expected = [int(index) for index in vector["indices"]]
        positions = np.arange(len(expected))
        assert order.span(0, len(expected)).tolist() == expected
        assert order.at(positions).tolist() == expected
        assert [order.at(i) for i in range(len(expected))] == expected
        assert order.find(np.array(expected)).tolist() == positions.tolist()
        assert [order.find(index) for index in expected] == positions.tolist()

    @pytest.mark.parametrize("vector", VECTORS["sums"], ids=lambda vector: f"n={vector['n']}")
    def test_sum_of_a_whole_order(self, vector: dict[str, Any]) -> None:
        n = int(vector["n"])
        order = Permutation(n, int(vector["seed"]), int(vector["epoch"])).span(0, n)
        weighted = order.astype(np.uint64) * np.arange(1, n + 1, dtype=np.uint64)
        assert int(weighted.sum(dtype=np.uint64)) == int(vector["sum"])

    @pytest.mark.parametrize("vector", VECTORS["derived"], ids=lambda vector: f"g={vector['g']}")
    def test_derived_seeds(self, vector: dict[str, Any]) -> None:
        assert derive(int(vector["seed"]), int(vector["epoch"]), int(vector["g"])) == int(vector["derived"])

    @pytest.mark.parametrize("vector", VECTORS["first"], ids=lambda vector: f"n={vector['n']}")
    def test_reference_holds_them_too(self, vector: dict[str, Any]) -> None:
        order = ReferencePermutation(int(vector["n"]), int(vector["seed"]), int(vector["epoch"]))
        assert [str(order.at(i)) for i in range(len(vector["indices"]))] == vector["indices"]


class TestReference:
    @settings(deadline=None, max_examples=400)
    @given(n=lengths(), seed=U64, epoch=U64, data=st.data())
    def test_equal_both_ways(self, n: int, seed: int, epoch: int, data: st.DataObject) -> None:
        values = data.draw(st.lists(st.one_of(st.integers(0, n - 1), st.sampled_from([0, n - 1])), max_size=20))
        order, reference = Permutation(n, seed, epoch), ReferencePermutation(n, seed, epoch)
        expected_at, expected_find = [reference.at(v) for v in values], [reference.find(v) for v in values]
        assert order.at(np.array(values, dtype=np.int64)).tolist() == expected_at
        assert order.find(np.array(values, dtype=np.int64)).tolist() == expected_find
        assert [order.at(v) for v in values] == expected_at
        assert [order.find(v) for v in values] == expected_find

    @settings(deadline=None, max_examples=50)
    @given(n=lengths(), seed=U64, epoch=U64, fraction=st.floats(0, 1), size=st.integers(0, 700))
    def test_equal_spans(self, n: int, seed: int, epoch: int, fraction: float, size: int) -> None:
        size = min(size, n)
        start = min(int(fraction * (n - size)), n - size)
        reference = ReferencePermutation(n, seed, epoch)
        expected = [reference.at(position) for position in range(start, start + size)]
        assert Permutation(n, seed, epoch).span(start, start + size).tolist() == expected

    @given(seed=U64, epoch=U64, g=st.integers(0, LONGEST))
    def test_equal_derived_seeds(self, seed: int, epoch: int, g: int) -> None:
        assert derive(seed, epoch, g) == reference_derive(seed, epoch, g)


class TestBijection:
    @pytest.mark.parametrize("seed", [0, 2**64 - 1])
    def test_every_length_with_a_table(self, seed: int) -> None:
        for n in range(1, 4097):
            self.check(n, seed)

    @pytest.mark.parametrize("n", ACROSS_BOUNDS)
    def test_lengths_with_a_network(self, n: int) -> None:
        for seed in range(5):
            self.check(n, seed)

    def check(self, n: int, seed: int) -> None:
        order = Permutation(n, seed, epoch=n % 7)
        positions = np.arange(n)
        indices = order.span(0, n)
        assert indices.dtype == np.int64
        assert np.array_equal(np.sort(indices), positions), n
        assert np.array_equal(order.find(indices), positions), n
        assert np.array_equal(order.at(positions), indices), n

    @settings(deadline=None)
    @given(n=lengths(), seed=U64, epoch=U64, data=st.data())
    def test_inverse_at_any_length(self, n: int, seed: int, epoch: int, data: st.DataObject) -> None:
        values = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=600)), dtype=np.int64)
        order = Permutation(n, seed, epoch)
        indices = order.at(values)
        assert indices.min() >= 0
        assert indices.max() < n
        assert np.array_equal(order.find(indices), values)
        assert np.array_equal(order.at(order.find(values)), values)

    @pytest.mark.parametrize("n", [1000, 4097, 97_656, 2**40, LONGEST])
    @pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 1000])
    def test_any_cut_gives_the_same_order(self, n: int, size: int) -> None:
        order = Permutation(n, seed=11, epoch=2)
        start = n - size - (n > 1000)
        whole = order.span(start, start + size)
        assert whole.shape == (size,)
        assert np.array_equal(order.at(np.arange(start, start + size)), whole)
        pieces = [order.span(first, min(first + 7, start + size)) for first in range(start, start + size, 7)]
        assert np.array_equal(np.concatenate([*pieces, np.empty(0, np.int64)]), whole)

    def test_arguments_all_matter(self) -> None:
        firsts = [
            tuple(Permutation(n, seed, epoch).span(0, 8))
            for n in (5000, 5001)
            for seed in (0, 1, 2**63)
            for epoch in (0, 1, 2**63)
        ]
        assert len(set(firsts)) == len(firsts)

    def test_derived_seeds_are_distinct(self) -> None:
        seeds = {derive(seed, epoch, g) for seed in range(10) for epoch in range(10) for g in range(100)}
        assert len(seeds) == 10_000


class TestArguments:
    def test_shapes_and_dtypes(self) -> None:
        order = Permutation(100, seed=3)
        expected = order.span(0, 12)
        grid = np.arange(12).reshape(3, 4)
        for dtype in (np.uint8, np.int16, np.uint32, np.uint64, np.dtype(">i4")):
            assert np.array_equal(order.at(grid.astype(dtype)), expected.reshape(3, 4))
        assert np.array_equal(order.at(grid.T), expected.reshape(3, 4).T)
        assert np.array_equal(order.at(np.arange(24)[::2]), order.span(0, 24)[::2])
        assert np.array_equal(order.at([0, np.int8(1), 2]), expected[:3])
        assert np.array_equal(order.at(range(12)), expected)
        for empty in (np.empty(0, np.uint64), np.empty((0, 3), np.int64)):
            assert order.at(empty).dtype == order.find(empty).dtype == np.int64
            assert order.at(empty).shape == order.find(empty).shape == empty.shape
        assert order.at([]).dtype == np.int64
        assert order.at([]).shape == (0,)

    def test_scalars(self) -> None:
        order = Permutation(10, seed=0)
        index = order.at(np.uint64(2))
        assert type(index) is int
        assert index == 9
        assert type(order.find(np.int32(9))) is int
        assert order.find(9) == 2

    def test_input_is_left_alone(self) -> None:
        positions = np.arange(10)
        positions.flags.writeable = False
        indices = Permutation(10, seed=0).at(positions)
        assert indices.flags.writeable
        assert positions.tolist() == list(range(10))

    @pytest.mark.parametrize("n", [10, 5000, LONGEST])
    @pytest.mark.parametrize("method", ["at", "find"])
    def test_out_of_range(self, n: int, method: str) -> None:
        look_up = getattr(Permutation(n, seed=0), method)
        noun = {"at": "position", "find": "index"}[method]
        for value in (-1, n, -(2**63), 2**64, np.int64(-5), np.uint64(2**64 - 1)):
            with pytest.raises(IndexError, match=f"^{noun} {value} is not in 0 .. {n - 1}$"):
                look_up(value)
            with pytest.raises(IndexError, match=f"^{noun} {value} is not in 0 .. {n - 1}$"):
                look_up([0, value, 1])
        for array in (np.array([3, -7, n - 1]), np.array([3, -7, -8] * 1000)):
            with pytest.raises(IndexError, match=f"^{noun} -7 is not in"):
                look_up(array)
        for dtype in ("<u8", ">u8"):
            with pytest.raises(IndexError, match=f"^{noun} {2**63 + 5} is not in"):
                look_up(np.array([0, 2**63 + 5], dtype=dtype))

    @pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 11), (11, 11), (0, 2**70), (-(2**70), 0)])
    def test_spans_out_of_range(self, start: int, stop: int) -> None:
        with pytest.raises(ValueError, match=rf"^span {start} \.\. {stop} does not lie in 0 \.\. 10$"):
            Permutation(10, seed=0).span(start, stop)

    @pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float64(1), "1", None, 1j, [[1]], np.array([1.0]),
                                       np.array([True]), [1, True], [1, 2.0], np.array([1], object), {1}])  # fmt: skip
    def test_only_integers_look_up(self, value: Any) -> None:
        order = Permutation(10, seed=0)
        with pytest.raises(TypeError, match="position must be an int"):
            order.at(value)
        with pytest.raises(TypeError, match="index must be an int"):
            order.find(value)

    @pytest.mark.parametrize("value", [True, np.False_, 1.0, np.float32(1), "1", None])
    def test_only_integers_elsewhere(self, value: Any) -> None:
        with pytest.raises(TypeError, match="n must be an int"):
            Permutation(value, 0)
        with pytest.raises(TypeError, match="seed must be an int"):
            Permutation(10, value)
        with pytest.raises(TypeError, match="epoch must be an int"):
            Permutation(10, 0, value)
        with pytest.raises(TypeError, match="start must be an int"):
            Permutation(10, 0).span(value, 5)
        with pytest.raises(TypeError, match="stop must be an int"):
            Permutation(10, 0).span(0, value)
        with pytest.raises(TypeError, match="g must be an int"):
            derive(0, 0, value)

    def test_ranges_of_arguments(self) -> None:
        for n in (0, -1, 2**63, 2**64 + 5):
            with pytest.raises(ValueError, match=f"^n is {n}, not in 1 .. {LONGEST}$"):
                Permutation(n, 0)
        for word in (-1, 2**64):
            with pytest.raises(ValueError, match=f"^seed is {word}, not in 0 .. {2**64 - 1}$"):
                Permutation(10, word)
            with pytest.raises(ValueError, match=f"^epoch is {word}, not in"):
                Permutation(10, 0, word)
            with pytest.raises(ValueError, match=f"^seed is {word}, not in"):
                derive(word, 0, 0)
            with pytest.raises(ValueError, match=f"^epoch is {word}, not in"):
                derive(0, word, 0)
        for g in (-1, 2**63):
            with pytest.raises(ValueError, match=f"^g is {g}, not in"):
                derive(0, 0, g)

    def test_numpy_arguments(self) -> None:
        order = Permutation(np.int32(1000), np.uint64(2**64 - 1), np.int8(3))
        assert order == Permutation(1000, 2**64 - 1, 3)
        assert (type(order.n), type(order.seed), type(order.epoch)) == (int, int, int)
        assert derive(np.uint64(1234), np.int64(7), np.uint8(5)) == derive(1234, 7, 5)


class TestValue:
    def test_equality_hash_repr(self) -> None:
        order = Permutation(1000, seed=42, epoch=3)
        assert repr(order) == "Permutation(n=1000, seed=42, epoch=3)"
        assert order == Permutation(1000, 42, 3)
        assert hash(order) == hash(Permutation(1000, 42, 3))
        assert len({order, Permutation(1001, 42, 3), Permutation(1000, 43, 3), Permutation(1000, 42)}) == 4
        assert len(order) == order.n == 1000
        assert len(Permutation(LONGEST, 0)) == LONGEST

    @pytest.mark.parametrize("n", [1000, 100_000])
    def test_copies(self, n: int) -> None:
        order = Permutation(n, seed=2**64 - 1, epoch=3)
        for other in (
            *(pickle.loads(pickle.dumps(order, p)) for p in range(6)),
            copy.copy(order),
            copy.deepcopy(order),
        ):
            assert other == order
            assert np.array_equal(other.span(0, n), order.span(0, n))
        assert len(pickle.dumps(order)) < 200

    def test_immutable(self) -> None:
        order = Permutation(10, seed=0)
        with pytest.raises(AttributeError):
            order.n = 11  # type: ignore[misc]  # the error is the point


class TestResources:
    @pytest.mark.parametrize("n", [1000, 2**40])
    def test_long_calls_release_the_gil(self, n: int) -> None:
        kernel = PermutationKernel(n, 0, 0)  # not its face: copying an array releases the GIL too
        positions = np.arange(2**20) % n
        out = np.empty_like(positions)
        calls: dict[str, Callable[[], object]] = {
            "at": lambda: kernel.at(positions, out),
            "find": lambda: kernel.find(positions, out),
        }
        if n > 2**20:
            calls["span"] = lambda: kernel.span(0, out)
        for name, call in calls.items():
            begin, ran = threading.Event(), threading.Event()

            def wait_and_run(begin: threading.Event = begin, ran: threading.Event = ran) -> None:
                begin.wait()
                ran.set()

            thread = threading.Thread(target=wait_and_run)
            interval = sys.getswitchinterval()
            thread.start()
            sys.setswitchinterval(1000)  # from here on the other thread runs only if a call gives the GIL up
            try:
                begin.set()
                num_calls = 0
                while not ran.is_set() and num_calls < 1000:
                    call()
                    num_calls += 1
                released = ran.is_set()
            finally:
                sys.setswitchinterval(interval)
                thread.join()
            assert released, name

    def test_threads_share_one(self) -> None:
        order = Permutation(10**6, seed=5)
        expected = order.span(0, 200_000)
        results: list[np.ndarray[Any, Any]] = [np.empty(0)] * 4

        def work(k: int) -> None:
            results[k] = order.span(0, 200_000)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(np.array_equal(result, expected) for result in results)

    def test_memory_does_not_grow_with_n(self) -> None:
        """Casebook C22: 2e9 windows, two ranks; the second half of the program is a length no table could hold."""
        program = """
            import re, time
            from pathlib import Path
            import numpy as np
            from guideloom.sampling.permutation import Permutation

            def peak_kib():  # getrusage would count the parent's peak too
                return int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])

            before, start = peak_kib(), time.perf_counter()

            n, batch, steps = 2_000_000_000, 10, 100
            order = Permutation(n, seed=1, epoch=2)
            drawn = []
            for rank in range(2):
                firsts = [(2 * step + rank) * batch for step in range(steps)]
                drawn.append(np.concatenate([order.span(first, first + batch) for first in firsts]))
            both = np.concatenate(drawn)
            assert both.min() >= 0 and both.max() < n
            assert len(np.unique(drawn[0])) == len(np.unique(drawn[1])) == 1000
            assert len(np.unique(both)) == 2000

            for n in (2**40, 2**63 - 1):
                order = Permutation(n, seed=3)
                assert order.find(order.at(n // 2)) == n // 2
                order.at(order.find(np.arange(n - 1000, n)))

            print(peak_kib() - before, time.perf_counter() - start)
        """
        run = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        added_kib, seconds = map(float, run.stdout.split())
        assert added_kib < 4096
        assert seconds < 5
