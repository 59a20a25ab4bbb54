"""What a window holds: whatever the layout, the grid, the fields and the backend, the elements that NumPy says."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import guideloom as gl
from guideloom.datasets.grid import WindowGrid
from guideloom.datasets.windows import WindowReader
from guideloom.errors import CorruptionError, MissingFileError, ShortReadError
from guideloom.formats.schema import Schema
from guideloom.storage.manifest import MANIFEST_NAME, encode_manifest
from guideloom.storage.records import FileEntry, ShardEntry
from guideloom.storage.stream_manifest import StreamManifest
from tests.datasets.opened import KINDS, OneMethod, backend_of, in_memory
from tests.reference import ReferenceWindows, assert_equal
from tests.strategies import grids, selections, streams
from tests.streams import counted, shards_of, store, stream_files


@st.composite
def column_groups(draw: st.DrawFn, names: tuple[str, ...] | None) -> list[tuple[str, ...]]:
    """Ways to divide the fields of a row among files."""
    if names is None:
        return []
    cuts = sorted(draw(st.sets(st.integers(1, len(names) - 1)))) if len(names) > 1 else []
    return [names[low:high] for low, high in zip([0, *cuts], [*cuts, len(names)], strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_windows_hold_what_numpy_says(kind: str, data: st.DataObject) -> None:
    """Shards of 0, 1, a prime number of elements; any dtype, grid, fields and backend; checks on or off.

    C31: padding in a row. C23: empty shards. C33, C34: windows over edges. C32: arrays are the caller's own.
    """
    stream = data.draw(streams())
    dtype = stream.rows.dtype
    grid = data.draw(grids(len(stream.rows)))
    fields = data.draw(selections(dtype))
    groups, byte_offset = data.draw(column_groups(dtype.names)), data.draw(st.sampled_from([0, 0, 1, 4096, 5000]))
    files = stream_files(shards_of(stream.rows, stream.lengths), dtype, groups=groups, byte_offset=byte_offset)
    expected = ReferenceWindows(stream.rows, **grid)
    with backend_of(kind, files) as backend:
        verify = data.draw(st.booleans())
        dataset = gl.open_dataset(backend, fields=fields, verify=verify, **grid)
        assert len(dataset) == len(expected)
        assert dataset.num_elements == len(stream.rows)
        choices = st.lists(st.integers(0, max(len(expected) - 1, 0)), max_size=12 if len(expected) else 0)
        batches = data.draw(st.lists(choices, min_size=1, max_size=3))

        async def main() -> None:
            async with dataset.async_reader() as reader:
                for samples in batches:
                    assert_equal(await reader.read_batch(samples), expected.batch(samples, fields))
                    for sample in samples[:2]:
                        one = expected.batch([sample], fields)
                        assert_equal(await reader.read(sample), {name: array[0].copy() for name, array in one.items()})

        asyncio.run(main())


def test_windows_cross_shard_edges() -> None:
    """C33: 100 tokens in shards of 33, 33, 34; eight and a label token; window 4 is 32..40, window 11 is 88..96."""
    dataset = in_memory(counted([33, 33, 34]), window=9, stride=8)
    with dataset.sync_reader() as reader:
        assert len(reader) == 12
        assert reader[4]["tokens"].tolist() == list(range(32, 41))
        assert reader[11]["tokens"].tolist() == list(range(88, 97))


def test_windows_do_not_care_how_the_stream_was_cut() -> None:
    """C34: 7148 tokens in pieces of 5000, 3, 2045 and 100: three windows of 2048, 1004 left over."""
    dataset = in_memory(counted([5000, 3, 2045, 100]), window=2048)
    with dataset.sync_reader() as reader:
        assert len(reader) == 3
        assert reader[2]["tokens"].tolist() == list(range(4096, 6144))
        with pytest.raises(IndexError):
            reader[3]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([0, 5, 0, 1, 0], [[0, 1], [2, 3], [4, 5]]),
        ([0, 0], []),
        ([], []),
        ([1], []),
        ([1, 1], [[0, 1]]),
        ([2], [[0, 1]]),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_and_almost_nothing(kind: str, lengths: list[int], expected: list[list[int]]) -> None:
    """C23: empty shards, only empty shards, no shards, one element."""
    with backend_of(kind, stream_files(counted(lengths), "<u2")) as backend:
        dataset = gl.open_dataset(backend, window=2)
        assert len(dataset) == len(expected)
        with dataset.sync_reader() as reader:
            assert [sample["tokens"].tolist() for sample in reader] == expected
            assert reader[:]["tokens"].shape == (len(expected), 2)
            with pytest.raises(IndexError):
                reader[len(expected)]
            assert list(reader.batches(3, shuffle=True)) == [] if not expected else True


@given(st.integers(0, 40), st.integers(1, 12), st.integers(1, 15), st.integers(0, 45))
def test_the_incomplete_last_window_is_dropped(length: int, window: int, stride: int, offset: int) -> None:
    grid = WindowGrid(window, stride, offset, np.array([0, length], np.int64))
    assert len(grid) == len(ReferenceWindows(np.zeros(length), window, stride, offset))


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_are_the_callers_own(kind: str) -> None:
    """C32, promise 3: writing to a batch changes neither the data nor another batch."""
    files = stream_files(counted([50, 50], np.dtype([("a", "<u2"), ("b", "u1")])))
    with backend_of(kind, files) as backend, gl.open_dataset(backend, window=10).sync_reader() as reader:
        first, second = reader.read_batch([2, 3]), reader.read_batch([2, 3])
        first["a"] += 1
        assert second["a"].reshape(-1).tolist() == list(range(20, 40))
        assert reader[2]["a"].tolist() == list(range(20, 30))


def test_a_small_batch_keeps_nothing_large_alive() -> None:
    """C59: what is delivered is no view of a larger buffer."""
    dataset = in_memory(counted([4000, 4000]), window=7)
    with dataset.sync_reader() as reader:
        for array in (reader[100]["tokens"], reader.read_batch([5, 571])["tokens"]):
            assert array.flags.owndata
            assert array.base is None


class Faulty(OneMethod):
    """Answers with another file's content, or a wrong one, where it is told to."""

    def __init__(self, files: dict[str, bytes], wrong: dict[str, Any], times: int = 10**9) -> None:
        super().__init__(files)
        self.wrong, self.times = wrong, times

    async def read_range(self, path: str, offset: int, length: int) -> bytes:
        data = await super().read_range(path, offset, length)
        if path in self.wrong and self.times:
            self.times -= 1
            return bytes(self.wrong[path](data))
        return data


def flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def test_damage_costs_its_samples_and_is_named() -> None:
    """C3, C4: file, byte range, expected and found; the other windows stay readable."""
    files = stream_files(counted([3000, 3000]))
    name = "shards/00001-0.bin"
    files[name] = files[name][:4200] + bytes([files[name][4200] ^ 4]) + files[name][4201:]  # in its second block
    with gl.open_dataset(gl.MemoryBackend(files), window=100).sync_reader() as reader:
        bad = []
        for sample in range(60):
            try:
                assert reader[sample]["tokens"][0] == sample * 100
            except CorruptionError as error:
                bad.append((sample, error))
    assert [sample for sample, _ in bad] == list(range(50, 60))  # the block is elements 5048 to 6000
    for sample, caught in bad:
        assert (caught.path, caught.offset, caught.length, caught.sample) == (name, 4096, 6000 - 4096, sample)
        assert caught.expected != caught.found
        for part in (name, "4096", f"sample {sample}", f"{caught.expected:#010x}", f"{caught.found:#010x}"):
            assert part in str(caught)


def test_damage_that_goes_away_on_the_second_look_heals(caplog: pytest.LogCaptureFixture) -> None:
    """C6: one mismatch is read again, and told of; two are an error."""
    files = stream_files(counted([3000]))
    name = "shards/00000-0.bin"
    for times, heals in ((1, True), (2, False)):
        caplog.clear()
        backend = Faulty(files, {name: flip}, times)
        with gl.open_dataset(backend, window=100).sync_reader() as reader:
            if heals:
                assert reader[0]["tokens"].tolist() == list(range(100))
                assert [record.levelname for record in caplog.records] == ["WARNING"]
                assert name in caplog.text
            else:
                with pytest.raises(CorruptionError, match="twice"):
                    reader[0]


def test_without_checks_damage_is_the_callers_risk() -> None:
    files = stream_files(counted([3000]))
    backend = Faulty(files, {"shards/00000-0.bin": flip})
    with gl.open_dataset(backend, window=100, verify=False).sync_reader() as reader:
        assert reader[0]["tokens"].tolist() == [1, *range(1, 100)]


