"""The loader for PyTorch: a real `DataLoader`, whose batches are tensors and whose state fits where states go."""

from __future__ import annotations

import copy
import inspect
import io
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader, IterableDataset

import guideloom as gl
import guideloom.pytorch
from guideloom.errors import ClosedError, StateMismatchError
from tests.datasets.opened import in_memory
from tests.loader.samples import dataset_of, epochs, ids, take
from tests.strategies import deals, prefetches

DTYPE = np.dtype(
    [
        ("tokens", "<u2"),
        ("mask", "u1"),
        ("wide", "<u4"),
        ("concepts", "<i4", (4,)),
        ("flag", "?"),
        ("weight", "<f4"),
        ("half", "<f2"),
    ]
)


class Pair(NamedTuple):
    tokens: torch.Tensor
    name: str


def rows_of(length: int) -> np.ndarray[Any, Any]:
    rows = np.zeros(length, DTYPE)
    for name in rows.dtype.names or ():
        rows[name] = (np.arange(length) % 2).reshape(-1, *[1] * (rows[name].ndim - 1))
    rows["tokens"] = np.arange(length) + 65_000
    return rows


@pytest.fixture
def dataset() -> gl.StreamDataset:
    return in_memory([rows_of(100)], window=10)


def test_it_is_a_data_loader_over_a_marker_without_a_length(dataset: gl.StreamDataset) -> None:
    """Promise 7: what Fabric, Lightning and Accelerate look at."""
    loader = gl.StatefulDataLoader(dataset, batch_size=4, drop_last=True)
    assert isinstance(loader, DataLoader)
    assert isinstance(loader.dataset, IterableDataset)
    assert not hasattr(loader.dataset, "__len__")
    with pytest.raises(TypeError, match="iterate over the StatefulDataLoader"):
        iter(loader.dataset)
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (4, 0, True)
    assert loader._is_accelerate_prepared
    assert loader.use_stateful_dataloader
    assert not hasattr(loader.sampler, "set_epoch"), "or Fabric would count epochs from 0 in each process"
    assert len(loader) == 2
    assert gl.StatefulDataLoader is guideloom.pytorch.StatefulDataLoader
    assert "batch_size=4" in repr(loader)
    assert "100 elements" in repr(loader.dataset)
    loader.close()


def test_batches_are_tensors_with_the_dtypes_that_torch_takes(dataset: gl.StreamDataset) -> None:
    """Promise 3: unsigned tokens as int64, which an embedding takes; all else as stored."""
    with gl.StatefulDataLoader(dataset, batch_size=4) as loader:
        batch = next(iter(loader))
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in batch.items()} == {
        "tokens": (torch.int64, (4, 10)),
        "mask": (torch.uint8, (4, 10)),
        "wide": (torch.int64, (4, 10)),
        "concepts": (torch.int32, (4, 10, 4)),
        "flag": (torch.bool, (4, 10)),
        "weight": (torch.float32, (4, 10)),
        "half": (torch.float16, (4, 10)),
    }
    assert batch["tokens"].tolist() == np.arange(65_000, 65_040).reshape(4, 10).tolist()
    assert torch.nn.Embedding(65_100, 2)(batch["tokens"]).shape == (4, 10, 2)
    assert batch["concepts"][0, 3].tolist() == [1] * 4


def test_dtypes_that_the_caller_chose_are_kept() -> None:
    fields: Any = {"tokens": "uint16", "wide": "float32", "mask": None}
    with gl.StatefulDataLoader(in_memory([rows_of(50)], window=10, fields=fields)) as loader:
        batch = next(iter(loader))
    assert {name: tensor.dtype for name, tensor in batch.items()} == {
        "tokens": torch.uint16,
        "wide": torch.float32,
        "mask": torch.uint8,
    }
    with gl.StatefulDataLoader(in_memory([rows_of(50)], window=10, fields=["wide", "tokens"])) as loader:
        assert [(name, tensor.dtype) for name, tensor in next(iter(loader)).items()] == [
            ("wide", torch.int64),
            ("tokens", torch.int64),
        ]


