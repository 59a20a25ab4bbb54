"""What a window carries of its layers: whatever the spans, the grid and the backend, what plain Python says."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import guideloom as gl
from guideloom.datasets.spans import Spans
from tests.datasets.opened import KINDS, backend_of
from tests.layers import LayeredStream, layered_streams
from tests.strategies import grids


def assert_spans(found: Spans, stream: LayeredStream, name: str, begins: list[int], window: int) -> None:
    """Hold the spans of some windows against the oracle, element by element."""
    assert found.window == window
    assert found.num_windows == len(begins)
    expected = [stream.touching(name, begin, begin + window) for begin in begins]
    assert found.row_offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    flat = [span for spans in expected for span in spans]
    columns = (found.start, found.end, found.true_start, found.true_end)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [span[:4] for span in flat]
    payloads = [span[4] for span in flat]
    if isinstance(found.values, list):
        assert found.payloads == payloads
        with pytest.raises(TypeError, match="no arrays"):
            found.jagged  # noqa: B018  # it raises
    else:
        encoding = stream.encodings[name]
        assert isinstance(encoding, gl.formats.NumpyArray)
        field = encoding.sections[0].fields[0]
        assert found.values.dtype == field.dtype
        assert [payload.tolist() for payload in found.payloads] == [[_plain(item) for item in p] for p in payloads]
        assert all(payload.shape[1:] == field.shape for payload in found.payloads)
        assert found.values.flags.writeable
        assert found.jagged.lengths.tolist() == [len(payload) for payload in payloads]
    painted = np.full((len(begins), window), -1)
    for row, (low, high) in enumerate(zip(found.row_offsets, found.row_offsets[1:], strict=False)):
        for i in range(low, high):
            painted[row, found.start[i] : found.end[i]] = i
    assert found.element_index().tolist() == painted.tolist()


def _plain(item: Any) -> Any:
    return list(item) if isinstance(item, tuple) else item


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_windows_carry_the_spans_that_touch_them(kind: str, data: st.DataObject) -> None:
    stream = data.draw(layered_streams())
    grid = data.draw(grids(sum(stream.lengths)))
    window, stride, offset = grid["window"], grid["stride"], grid["offset"]
    layers = data.draw(st.lists(st.sampled_from(sorted(stream.spans)), min_size=1, unique=True))
    with backend_of(kind, stream.files()) as backend:
        dataset = gl.open_dataset(backend, layers=layers, verify=data.draw(st.booleans()), **grid)
        choices = st.lists(st.integers(0, max(len(dataset) - 1, 0)), max_size=12 if len(dataset) else 0)
        batches = data.draw(st.lists(choices, min_size=1, max_size=3))

        async def main() -> None:
            async with dataset.async_reader() as reader:
                for samples in batches:
                    begins = [offset + sample * stride for sample in samples]
                    batch = await reader.read_batch(samples)
                    assert set(batch) == {"tokens", *layers}
                    assert batch["tokens"].tolist() == [list(range(low, low + window)) for low in begins]
                    for name in layers:
                        assert_spans(batch[name], stream, name, begins, window)
                    for sample, begin in list(zip(samples, begins, strict=True))[:2]:
                        one = await reader.read(sample)
                        for name in layers:
                            assert_spans(one[name], stream, name, [begin], window)
                            row = batch[name].row(samples.index(sample))
                            assert_spans(row, stream, name, [begin], window)

        asyncio.run(main())


@pytest.mark.parametrize("kept_bytes", [0, 400])
@given(layered_streams(), st.data())
def test_rows_and_indexes_that_are_too_large_to_keep(
    kept_bytes: int, stream: LayeredStream, data: st.DataObject
) -> None:
    grid = data.draw(grids(sum(stream.lengths)))
    name = sorted(stream.spans)[0]
    dataset = gl.open_dataset(gl.MemoryBackend(stream.files()), layers=[name], **grid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("guideloom.datasets.span_index.MOST_KEPT_BYTES", kept_bytes)

        async def main() -> None:
            async with dataset.async_reader() as reader:
                samples = list(range(min(len(dataset), 20)))
                batch = await reader.read_batch(samples)
                begins = [grid["offset"] + sample * grid["stride"] for sample in samples]
                assert_spans(batch[name], stream, name, begins, grid["window"])

        asyncio.run(main())


class Counted(gl.MemoryBackend):
    """Counts what it is asked for."""

    def __init__(self, files: Any) -> None:
        super().__init__(files)
        self.calls: list[int] = []
        self.names: set[str] = set()

    async def read_ranges(self, ranges: gl.ByteRanges, buffers: Any) -> None:
        self.calls.append(len(ranges))
        self.names.update(ranges.paths[i] for i in ranges.file.tolist())
        await super().read_ranges(ranges, buffers)


def _dense() -> LayeredStream:
    spans: list[list[tuple[int, int, Any]]] = [[(i, i + 10, [i]) for i in range(0, 4000, 10)]] * 3
    array = gl.formats.NumpyArray("<i4")
    return LayeredStream([4000] * 3, {"a": array, "b": array}, {"a": spans, "b": spans})


def test_only_layers_that_are_asked_for_are_read() -> None:
    backend = Counted(_dense().files())
    for layers in ([], ["a"]):
        with gl.open_dataset(backend, window=100, layers=layers).sync_reader() as reader:
            reader.read_batch([3, 90])
        assert {name[13:].split(".")[0] for name in backend.names} == {"0", *(["layer0"] if layers else [])}


@pytest.mark.parametrize(("kept_bytes", "steps"), [(2**26, 1), (5000, 2), (0, 3)])
def test_a_slice_takes_each_step_in_one_call(kept_bytes: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guideloom.datasets.span_index.MOST_KEPT_BYTES", kept_bytes)
    backend = Counted(_dense().files())
    dataset = gl.open_dataset(backend, window=100, layers=["a"])

    async def main() -> None:
        async with dataset.async_reader() as reader:
            await reader.read_batch(slice(None))  # checksums, and what is kept
            slices = reader._reader
            assert slices is not None
            for count in (1, 40):
                backend.calls.clear()
                samples = np.arange(2 * count, dtype=np.int64)
                await slices.read(samples, [2] * count, [2] * count)
                # One for the tokens; of the layer entries of the index and rows, where they are not kept, and payloads.
                assert len(backend.calls) == 1 + steps

    asyncio.run(main())