@pytest.mark.parametrize("kind", ["local", "local, by threads", "memory", "portable"])
def test_a_truncated_shard_is_named_and_costs_only_its_own_samples(kind: str) -> None:
    """C46: file, expected and found sizes; other shards, and what is whole of this one, remain readable."""
    files = stream_files(counted([5000, 5000, 5000]))
    name = "shards/00001-0.bin"
    for verify in (True, False):
        cut = {**files, name: files[name][:9000]}  # of 10,000 bytes: element 4500
        with (
            backend_of(kind, cut) as backend,
            gl.open_dataset(backend, window=100, verify=verify).sync_reader() as reader,
        ):
            for sample in (0, 50, 89, 100, 149):
                if verify and sample == 89:  # its block is cut too, and cannot be checked
                    continue
                assert reader[sample]["tokens"].tolist() == list(range(sample * 100, sample * 100 + 100))
            with pytest.raises(ShortReadError, match=rf"sample 97 of .*: {name} ends early") as caught:
                reader[97]
            assert (caught.value.path, caught.value.sample) == (name, 97)
            assert 0 <= caught.value.found < caught.value.length


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_shard_costs_its_batch_and_no_other(kind: str) -> None:
    """Promise 4: a fault costs one batch, not the slice."""
    files = stream_files(counted([500, 500, 500], np.dtype([("a", "<u4"), ("b", "u1")])))
    name = "shards/00001-0.bin"
    del files[name]
    with backend_of(kind, files) as backend:
        dataset = gl.open_dataset(backend, window=10)

        async def main() -> None:
            await backend.open()
            reader = dataset.slice_reader()
            samples = np.arange(150, dtype=np.int64)
            results = await reader.read(samples, [10] * 15, [10] * 15)
            for number, result in enumerate(results):
                if 5 <= number < 10:
                    assert isinstance(result, MissingFileError)
                    assert (result.path, result.sample) == (name, 10 * number)
                    assert name in str(result)
                else:
                    assert not isinstance(result, Exception)
                    assert result["a"][3].tolist() == list(range(100 * number + 30, 100 * number + 40))
            await backend.close()

        asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_missing_or_damaged_checksums_are_an_error_of_their_shard(kind: str) -> None:
    """C1: also the checksums are checked; what cannot be checked is not delivered."""
    for change in (None, lambda data: data[:-1], flip, lambda _: b""):
        files = stream_files(counted([5000, 5000]))
        name = "shards/00001-0.crc32c"
        if change is None:
            del files[name]
        else:
            files[name] = change(files[name])
        with backend_of(kind, files) as backend, gl.open_dataset(backend, window=50).sync_reader() as reader:
            for _ in range(2):  # the first time nothing is open yet
                assert reader.read_batch(range(100))["tokens"].shape == (100, 50)
                with pytest.raises((CorruptionError, MissingFileError, ShortReadError), match=name) as caught:
                    reader.read_batch(range(200))
                assert (caught.value.path, caught.value.sample) == (name, 100)


def test_scratch_outlives_a_read_that_is_cancelled_while_it_is_laid_out() -> None:
    """A thread that lays out rows may go on after the cancel: it, not the call, keeps the memory that it reads."""
    scratch: list[weakref.ref[Any]] = []

    class Recording(OneMethod):
        async def read_ranges(self, ranges: gl.ByteRanges, buffers: Sequence[memoryview]) -> None:
            await super().read_ranges(ranges, buffers)
            scratch.append(weakref.ref(buffers[-1].obj.base))  # type: ignore[attr-defined]  # an array's own
            read_through.set()

    backend = Recording(stream_files([np.zeros(200_000, [("a", "<u2"), ("b", "u1")])]))
    dataset = gl.open_dataset(backend, window=200_000, verify=False)
    read_through = asyncio.Event()
    gate, passed = threading.Event(), threading.Event()

    async def main() -> None:
        async with dataset.async_reader() as reader:
            assert isinstance(reader._reader, WindowReader)
            pool = reader._reader._jobs._pool
            pool.submit(gate.wait)
            read = asyncio.create_task(reader.read(0))
            await asyncio.wait_for(read_through.wait(), 10)
            await asyncio.sleep(0)
            read.cancel()
            with pytest.raises(asyncio.CancelledError):
                await read
            del read
            await asyncio.sleep(0)  # this step's wake-up holds the task, and with it all that the read held
            gc.collect()
            assert scratch[0]() is not None
            pool.submit(passed.set)
            gate.set()
            assert await asyncio.to_thread(passed.wait, 10)
            assert scratch[0]() is None

    asyncio.run(main())


def test_a_manifest_that_claims_files_of_2_63_bytes_is_no_danger() -> None:
    """M4: blocks at the end of such a file are counted without a sum that wraps around."""
    schema, end = Schema.of("<u2"), 2**63 - 1
    entry = FileEntry("a.bin", end - 4001, end, "0" * 64, "a.crc32c", 1)
    manifest = encode_manifest(StreamManifest(schema, (schema,), (ShardEntry(0, 2000, (entry,)),), 1))

    class Zeros(gl.RangeBackend):
        async def read_range(self, path: str, offset: int, length: int) -> bytes:
            return manifest if path == MANIFEST_NAME else bytes(length)

    with gl.open_dataset(Zeros(), window=4).sync_reader() as reader:
        for samples in ([0], [499], range(500)):
            with pytest.raises(CorruptionError, match=r"a\.bin is damaged"):
                reader.read_batch(samples)


def test_exchanged_shards_are_found_out(tmp_path: Any) -> None:
    """C2: two shards of equal size under each other's name are no data but an error."""
    files = stream_files(counted([3000, 3000]))
    names = ("shards/00000-0.bin", "shards/00001-0.bin")
    files[names[0]], files[names[1]] = files[names[1]], files[names[0]]
    with gl.open_dataset(store(files, tmp_path), window=50).sync_reader() as reader:
        for sample in range(len(reader)):
            with pytest.raises(CorruptionError):
                reader[sample]