def test_tensors_are_writable_own_their_memory_and_warn_of_nothing(dataset: gl.StreamDataset) -> None:
    """C32, C80: no warning without CUDA either; what is done to a batch shows in no other."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with gl.StatefulDataLoader(dataset, batch_size=4, pin_memory=True) as loader:
            first = next(iter(loader))
            first["tokens"] += 1
            loader.set_epoch(0)
        with gl.StatefulDataLoader(dataset, batch_size=4) as loader:
            again = next(iter(loader))
    assert torch.equal(first["tokens"], again["tokens"] + 1)
    assert again["tokens"].is_contiguous()


@given(st.integers(0, 40), deals(), prefetches(), st.booleans(), st.integers(0, 6))
def test_it_gives_what_the_loader_gives(
    num_samples: int, deal_out: dict[str, Any], prefetch: int | None, shuffle: bool, stop: int
) -> None:
    """Promises 1 and 2: one engine, two faces; their states are interchangeable."""
    dataset = dataset_of(num_samples)
    rank = deal_out["world_size"] - 1
    options = {"shuffle": shuffle, "seed": 8, "prefetch": prefetch, "rank": rank, **deal_out}
    (reference,) = epochs(dataset, 1, **options)
    stop = min(stop, len(reference))
    with gl.StatefulDataLoader(dataset, **options) as loader:
        assert len(loader) == len(reference)
        found = take(loader, stop)
        state = json.loads(json.dumps(loader.state_dict()))
    with gl.Loader(dataset, **options) as plain:
        plain.load_state_dict(state)
        assert plain.state_dict() == state
    with gl.StatefulDataLoader(dataset, **options) as loader:
        loader.load_state_dict(state)
        if stop < len(reference):
            assert found + [ids(batch) for batch in loader] == reference


def test_padded_rows_are_counted() -> None:
    """C24: equal steps on all ranks, padding marked."""
    counts = []
    for rank in range(4):
        with gl.StatefulDataLoader(dataset_of(10), 2, rank=rank, world_size=4) as loader:
            batches = list(loader)
        assert [batch["tokens"].shape[0] for batch in batches] == [2, 1]
        assert batches[1]["num_valid"].shape == ()
        counts.append(int(batches[1]["num_valid"]))
    assert sum(counts) == 2


def test_collating_gets_samples_and_its_result_is_the_batch(dataset: gl.StreamDataset) -> None:
    seen: list[Any] = []

    def collate(samples: list[dict[str, torch.Tensor]]) -> Any:
        seen.append(samples)
        return torch.stack([sample["tokens"] for sample in samples]), len(samples)

    with gl.StatefulDataLoader(dataset, batch_size=4, collate_fn=collate) as loader:
        batches = list(loader)
    assert [(tokens.shape, count) for tokens, count in batches] == [((4, 10), 4), ((4, 10), 4), ((2, 10), 2)]
    assert set(seen[0][0]) == set(DTYPE.names or ())
    assert seen[0][0]["concepts"].shape == (10, 4)
    assert loader.collate_fn is collate
    for rank in range(3):  # padding is not collated
        with gl.StatefulDataLoader(
            dataset_of(4), 1, rank=rank, world_size=3, collate_fn=lambda samples: len(samples)
        ) as loader:
            assert list(loader) in ([1, 0], [1, 1])


def test_a_field_of_the_datasets_own_is_not_taken_for_the_count_of_rows() -> None:
    rows = np.zeros(6, [("tokens", "<u2"), ("num_valid", "u1")])
    with gl.StatefulDataLoader(in_memory([rows], window=1), collate_fn=len) as loader:
        assert list(loader) == [1] * 6


def test_an_error_of_collating_surfaces_and_loses_nothing(dataset: gl.StreamDataset) -> None:
    """Promise 4: it is raised where `next` was called; the batch is still the next one."""
    fail = True

    def collate(samples: list[dict[str, torch.Tensor]]) -> int:
        if fail and int(samples[0]["tokens"][0]) == 65_040:
            raise ZeroDivisionError("of the user")
        return int(samples[0]["tokens"][0]) - 65_000

    with gl.StatefulDataLoader(dataset, batch_size=2, collate_fn=collate) as loader:
        batches = iter(loader)
        assert [next(batches), next(batches)] == [0, 20]
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="of the user"):
                next(batches)
            assert loader.state_dict()["step"] == 2
        fail = False
        assert list(batches) == [40, 60, 80]


def test_a_collator_that_returns_none_returns_a_batch(dataset: gl.StreamDataset) -> None:
    """C9: no value that a user may return is taken for a sign."""
    with gl.StatefulDataLoader(dataset, batch_size=2, collate_fn=lambda _: None) as loader:
        assert list(loader) == [None] * 5
        assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "meta"])
def test_batches_are_brought_to_the_device(dataset: gl.StreamDataset, device: Any) -> None:
    with gl.StatefulDataLoader(dataset, batch_size=4, device=device) as loader:
        batch = next(iter(loader))
    assert {tensor.device.type for tensor in batch.values()} == {torch.device(device).type}
    nested = lambda samples: {"list": [samples[0]["tokens"]], "tuple": (samples[0]["mask"], "text"), "number": 3}  # noqa: E731
    with gl.StatefulDataLoader(dataset, batch_size=4, device=device, collate_fn=nested) as loader:
        batch = next(iter(loader))
    assert batch["list"][0].device.type == batch["tuple"][0].device.type == torch.device(device).type
    assert (batch["tuple"][1], batch["number"]) == ("text", 3)
    with gl.StatefulDataLoader(
        dataset, batch_size=4, device=device, collate_fn=lambda samples: Pair(samples[0]["tokens"], "text")
    ) as loader:
        pair = next(iter(loader))
    assert type(pair) is Pair
    assert (pair.tokens.device.type, pair.name) == (torch.device(device).type, "text")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sampler", [1, 2], "shuffle= and seed="),
        ("batch_sampler", [[1]], "shuffle= and seed="),
        ("num_workers", 4, "background"),
        ("worker_init_fn", print, "no worker processes"),
        ("multiprocessing_context", "spawn", "no worker processes"),
        ("persistent_workers", True, "no worker processes"),
        ("generator", torch.Generator(), "seed="),
        ("prefetch_factor", 2, "prefetch="),
        ("timeout", 30, "a read that fails"),
        ("in_order", False, "in order"),
        ("pin_memory_device", "cuda", "device="),
        ("snapshot_every_n_steps", 10, "the state always names the next batch"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_with_our_way(
    dataset: gl.StreamDataset, name: str, value: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=f"{name}=.* makes no sense here: .*{message}"):
        gl.StatefulDataLoader(dataset, **{name: value})


def test_their_defaults_are_welcome_and_every_argument_of_torch_is_known(dataset: gl.StreamDataset) -> None:
    """Code that passes torch's defaults works; nothing of torch's signature is met with "no such argument"."""
    parameters = inspect.signature(DataLoader.__init__).parameters
    defaults = {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}
    defaults["snapshot_every_n_steps"] = 1  # torchdata's
    with gl.StatefulDataLoader(dataset, **defaults) as loader:
        assert len(loader) == 10
    with pytest.raises(TypeError, match="no argument 'batchsize'; did you mean 'batch_size'"):
        gl.StatefulDataLoader(dataset, batchsize=3)


@pytest.mark.parametrize("other", [[1, 2, 3], torch.arange(3), None, "data"])
def test_other_datasets_are_refused(other: Any) -> None:
    with pytest.raises(TypeError, match=r"what guideloom\.open_dataset returns"):
        gl.StatefulDataLoader(other)
    with pytest.raises(TypeError, match=r"what guideloom\.open_dataset returns"):
        gl.Loader(other)


def through_torch(state: Any) -> Any:
    file = io.BytesIO()
    torch.save({"loader": state}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)["loader"]


@pytest.mark.parametrize(
    "carry",
    [through_torch, lambda s: json.loads(json.dumps(s)), lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy],
)
def test_the_state_goes_wherever_states_go(carry: Callable[[Any], Any]) -> None:
    """C1: through `torch.save` and `torch.load(weights_only=True)`, JSON and pickle."""
    with gl.StatefulDataLoader(dataset_of(30), 4, shuffle=True, seed=1) as loader:
        take(loader, 3)
        state = loader.state_dict()
    with gl.StatefulDataLoader(dataset_of(30), 4, shuffle=True, seed=1) as loader:
        loader.load_state_dict(carry(state))
        assert [ids(batch) for batch in loader] == epochs(dataset_of(30), 1, batch_size=4, shuffle=True, seed=1)[0][3:]


def test_it_is_stateful_for_distributed_checkpoints(tmp_path: Path) -> None:
    """C13: DCP finds both methods, calls `state_dict` during the load too, and gives the position back."""
    dataset = dataset_of(30)
    with gl.StatefulDataLoader(dataset, 4, shuffle=True, seed=1) as loader:
        assert isinstance(loader, Stateful)
        assert isinstance(gl.Loader(dataset), Stateful)
        take(loader, 3)
        state = loader.state_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DCP's own, about running without a process group
            dcp_save({"loader": loader}, checkpoint_id=tmp_path)
    with gl.StatefulDataLoader(dataset, 4, shuffle=True, seed=1) as loader:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp_load({"loader": loader}, checkpoint_id=tmp_path)
        assert loader.state_dict() == state
        assert take(loader, 1) == epochs(dataset, 1, batch_size=4, shuffle=True, seed=1)[0][3:4]


def test_another_runs_state_is_refused() -> None:
    with gl.StatefulDataLoader(dataset_of(30), 4, seed=1) as loader:
        state = loader.state_dict()
    with gl.StatefulDataLoader(dataset_of(30), 4, seed=2) as loader, pytest.raises(StateMismatchError, match="seed"):
        loader.load_state_dict(state)


def test_it_has_the_other_methods_of_the_loader() -> None:
    with gl.StatefulDataLoader(dataset_of(30), 4, shuffle=True) as loader:
        loader.set_epoch(2)
        assert loader.sample_ids(1).tolist() == epochs(dataset_of(30), 3, batch_size=4, shuffle=True)[2][1]
        copied = pickle.loads(pickle.dumps(loader))
        assert copied.state_dict() == loader.state_dict()
    with pytest.raises(ClosedError):
        iter(loader)


def test_pinned_memory_is_used_where_there_is_an_accelerator(dataset: gl.StreamDataset) -> None:
    """C80: with CUDA the tensors are pinned, and equal those without."""
    with gl.StatefulDataLoader(dataset, 3) as loader:
        expected = list(loader)
    with gl.StatefulDataLoader(dataset, 3, pin_memory=True) as loader:
        for found, wanted in zip(loader, expected, strict=True):
            for name, tensor in wanted.items():
                assert torch.equal(found[name], tensor)
                assert found[name].is_pinned() == torch.accelerator.is_available()


def test_a_pinned_batch_has_the_storage_that_was_allocated(
    dataset: gl.StreamDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor made of its array is a stranger to the pool, which then reuses memory that a copy still reads."""
    allocated: list[torch.Tensor] = []
    empty = torch.empty

    def pageable(shape: tuple[int, ...], *, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        assert pin_memory
        allocated.append(empty(shape, dtype=dtype))
        return allocated[-1]

    with gl.StatefulDataLoader(dataset, 3) as loader:
        expected = list(loader)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", pageable)
    with gl.StatefulDataLoader(dataset, 3, pin_memory=True) as loader:
        for found, wanted in zip(loader, expected, strict=True):
            for name, tensor in wanted.items():
                assert torch.equal(found[name], tensor)
                assert found[name].dtype == tensor.dtype
                storage = found[name].untyped_storage()._cdata
                assert storage in [tensor.untyped_storage()._cdata for tensor in allocated]
