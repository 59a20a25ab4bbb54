"""Loaders over layers: the spans of the windows that are delivered, on any rank, after any restart."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import guideloom as gl
from guideloom.pytorch import TensorSpans
from tests.datasets.test_layers import assert_spans
from tests.layers import PAYLOADS, LayeredStream, layered_streams
from tests.strategies import deals, prefetches
from tests.streams import store

WINDOW = 16


def dataset_of(stream: LayeredStream, **options: Any) -> gl.StreamDataset:
    return gl.open_dataset(gl.MemoryBackend(stream.files()), window=WINDOW, layers=list(stream.spans), **options)


def check_batch(batch: Any, stream: LayeredStream) -> None:
    """Hold the spans of a batch against its tokens, which are their own positions."""
    rows = int(batch["num_valid"]) if "num_valid" in batch else len(batch["tokens"])
    begins = batch["tokens"][:, 0].tolist()
    for name in stream.spans:
        found = batch[name]
        assert found.num_windows == len(begins)
        assert found.row_offsets[rows:].tolist() == [len(found)] * (len(begins) - rows + 1)
        for i in range(rows):
            assert_spans(found.row(i), stream, name, [begins[i]], WINDOW)


@given(layered_streams(), deals(), prefetches(), st.data())
def test_loaders_deliver_and_resume(
    stream: LayeredStream, deal: dict[str, Any], prefetch: int | None, data: st.DataObject
) -> None:
    dataset = dataset_of(stream)
    rank = data.draw(st.integers(0, deal["world_size"] - 1))
    options = {**deal, "rank": rank, "shuffle": True, "seed": 5, "prefetch": prefetch}
    loader = gl.Loader(dataset, **options)
    epoch = list(itertools.islice(loader, 6))
    loader.close()
    for batch in epoch[:2]:
        check_batch(batch, stream)
    if len(epoch) < 2:
        return
    stop = data.draw(st.integers(1, len(epoch) - 1))
    first = gl.Loader(dataset, **options)
    list(itertools.islice(first, stop))
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    second = gl.Loader(dataset, **options)
    second.load_state_dict(state)
    batch = next(iter(second))
    second.close()
    assert batch["tokens"].tolist() == epoch[stop]["tokens"].tolist()
    for name in stream.spans:
        for attribute in ("row_offsets", "start", "end", "true_start", "true_end"):
            assert getattr(batch[name], attribute).tolist() == getattr(epoch[stop][name], attribute).tolist()


@given(layered_streams(), st.data())
def test_tensors_are_the_arrays(stream: LayeredStream, data: st.DataObject) -> None:
    dataset = dataset_of(stream)
    if not len(dataset):
        return
    collated: list[Any] = []

    def collate(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        collated.extend(samples)
        return samples

    device = data.draw(st.sampled_from([None, "cpu"]))
    loader = gl.StatefulDataLoader(dataset, batch_size=3, device=device)
    batch = next(iter(loader))
    loader.close()
    expected = gl.Loader(dataset, batch_size=3)
    arrays = next(iter(expected))
    expected.close()
    for name in stream.spans:
        tensors, spans = batch[name], arrays[name]
        assert isinstance(tensors, TensorSpans)
        assert (len(tensors), tensors.num_windows, tensors.window) == (len(spans), spans.num_windows, WINDOW)
        for attribute in ("row_offsets", "start", "end", "true_start", "true_end"):
            tensor = getattr(tensors, attribute)
            assert tensor.dtype == torch.int64
            assert tensor.tolist() == getattr(spans, attribute).tolist()
        if isinstance(spans.values, list):
            assert tensors.offsets is None
            assert tensors.values == tensors.payloads == spans.values
        else:
            assert tensors.values.dtype in (torch.int32, torch.int64)
            assert tensors.offsets is not None
            assert tensors.offsets.tolist() == spans.offsets.tolist()
            assert [payload.tolist() for payload in tensors.payloads] == [
                payload.tolist() for payload in spans.payloads
            ]
        assert tensors.element_index().tolist() == spans.element_index().tolist()
        for tensor, array in zip(tensors.document_layout(), spans.document_layout(), strict=True):
            assert (tensor.tolist() if isinstance(tensor, torch.Tensor) else tensor) == np.asarray(array).tolist()
        assert tensors.to("cpu").row(0).start.tolist() == spans.row(0).start.tolist()
    by_sample = gl.StatefulDataLoader(dataset, batch_size=3, collate_fn=collate)
    next(iter(by_sample))
    by_sample.close()
    for i, sample in enumerate(collated):
        for name in stream.spans:
            assert sample[name].true_start.tolist() == arrays[name].row(i).true_start.tolist()


def test_structured_payloads_are_tensors_by_field() -> None:
    rows = gl.formats.Rows([("label", "<u2"), ("score", "<f4")])
    value = np.array([(1, 0.5), (2, 0.25)], rows.sections[0].dtype)
    stream = LayeredStream([20], {"a": rows}, {"a": [[(0, 4, value), (2, 20, value[:0]), (5, 5, value[1:])]]})
    dataset = dataset_of(stream)
    with dataset.sync_reader() as reader:
        assert [payload.tolist() for payload in reader[0]["a"].payloads] == [value.tolist(), [], value[1:].tolist()]
    loader = gl.StatefulDataLoader(dataset)
    spans = next(iter(loader))["a"]
    loader.close()
    assert spans.values["label"].tolist() == [1, 2, 2]
    assert spans.values["label"].dtype == torch.int64
    assert [payload["score"].tolist() for payload in spans.payloads] == [[0.5, 0.25], [], [0.25]]


def test_document_layouts() -> None:
    """Runs of one window: a document cut by its edge, a gap, a document inside another, one after the other."""
    spans = [(0, 10, 0), (12, 20, 1), (14, 16, 2), (20, 24, 3), (24, 24, 4)]
    stream = LayeredStream([32], {"a": gl.formats.JSON()}, {"a": [spans]})
    dataset = gl.open_dataset(gl.MemoryBackend(stream.files()), window=16, offset=8, layers=["a"])
    with dataset.sync_reader() as reader:
        layout = reader.read_batch([0, 0])["a"].document_layout()
    runs = [2, 2, 2, 2, 4, 4]  # to 10, the gap, to 14, the one inside, to 20, to 24
    assert layout.document_ids.tolist() == [[run for run, n in enumerate(runs) for _ in range(n)]] * 2
    assert layout.position_ids.tolist() == [[i for n in runs for i in range(n)]] * 2
    assert layout.cu_seqlens.tolist() == np.cumsum([0, *runs, *runs]).tolist()
    assert layout.max_seqlen == 4
    assert [array.dtype.str for array in layout[:3]] == ["<i4", "<i8", "<i4"]


def test_the_bytes_of_spans_count() -> None:
    """The look-ahead is bounded by what batches with their spans take, on average."""
    encoding, _ = PAYLOADS["array"]
    stream = LayeredStream([1600], {"a": encoding}, {"a": [[(i, i + 1, list(range(50))) for i in range(1600)]]})
    assert dataset_of(stream).slice_reader().sample_bytes == 4 * WINDOW + 8 + WINDOW * (40 + 200)


def test_layers_that_do_not_exist() -> None:
    stream = LayeredStream([20], {"concepts": gl.formats.JSON()}, {"concepts": [[]]})
    backend = gl.MemoryBackend(stream.files())
    for layers, error, why in (
        (["concept"], ValueError, "did you mean 'concepts'"),
        ("concepts", TypeError, r"did you mean \['concepts'\]"),
        (["concepts", "concepts"], ValueError, "twice"),
    ):
        with pytest.raises(error, match=why):
            gl.open_dataset(backend, window=2, layers=layers)
    with pytest.raises(ValueError, match="at most 1073741824"):
        gl.open_dataset(backend, window=2**31, layers=["concepts"])
    dataset = gl.open_dataset(backend, window=4, layers=["concepts"])
    assert "layer concepts" in repr(dataset)
    with dataset.sync_reader() as reader:
        assert len(reader[0]["concepts"]) == 0
        assert reader[:]["concepts"].payloads == []


def test_a_layer_cannot_be_called_what_padded_batches_carry() -> None:
    stream = LayeredStream([20], {"num_valid": gl.formats.JSON()}, {"num_valid": [[]]})
    dataset = gl.open_dataset(gl.MemoryBackend(stream.files()), window=3, layers=["num_valid"])
    with gl.Loader(dataset, batch_size=2, rank=0, world_size=2) as loader, pytest.raises(ValueError, match="clashes"):
        next(iter(loader))


def test_datasets_with_layers_are_pickled_with_what_they_read(tmp_path: Path) -> None:
    stream = LayeredStream([40], {"a": gl.formats.Text(), "b": gl.formats.JSON()}, {"a": [[(1, 9, "x")]], "b": [[]]})
    root = store(stream.files(), tmp_path)
    (root / "snapshots/3").mkdir(parents=True)
    (root / "snapshots/3/guideloom.json").write_bytes((root / "guideloom.json").read_bytes())
    for layers in (["a"], {"a": gl.formats.Bytes()}, []):
        dataset = gl.open_dataset(root, window=10, layers=layers)
        twin = pickle.loads(pickle.dumps(dataset))
        assert twin.fingerprint == dataset.fingerprint
        with twin.sync_reader() as reader, dataset.sync_reader() as other:
            found, expected = reader[0], other[0]
        assert list(found) == list(expected)
        assert [found[name].payloads for name in layers] == [expected[name].payloads for name in layers]
