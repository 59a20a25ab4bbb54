"""Resumed is uninterrupted: stop anywhere, carry the state as JSON, go on, perhaps on another topology."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import guideloom as gl
from tests.loader.samples import dataset_of, epochs, ids, take
from tests.reference import deal, epoch_order
from tests.strategies import deals, prefetches


def carried(state: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(state))
    return loaded


def loader_at(dataset: gl.StreamDataset, state: dict[str, Any] | None, **options: Any) -> gl.Loader[Any]:
    loader = gl.Loader(dataset, **options)
    if state is not None:
        loader.load_state_dict(carried(state))
        assert loader.state_dict()["position"] in (state["position"], 0)
    return loader


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[dict[str, Any], int, int | None]]:
    """Stretches of training: how the samples are dealt out, how many steps are taken, and how far is read ahead."""
    stretch = st.tuples(deals(), st.integers(0, 12), prefetches())
    return draw(st.lists(stretch, min_size=1, max_size=5))


@given(st.integers(0, 70), runs(), st.booleans(), st.integers(0, 2**64 - 1))
def test_stop_anywhere_and_go_on_anyhow(
    num_samples: int, stretches: list[tuple[dict[str, Any], int, int | None]], shuffle: bool, seed: int
) -> None:
    """Promises 1 and 2, S4, C3, C10, C12: over restarts on other world sizes, batch sizes, depths of look-ahead, all
    ranks together receive the global order of one epoch after the other, each sample exactly once."""
    dataset = dataset_of(num_samples)
    state: dict[str, Any] | None = None
    epoch, position = 0, 0
    for deal_out, num_steps, prefetch in stretches:
        order = epoch_order(num_samples, shuffle=shuffle, seed=seed, epoch=epoch)
        expected = deal(order[position:], **deal_out)
        if position and not expected:  # drop_last drops what is less than a step
            epoch, position = epoch + 1, 0
            expected = deal(epoch_order(num_samples, shuffle=shuffle, seed=seed, epoch=epoch), **deal_out)
        expected = expected[:num_steps]
        taken, states = [], []
        for rank in range(deal_out["world_size"]):
            options = {"shuffle": shuffle, "seed": seed, "prefetch": prefetch, "rank": rank, **deal_out}
            with loader_at(dataset, state, **options) as loader:
                taken.append(take(loader, len(expected)))
                states.append(loader.state_dict())
        assert [list(step) for step in zip(*taken, strict=True)] == expected
        state = states[0]
        assert all(other == state for other in states), "the state is the same on every rank"
        position += sum(len(part) for step in expected for part in step)
        if position and not deal(order[position:], **deal_out):
            epoch, position = epoch + 1, 0
        assert (state["epoch"], state["position"]) == (epoch, position)
        assert len(json.dumps(state)) <= 1000 + 64 * len(stretches)


@given(st.integers(1, 60), st.integers(1, 7), st.booleans(), prefetches(), st.lists(st.integers(0, 20), max_size=6))
def test_any_number_of_stops_gives_the_uninterrupted_run(
    num_samples: int, batch_size: int, drop_last: bool, prefetch: int | None, stops: list[int]
) -> None:
    """C2, C5, C6, C8: over the edge of epochs, and when the resumed run is stopped again."""
    dataset = dataset_of(num_samples)
    options = {"batch_size": batch_size, "shuffle": True, "seed": 11, "drop_last": drop_last}
    reference = [batch for epoch in epochs(dataset, 4, **options) for batch in epoch]
    found: list[list[int]] = []
    state: dict[str, Any] | None = None
    for count in stops:
        with loader_at(dataset, state, prefetch=prefetch, **options) as loader:
            wanted = min(count, len(reference) - len(found))
            while wanted > 0:
                for batch in loader:
                    found.append(ids(batch))
                    wanted -= 1
                    if not wanted:
                        break
            state = loader.state_dict()
    assert found == reference[: len(found)]


@pytest.mark.parametrize("count", [0, 1, 19, 20, 21, 199, 200])
def test_stopping_after_so_many_of_two_hundred(count: int) -> None:
    """C3: after all of them the state is the start of the next epoch."""
    dataset = dataset_of(200)
    reference = epochs(dataset, 2, shuffle=True, seed=42)
    with gl.Loader(dataset, shuffle=True, seed=42) as loader:
        before = take(loader, count)
        state = loader.state_dict()
    assert (state["epoch"], state["position"]) == divmod(count, 200)
    with loader_at(dataset, state, shuffle=True, seed=42) as loader:
        rest = [ids(batch) for batch in loader]
    assert before + rest == (reference[0] if count < 200 else reference[0] + reference[1])


def test_the_second_resume_starts_where_the_first_run_ended() -> None:
    """C2: ten batches, five more, and the last 35."""
    dataset, options = dataset_of(100), {"shuffle": True, "seed": 7, "batch_size": 2}
    found, state = [], None
    for count in (10, 5, 35):
        with loader_at(dataset, state, **options) as loader:
            found += take(loader, count)
            state = loader.state_dict()
            if count == 5:
                assert (state["step"], state["position"]) == (15, 30)
    assert found == epochs(dataset, 1, **options)[0]
    assert (state or {})["epoch"] == 1


def test_a_state_from_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    """C5: saved after two epochs, loaded, saved again: the same; then epochs 2 and 3."""
    dataset = dataset_of(100)
    reference = epochs(dataset, 4, shuffle=True, seed=5)
    with gl.Loader(dataset, shuffle=True, seed=5) as loader:
        for _ in range(2):
            assert len(list(loader)) == 100
        state = loader.state_dict()
    with loader_at(dataset, state, shuffle=True, seed=5) as loader:
        assert loader.state_dict() == state
        assert [[ids(batch) for batch in loader] for _ in range(2)] == reference[2:]


def test_epochs_after_a_resumed_one_are_whole() -> None:
    """C6: the rest of the epoch, then whole ones: 4, 25 and 25 batches."""
    dataset = dataset_of(100)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 1}
    reference = epochs(dataset, 3, **options)
    with gl.Loader(dataset, **options) as loader:
        take(loader, 21)
        state = loader.state_dict()
    with loader_at(dataset, state, **options) as loader:
        found = [[ids(batch) for batch in loader] for _ in range(3)]
    assert [len(epoch) for epoch in found] == [4, 25, 25]
    assert found == [reference[0][21:], *reference[1:]]


@pytest.mark.parametrize("prefetch", [0, 1, 8, 64])
def test_what_was_read_ahead_is_not_counted(prefetch: int) -> None:
    """C7, C8: with a full queue the state says 12 samples, whatever its length."""
    dataset = dataset_of(64)
    reference = epochs(dataset, 1, batch_size=4)[0]
    with gl.Loader(dataset, 4, prefetch=prefetch) as loader:
        take(loader, 3)
        time.sleep(0.05)
        state = loader.state_dict()
    assert state == gl_state(dataset, 3)
    assert state["position"] == 12
    for other in (0, 1, 8, 64):
        with loader_at(dataset, state, batch_size=4, prefetch=other) as loader:
            assert [ids(batch) for batch in loader] == reference[3:]


def gl_state(dataset: gl.StreamDataset, count: int) -> dict[str, Any]:
    with gl.Loader(dataset, 4, prefetch=0) as loader:
        take(loader, count)
        return loader.state_dict()


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_another_world_size_continues_exactly(world_size: int) -> None:
    """C10: saved with four ranks after five steps, 40 samples used; all ranks together get the other 56."""
    dataset = dataset_of(96)
    options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 9}
    used: list[int] = []
    for rank in range(4):
        with gl.Loader(dataset, rank=rank, world_size=4, **options) as loader:
            used += [sample for batch in take(loader, 5) for sample in batch]
            state = loader.state_dict()
    rest: list[int] = []
    for rank in range(world_size):
        with loader_at(dataset, state, rank=rank, world_size=world_size, **options) as loader:
            rest += [sample for batch in loader for sample in ids(batch)]
    assert sorted(used) == sorted(epoch_order(96, shuffle=True, seed=9, epoch=0)[:40])
    assert sorted(used + rest) == list(range(96))


def test_replicated_ranks_count_once() -> None:
    """C12: four processes of two data ranks, ten steps of five: position 100; then by ten, from sample 100 on."""
    dataset = dataset_of(300)
    states = []
    for process in range(4):
        with gl.Loader(dataset, 5, rank=process // 2, world_size=2) as loader:
            take(loader, 10)
            states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    assert states[0]["position"] == 100
    with loader_at(dataset, states[0], batch_size=10, rank=0, world_size=2) as loader:
        assert take(loader, 1) == [list(range(100, 110))]


def test_one_saved_state_serves_all_ranks() -> None:
    """C13: a container that keeps rank 0's copy only loses nothing."""
    dataset = dataset_of(64)
    reference = [epochs(dataset, 1, batch_size=2, rank=rank, world_size=4, shuffle=True)[0] for rank in range(4)]
    with gl.Loader(dataset, 2, rank=0, world_size=4, shuffle=True) as loader:
        take(loader, 7)
        state = loader.state_dict()
    for rank in range(4):
        with loader_at(dataset, state, batch_size=2, rank=rank, world_size=4, shuffle=True) as loader:
            assert [ids(batch) for batch in loader] == reference[rank][7:]


