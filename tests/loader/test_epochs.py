"""When an epoch begins, goes on and ends: the design's rules at each moment, for fresh and for restored loaders."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import guideloom as gl
from guideloom.errors import ClosedError
from tests.loader.samples import dataset_of, epochs, ids, take
from tests.reference import deal, epoch_order
from tests.strategies import prefetches

NUM_SAMPLES = 13
DATASET = dataset_of(NUM_SAMPLES)


class EpochMachine(RuleBasedStateMachine):
    """A loader beside a model of it: the epoch, the step within it, and what an open iterator has delivered."""

    @initialize(batch_size=st.integers(1, 14), drop_last=st.booleans(), prefetch=prefetches(), shuffle=st.booleans())
    def begin(self, batch_size: int, drop_last: bool, prefetch: int | None, shuffle: bool) -> None:
        self.options: dict[str, Any] = {
            "batch_size": batch_size, "drop_last": drop_last, "prefetch": prefetch, "shuffle": shuffle, "seed": 5,
        }  # fmt: skip
        self.loader = gl.Loader(DATASET, **self.options)
        self.num_steps = len(self.loader)
        self.epoch = self.step = 0
        self.iterator: Any = None
        self.delivered = 0
        self.ended: list[Any] = []
        self.saved = [(self.loader.state_dict(), 0, 0)]

    def expected(self, epoch: int, step: int) -> list[int]:
        order = epoch_order(NUM_SAMPLES, shuffle=self.options["shuffle"], seed=5, epoch=epoch)
        dealt = deal(order, world_size=1, batch_size=self.options["batch_size"], drop_last=self.options["drop_last"])
        return dealt[step][0]

    def leave_iterator(self) -> None:
        if self.iterator is not None:
            self.ended.append(self.iterator)
        self.iterator, self.delivered = None, 0

    @rule()
    def iterate(self) -> None:
        abandoned = self.iterator is not None and self.delivered and self.step
        self.leave_iterator()
        if abandoned:
            self.epoch, self.step = self.epoch + 1, 0
        self.iterator = iter(self.loader)

    @precondition(lambda self: self.iterator is not None)
    @rule(count=st.integers(1, 6))
    def receive(self, count: int) -> None:
        for _ in range(count):
            if self.delivered and not self.step:  # the last batch of the epoch was handed out
                assert next(self.iterator, None) is None
                return
            if not self.num_steps:
                assert next(self.iterator, None) is None
                return
            assert ids(next(self.iterator)) == self.expected(self.epoch, self.step)
            self.delivered += 1
            self.step += 1
            if self.step == self.num_steps:
                self.epoch, self.step = self.epoch + 1, 0

    @precondition(lambda self: self.iterator is not None)
    @rule()
    def finish(self) -> None:
        """Run the loop to its end."""
        self.receive(self.num_steps + 1)
        assert next(self.iterator, None) is None

    @rule(epoch=st.integers(0, 4))
    def set_epoch(self, epoch: int) -> None:
        if epoch == self.epoch:
            self.loader.set_epoch(epoch)  # to no effect: an open iterator goes on
        elif self.step and not self.delivered:  # loaded, and not continued
            before = self.loader.state_dict()
            with pytest.raises(ValueError, match="would skip the rest"):
                self.loader.set_epoch(epoch)
            assert self.loader.state_dict() == before
        else:
            self.loader.set_epoch(epoch)
            self.leave_iterator()
            self.epoch, self.step = epoch, 0

    @rule()
    def save(self) -> None:
        self.saved.append((json.loads(json.dumps(self.loader.state_dict())), self.epoch, self.step))

    @rule(choice=st.integers(0, 100), how=st.sampled_from(["load", "restart", "pickle"]))
    def restore(self, choice: int, how: str) -> None:
        if how == "pickle":
            copy = pickle.loads(pickle.dumps(self.loader))
            self.loader.close()
            self.loader = copy
        else:
            if how == "restart":
                self.loader.close()
                self.loader = gl.Loader(DATASET, **self.options)
            state, self.epoch, self.step = self.saved[choice % len(self.saved)]
            self.loader.load_state_dict(state)
        self.leave_iterator()

    @rule()
    def load_own_state(self) -> None:
        """`load_state_dict(state_dict())` continues where an abandoned iterator was."""
        self.loader.load_state_dict(self.loader.state_dict())
        self.leave_iterator()

    @invariant()
    def the_state_names_the_next_batch(self) -> None:
        if hasattr(self, "loader"):
            state = self.loader.state_dict()
            assert (state["epoch"], state["step"]) == (self.epoch, self.step)
            assert state["position"] == self.step * self.options["batch_size"]
            if self.num_steps:
                assert self.loader.sample_ids(self.step).tolist() == self.expected(self.epoch, self.step)

    @invariant()
    def iterators_that_ended_stay_ended(self) -> None:
        for iterator in getattr(self, "ended", []):
            if len(iterator):
                with pytest.raises(ClosedError):
                    next(iterator)
            else:
                assert next(iterator, None) is None

    def teardown(self) -> None:
        if hasattr(self, "loader"):
            self.loader.close()


TestEpochs = EpochMachine.TestCase
TestEpochs.settings = settings(stateful_step_count=25)


def restored(loader: gl.Loader[Any]) -> gl.Loader[Any]:
    other = gl.Loader(loader.dataset, 2, shuffle=True, seed=1)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    loader.close()
    return other


@pytest.mark.parametrize("restore", [lambda loader: loader, restored], ids=["fresh", "restored"])
def test_a_second_iterator_follows_one_rule(restore: Any) -> None:
    """C4: batches 0 to 3, a break, two more in some way, a break: the next loop is the next epoch, restored or not."""
    dataset = dataset_of(20)
    reference = epochs(dataset, 2, batch_size=2, shuffle=True, seed=1)
    loader = gl.Loader(dataset, 2, shuffle=True, seed=1)
    assert take(loader, 4) == reference[0][:4]
    loader.load_state_dict(loader.state_dict())
    loader = restore(loader)
    assert take(loader, 2) == reference[0][4:6]
    assert loader.state_dict()["step"] == 6
    assert [ids(batch) for batch in loader] == reference[1]
    loader.close()


def test_the_epoch_rolls_over_as_the_last_batch_is_handed_out() -> None:
    """Promise 2: a trainer that stops at `len(loader)` never asks for the end."""
    with gl.Loader(dataset_of(10), 3) as loader:
        for epoch in range(3):
            batches = iter(loader)
            for _ in range(len(loader)):
                next(batches)
            assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (epoch + 1, 0)


def test_looking_at_one_batch_costs_an_epoch_and_no_more() -> None:
    """As with torch's samplers: `next(iter(loader))` begins an epoch, and the next loop the next one."""
    dataset = dataset_of(10)
    reference = epochs(dataset, 2, batch_size=3, shuffle=True)
    with gl.Loader(dataset, 3, shuffle=True) as loader:
        assert ids(next(iter(loader))) == reference[0][0]
        assert [ids(batch) for batch in loader] == reference[1]


