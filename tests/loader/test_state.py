"""The state: small, plain, the same on every rank, and refused whole when it is not ours."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import guideloom as gl
from guideloom._speedups.crc32c import crc32c
from guideloom.errors import StateError, StateMismatchError
from tests.datasets.opened import in_memory
from tests.loader.samples import dataset_of, ids, take
from tests.streams import counted

State = dict[str, Any]


def state_after(num_batches: int, num_samples: int = 100, **options: Any) -> State:
    with gl.Loader(dataset_of(num_samples), **{"batch_size": 2, "shuffle": True, "seed": 17, **options}) as loader:
        take(loader, num_batches)
        return loader.state_dict()


def sealed(state: State) -> State:
    """Give a changed state the checksum of its content, as somebody would who wrote it on purpose."""
    content = {name: value for name, value in state.items() if name != "crc32c"}
    return {**content, "crc32c": crc32c(msgspec.json.encode(content, order="sorted"))}


def test_it_is_small_and_plain() -> None:
    """Promise 2, S1: at most 1 kB of JSON, 64 bytes more for each change of topology."""
    state = state_after(7, seed=2**64 - 1)
    assert len(json.dumps(state)) <= 1000
    assert json.loads(json.dumps(state)) == state

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(type(name) is str and plain(part) for name, part in value.items())
        if isinstance(value, list):
            return all(map(plain, value))
        return type(value) in (str, int, type(None))

    assert plain(state)
    sizes = []
    for batch_size in (3, 4, 5, 6, 7):
        with gl.Loader(dataset_of(100), batch_size, shuffle=True, seed=2**64 - 1) as loader:
            loader.load_state_dict(state)
            take(loader, 1)
            state = loader.state_dict()
            sizes.append(len(json.dumps(state)))
    assert max(np.diff(sizes)) <= 64


def test_its_size_does_not_depend_on_the_dataset() -> None:
    """S1: the number of shards is not in it."""
    few = in_memory(counted([1000]), window=4)
    many = in_memory(counted([1] * 1000), window=4)
    sizes = {len(json.dumps(gl.Loader(dataset).state_dict())) for dataset in (few, many)}
    assert max(sizes) - min(sizes) < 10


def test_it_is_the_same_on_every_rank_and_for_every_prefetch() -> None:
    """Promise 2, C7, C13: so it may be saved by any rank, and is a position, not a dump of queues."""
    states = [
        state_after(5, rank=rank, world_size=4, prefetch=prefetch) for rank in range(4) for prefetch in (0, 1, 8, 64)
    ]
    assert all(state == states[0] for state in states)
    assert (states[0]["epoch"], states[0]["step"], states[0]["position"]) == (0, 5, 40)


@pytest.mark.parametrize(
    "carry",
    [lambda state: json.loads(json.dumps(state)), lambda state: pickle.loads(pickle.dumps(state)), dict],
    ids=["json", "pickle", "dict"],
)
def test_it_survives_the_ways_that_states_travel(carry: Callable[[State], State]) -> None:
    """C1: five batches, a new loader, and on with window 5."""
    dataset = in_memory(counted([403]), window=4)
    assert len(dataset) == 100
    with gl.Loader(dataset) as loader:
        take(loader, 5)
        state = loader.state_dict()
    with gl.Loader(dataset) as loader:
        loader.load_state_dict(carry(state))
        assert loader.state_dict() == state
        batches = iter(loader)
        assert next(batches)["tokens"].tolist() == [[20, 21, 22, 23]]
        assert next(batches)["tokens"].tolist() == [[24, 25, 26, 27]]


def test_taking_it_changes_nothing_and_costs_no_batch() -> None:
    with gl.Loader(dataset_of(50), 3, shuffle=True) as loader, gl.Loader(dataset_of(50), 3, shuffle=True) as other:
        batches = iter(loader)
        found = []
        for batch in batches:
            found.append(ids(batch))
            assert loader.state_dict() == loader.state_dict()
        assert found == [ids(batch) for batch in other]


def test_what_was_taken_stays_as_it_was() -> None:
    """A saved state is a copy, not a view of the loader."""
    with gl.Loader(dataset_of(50), 3) as loader:
        loader.load_state_dict(state := loader.state_dict())
        text = json.dumps(state)
        take(loader, 5)
        loader.load_state_dict(loader.state_dict())
        assert json.dumps(state) == text


CHANGES: dict[str, Callable[[], gl.Loader[Any]]] = {
    "fingerprint": lambda: gl.Loader(in_memory(counted([403], "<u2"), window=4), 2, shuffle=True, seed=17),
    "samples": lambda: gl.Loader(dataset_of(99), 2, shuffle=True, seed=17),
    "window": lambda: gl.Loader(in_memory(counted([403], "<i4"), window=3, stride=4), 2, shuffle=True, seed=17),
    "stride": lambda: gl.Loader(in_memory(counted([403], "<i4"), window=4, stride=3), 2, shuffle=True, seed=17),
    "offset": lambda: gl.Loader(in_memory(counted([403], "<i4"), window=4, offset=1), 2, shuffle=True, seed=17),
    "seed": lambda: gl.Loader(dataset_of(100), 2, shuffle=True, seed=18),
    "shuffle": lambda: gl.Loader(dataset_of(100), 2, shuffle=False, seed=17),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_state_of_another_run_is_refused_with_the_difference_and_changes_nothing(name: str) -> None:
    """Promise 2, S2: all is checked before anything is applied."""
    state = state_after(5)
    with CHANGES[name]() as loader:
        next(iter(loader))
        before = loader.state_dict()
        with pytest.raises(StateMismatchError, match=f"{name}: saved .*, here ") as caught:
            loader.load_state_dict(state)
        assert name in caught.value.differences
        assert isinstance(caught.value, ValueError)
        assert loader.state_dict() == before


def test_every_difference_is_listed() -> None:
    with gl.Loader(in_memory(counted([300], "<u2"), window=5, stride=6, offset=2), 2, seed=3) as loader:
        with pytest.raises(StateMismatchError) as caught:
            loader.load_state_dict(state_after(5))
        expected = {"fingerprint", "samples", "window", "stride", "offset", "shuffle", "seed"}
        assert set(caught.value.differences) == expected
        for name in expected:
            assert f"{name}: saved" in str(caught.value)


def test_what_does_not_change_the_samples_may_differ() -> None:
    """C11: prefetch, checks, fields and dtypes are not part of the position; a state of tokens alone fits with more."""
    state = state_after(5)
    dataset = dataset_of(100)
    for other, options in (
        (dataset, {"prefetch": 0}),
        (dataset, {"prefetch": 4, "drop_last": True}),
        (dataclasses.replace(dataset, verify=False), {}),
        (dataset.with_fields({"tokens": np.int64}), {"max_bytes_in_flight": 1}),
    ):
        with gl.Loader(other, 2, shuffle=True, seed=17, **options) as loader:  # type: ignore[arg-type]
            loader.load_state_dict(state)
            assert take(loader, 1)[0] == gl.Loader(dataset, 2, shuffle=True, seed=17).sample_ids(5).tolist()


def test_every_flipped_bit_is_refused() -> None:
    """S2, C1: in the JSON of a state, whatever the bit."""
    state = state_after(5)
    text = json.dumps(state).encode()
    with gl.Loader(dataset_of(100), 2, shuffle=True, seed=17) as loader:
        for i in range(len(text)):
            for bit in range(8):
                changed = text[:i] + bytes([text[i] ^ 1 << bit]) + text[i + 1 :]
                try:
                    other = json.loads(changed)
                except ValueError:
                    continue
                if other != state:  # another spelling of the same, as 1E2 for 1e2, would be the same state
                    with pytest.raises(StateError):
                        loader.load_state_dict(other)
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "a loader state is a dict"),
        ([1, 2], "a loader state is a dict"),
        ({}, "no loader state"),
        ({"format": "other"}, "no loader state: its format is 'other'"),
        ({"format": "guideloom-loader", "version": 99}, "version 99, and this GuideLoom reads 0"),
        ({"format": "guideloom-loader", "version": 0}, "damaged"),
    ],
)
def test_what_is_no_state_is_refused_by_name(state: Any, message: str) -> None:
    """S3: a state of a newer version is refused by its number."""
    with gl.Loader(dataset_of(10)) as loader, pytest.raises(StateError, match=message):
        loader.load_state_dict(state)


PLACES = [
    (),
    ("epoch",),
    ("step",),
    ("position",),
    ("segments",),
    ("segments", 0),
    *((("segments", 0, i)) for i in range(5)),
    *(("dataset", name) for name in ("kind", "fingerprint", "snapshot", "samples", "window", "stride", "offset")),
    *(("order", name) for name in ("shuffle", "version", "seed", "probe")),
    ("dataset",),
    ("order",),
    ("version",),
]
VALUES = st.one_of(
    st.integers(-3, 200),
    st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**70), 10**300]),
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(
        [[], {}, [[]], b"", "global", [[0, 0, 0, 1, 2], [0, 3, 6, 1, 2]], [[0, 0, 0, 0, 0]], {1, 2}, object()]
    ),
)


def deep() -> list[Any]:
    """Lists in lists, deeper than the interpreter can walk."""
    outer: list[Any] = []
    for _ in range(10_000):
        outer = [outer]
    return outer


@pytest.mark.parametrize("place", [*(place for place in PLACES if place), ("format",), ("crc32c",)])
@pytest.mark.parametrize(
    "value", ["\ud800", np.int64(3), np.arange(3), deep()], ids=["surrogate", "scalar", "array", "deep"]
)
def test_values_that_no_state_holds_are_refused(place: tuple[Any, ...], value: Any) -> None:
    """S2: what a checkpoint of another library, or a hostile one, may hold: a StateError, and a short one."""
    state = json.loads(json.dumps(state_after(5)))
    target: Any = state
    for name in place[:-1]:
        target = target[name]
    target[place[-1]] = value
    with gl.Loader(dataset_of(100), 2, shuffle=True, seed=17) as loader:
        with pytest.raises(StateError) as caught:
            loader.load_state_dict(state)
        assert len(str(caught.value)) < 1000


@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3))
def test_a_state_that_someone_wrote_is_right_or_refused(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    """S2: any value anywhere, checksum made to fit: a loader that iterates, or a StateError, and nothing else."""
    state = json.loads(json.dumps(state_after(5)))
    for place, value in changes:
        target: Any = state
        try:
            for name in place[:-1]:
                target = target[name]
            if place:
                target[place[-1]] = copy.deepcopy(value)
            else:
                state = copy.deepcopy(value)
        except (TypeError, KeyError, IndexError):
            pass
    with contextlib.suppress(TypeError, AttributeError, ValueError, msgspec.MsgspecError):
        state = sealed(state)
    with gl.Loader(dataset_of(100), 2, shuffle=True, seed=17) as loader:
        before = loader.state_dict()
        try:
            loader.load_state_dict(state)
        except StateError:
            assert loader.state_dict() == before
        else:
            again = loader.state_dict()
            assert len(ids(next(iter(loader)))) in (1, 2)
            loader.load_state_dict(again)
            assert loader.state_dict() == again
            loader.sample_ids(loader.state_dict()["step"])


def test_the_next_samples_are_in_it_so_that_a_changed_order_is_noticed() -> None:
    """A state whose order this version would continue otherwise is refused: the samples after it are hashed into it."""
    state = state_after(5)
    state["order"]["probe"] ^= 1
    with (
        gl.Loader(dataset_of(100), 2, shuffle=True, seed=17) as loader,
        pytest.raises(StateMismatchError, match="probe"),
    ):
        loader.load_state_dict(sealed(state))


def test_a_whole_checkpoint_is_refused_with_the_part_to_give() -> None:
    loader = gl.Loader(dataset_of(40), 3)
    with pytest.raises(gl.errors.StateError, match=r"no loader state.*give it \['data'\] alone"):
        loader.load_state_dict({"model": {}, "data": loader.state_dict()})