def test_what_drop_last_leaves_on_another_topology_is_dropped_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """The design: the drop happens at load too, and is logged."""
    dataset = dataset_of(20)
    with gl.Loader(dataset, 3, drop_last=True) as loader:
        take(loader, 5)
        state = loader.state_dict()
    with caplog.at_level(logging.WARNING), loader_at(dataset, state, batch_size=6, drop_last=True) as loader:
        assert "the state leaves 5 samples of epoch 0" in caplog.text
        assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)
        assert [len(batch["tokens"]) for batch in loader] == [6, 6, 6]


def test_past_steps_are_found_again_after_a_change_of_topology() -> None:
    """Promise 2: the segments say by which batch size, and on how many ranks, each step was read."""
    dataset = dataset_of(100)
    options = {"shuffle": True, "seed": 3}
    history: list[tuple[int, int, list[int]]] = []
    state = None
    for batch_size, count in ((3, 7), (5, 4), (2, 40), (4, 9)):
        with loader_at(dataset, state, batch_size=batch_size, **options) as loader:
            while count:
                for batch in loader:
                    at = loader.state_dict()
                    if at["step"]:
                        history.append((at["epoch"], at["step"] - 1, ids(batch)))
                    count -= 1
                    if not count:
                        break
            state = loader.state_dict()
            for epoch, step, samples in history:
                assert loader.sample_ids(step, epoch).tolist() == samples
            assert loader.sample_ids(state["step"]).tolist() == ids(
                next(iter(loader_at(dataset, state, batch_size=batch_size, **options)))
            )
    assert len(history) > 50