def test_making_an_iterator_alone_costs_nothing() -> None:
    dataset = dataset_of(10)
    with gl.Loader(dataset, 3, shuffle=True) as loader:
        for _ in range(5):
            iter(loader)
        assert [ids(batch) for batch in loader] == epochs(dataset, 1, batch_size=3, shuffle=True)[0]


def test_a_trainer_that_sets_the_epoch_gets_what_it_would_get_without() -> None:
    """`set_epoch(current)` does nothing, in mid-epoch after a resume too."""
    dataset = dataset_of(10)
    reference = epochs(dataset, 3, batch_size=3, shuffle=True)
    with gl.Loader(dataset, 3, shuffle=True) as loader:
        found = []
        for epoch in range(3):
            loader.set_epoch(epoch)
            found.append([ids(batch) for batch in loader])
        assert found == reference
    with gl.Loader(dataset, 3, shuffle=True) as loader:
        list(loader)
        take(loader, 2)
        state = loader.state_dict()
    with gl.Loader(dataset, 3, shuffle=True) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(1)
        assert [ids(batch) for batch in loader] == reference[1][2:]
        loader.set_epoch(2)
        assert [ids(batch) for batch in loader] == reference[2]


def test_another_epoch_is_refused_while_a_loaded_position_waits() -> None:
    """Promise 2: it would skip the rest of the epoch; also when an iterator was made, but has delivered nothing."""
    with gl.Loader(dataset_of(10), 3) as loader:
        take(loader, 2)
        loader.load_state_dict(loader.state_dict())
        for _ in range(2):
            with pytest.raises(ValueError, match=r"step 2 of epoch 0; set_epoch\(1\) would skip"):
                loader.set_epoch(1)
            batches = iter(loader)
        assert ids(next(batches)) == [6, 7, 8]
        loader.set_epoch(1)
        assert loader.state_dict()["epoch"] == 1
        for epoch in (-1, 2**64):
            with pytest.raises(ValueError, match="epoch must be in"):
                loader.set_epoch(epoch)


def test_the_last_epoch_of_all_has_a_number() -> None:
    with gl.Loader(dataset_of(4), 2, shuffle=True) as loader:
        loader.set_epoch(2**64 - 1)
        assert len(take(loader, 1)) == 1
        assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 2**64 - 1
        other = gl.Loader(dataset_of(4), 2, shuffle=True)
        other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