def test_going_back_forgets_the_changes_of_topology_that_came_later() -> None:
    """After `set_epoch` to an earlier epoch its steps are those of the present topology."""
    dataset = dataset_of(30)
    with gl.Loader(dataset, 3, shuffle=True) as loader:
        for _ in range(2):
            list(loader)
        state = loader.state_dict()
    with loader_at(dataset, state, batch_size=5, shuffle=True) as loader:
        list(loader)
        loader.set_epoch(1)
        for _ in range(2):
            epoch = loader.state_dict()["epoch"]
            for step, batch in enumerate(loader):
                assert loader.sample_ids(step, epoch).tolist() == ids(batch)
        loader.set_epoch(0)
        again = loader.state_dict()
        assert again["segments"] == [[0, 0, 0, 1, 5]]
    with loader_at(dataset, again, batch_size=5, shuffle=True) as loader:
        assert loader.state_dict() == again


SCRIPT = """
import json, os, signal, sys
import guideloom as gl
from tests.loader.samples import dataset_of, ids

loader = gl.Loader(dataset_of(50), 5, shuffle=True, seed=3, prefetch=4)
state, die_after = json.loads(sys.argv[1]), int(sys.argv[2])
if state:
    loader.load_state_dict(state)
for count, batch in enumerate(loader, 1):
    print(json.dumps([ids(batch), loader.state_dict()]), flush=True)
    if count == die_after:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("die_after", [1, 4, 9])
def test_a_killed_process_resumes_at_the_next_batch(die_after: int) -> None:
    """C8, S4: SIGKILL with a full queue; a new process goes on from what was printed last."""
    reference = epochs(dataset_of(50), 1, batch_size=5, shuffle=True, seed=3)[0]
    found: list[list[int]] = []
    state = None
    for count in (die_after, 10**9):
        result = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps(state), str(count)], capture_output=True, text=True, timeout=60,
            check=False, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert (result.returncode, result.stderr) == (-9 if count == die_after else 0, "")
        for line in result.stdout.splitlines():
            samples, state = json.loads(line)
            found.append(samples)
    assert found == reference
    assert state["epoch"] == 1  # type: ignore[index]  # set by the loop


def test_a_resume_seeks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The idea: O(1). Nothing of the 99,000 steps before is read, or even computed."""
    from guideloom.sampling.order import Order

    dataset = dataset_of(100_000)
    with gl.Loader(dataset, shuffle=True) as loader:
        state = {**loader.state_dict()}
    asked: list[int] = []
    samples = Order.samples

    def counting(self: Order, epoch: int, positions: Any) -> Any:
        asked.append(len(positions))
        return samples(self, epoch, positions)

    monkeypatch.setattr(Order, "samples", counting)
    with gl.Loader(dataset, shuffle=True, prefetch=4) as loader:
        take(loader, 3)
        state = loader.state_dict()
    asked.clear()
    with contextlib.closing(loader_at(dataset, state, shuffle=True, prefetch=4)) as loader:
        take(loader, 1)
    assert sum(asked) < 1000
