"""Damage anywhere in a layer, and layers made to do harm: an error, or the spans as they were written."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import random
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import guideloom as gl
from guideloom.datasets.stream import StreamDataset
from guideloom.datasets.windows import WindowReader
from guideloom.errors import CorruptionError, DecodeError, GuideLoomError
from guideloom.storage.checksums import BlockChecksums
from guideloom.storage.kinds import load_manifest
from guideloom.storage.manifest import MANIFEST_NAME
from guideloom.storage.span_table import INDEX_DTYPE, SPAN_DTYPE
from guideloom.storage.stream_manifest import StreamManifest
from tests.layers import LayeredStream
from tests.streams import Files, store

ALL = os.environ.get("GUIDELOOM_PROVE") == "1"
WINDOW = 50


def _stream() -> LayeredStream:
    """A shard of some blocks of the index, an empty one, and a tiny one; gaps, overlaps, empty spans and payloads."""
    generator = random.Random(5)
    lengths = [2400, 0, 60]
    spans: list[list[tuple[int, int, Any]]] = []
    for length in lengths:
        starts = sorted(generator.randint(0, length) for _ in range(length // 30))
        spans.append([(low, min(low + generator.choice([0, 20, 300]), length), [low] * (low % 4)) for low in starts])
    return LayeredStream(lengths, {"a": gl.formats.NumpyArray("<i4")}, {"a": spans})


STREAM = _stream()
FILES = STREAM.files()
NAMES = [name for name in FILES if "layer" in name and "00001" not in name]


def opened(files: Files) -> StreamDataset:
    manifest = load_manifest(files[MANIFEST_NAME], path=MANIFEST_NAME)
    assert isinstance(manifest, StreamManifest)
    return StreamDataset(gl.MemoryBackend(files), manifest, "memory", WINDOW, WINDOW, layers=["a"])


async def whole(files: Files) -> list[Any]:
    """Return every span of every window, or raise."""
    async with opened(files).async_reader() as reader:
        spans = (await reader.read_batch(slice(None)))["a"]
    columns = (spans.row_offsets, spans.start, spans.end, spans.true_start, spans.true_end, spans.values, spans.offsets)
    return [column.tolist() for column in columns]


def check(variants: Iterable[tuple[str, bytes]]) -> None:
    """Read the dataset with one file changed, in each of these ways: every change is noticed."""

    async def main() -> None:
        right = await whole(FILES)
        for name, data in variants:
            try:
                found = await whole({**FILES, name: data})
            except GuideLoomError:
                continue
            assert found != right, f"{name} was changed, and nobody noticed"
            raise AssertionError(f"{name} was changed, and other spans were delivered")

    asyncio.run(main())


# The checksums are read whole in either case.
@pytest.mark.parametrize(
    ("name", "kept_bytes"), [(n, kept) for n in NAMES for kept in (2**26, 0) if kept or not n.endswith(".crc32c")]
)
def test_every_flipped_byte_is_noticed(name: str, kept_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: rows, index, checksums and payloads; every bit when it is to be proved."""
    monkeypatch.setattr("guideloom.datasets.span_index.MOST_KEPT_BYTES", kept_bytes)
    data = FILES[name]
    generator = random.Random(1)
    flips = (
        (name, data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :])
        for i in range(len(data))
        for bit in (range(8) if ALL else [generator.randrange(8)])
    )
    check(flips)


@pytest.mark.parametrize("name", NAMES)
def test_every_length_of_a_truncated_file_is_noticed(name: str) -> None:
    data = FILES[name]
    lengths = range(len(data)) if ALL or len(data) < 500 else [*range(20), *range(20, len(data), 41), len(data) - 1]
    check((name, data[:length]) for length in lengths)


def test_files_of_other_layers_are_noticed() -> None:
    """Also where content and sizes are equal: the checksums are of their file."""
    files = LayeredStream([100, 100], STREAM.encodings, {"a": [[(0, 40, [1]), (50, 100, [2])]] * 2}).files()
    first, second = (
        [f"shards/0000{i}-layer0{suffix}" for suffix in (".spans", ".crc32c", ".payloads")] for i in (0, 1)
    )
    for exchanged in ([0], [1], [0, 1]):
        changed = dict(files)
        for i in exchanged:
            changed[first[i]] = files[second[i]]
        with pytest.raises(CorruptionError):
            asyncio.run(whole(changed))
    swapped = {**files, first[2]: files[first[2]][4:] + files[first[2]][:4]}  # payloads in each other's place
    with pytest.raises(CorruptionError, match="payload of span 0"):
        asyncio.run(whole(swapped))


def test_damage_costs_only_what_it_touches() -> None:
    name = next(name for name in NAMES if name.endswith(".payloads"))
    data = bytearray(FILES[name])
    data[0] ^= 1

    async def main() -> None:
        right = opened(FILES)
        async with opened({**FILES, name: bytes(data)}).async_reader() as reader, right.async_reader() as other:
            named: list[tuple[bool, bool]] = []
            for sample in range(len(right)):
                values = (await other.read(sample))["a"].values.tolist()
                try:
                    found = await reader.read(sample)
                except CorruptionError as error:
                    named.append((error.sample == sample, name in str(error)))
                else:
                    assert found["a"].values.tolist() == values
        assert 0 < len(named) <= 1 + 300 // WINDOW + 1
        assert set(named) == {(True, True)}

    asyncio.run(main())


def test_local_files_too(tmp_path: Path) -> None:
    """Through the compiled readers, inline and by threads; what was wrong once only is delivered."""
    root = store(FILES, tmp_path)
    generator = random.Random(7)
    expected = asyncio.run(whole(FILES))
    for inline_bytes in (0, 131_072):
        for _ in range(25):
            name = generator.choice(NAMES)
            if not FILES[name]:
                continue
            place = generator.randrange(len(FILES[name]))
            changed = bytearray(FILES[name])
            changed[place] ^= 1 << generator.randrange(8)
            (root / name).write_bytes(changed)
            backend = gl.LocalBackend(root, inline_bytes=inline_bytes)
            with gl.open_dataset(backend, window=WINDOW, layers=["a"]).sync_reader() as reader:
                with pytest.raises(CorruptionError):
                    reader.read_batch(slice(None))
                (root / name).write_bytes(FILES[name])
                assert reader.read_batch(slice(None))["a"].values.tolist() == expected[5]


class Once(gl.MemoryBackend):
    """Gives a wrong byte of one file, the first time."""

    wrong = ""

    async def read_range(self, path: str, offset: int, length: int) -> memoryview:
        data = bytearray(await super().read_range(path, offset, length))
        if path == self.wrong:
            self.wrong = ""
            data[0] ^= 1
        return memoryview(data)


@pytest.mark.parametrize("suffix", [".spans", ".payloads"])
def test_bytes_that_were_damaged_on_their_way_are_read_again(suffix: str, caplog: pytest.LogCaptureFixture) -> None:
    backend = Once(FILES)
    dataset = gl.open_dataset(backend, window=WINDOW, layers=["a"])
    backend.wrong = f"shards/00000-layer0{suffix}"
    with dataset.sync_reader() as reader:
        assert reader.read_batch(slice(None))["a"].values.tolist() == asyncio.run(whole(FILES))[5]
    assert "second attempt" in caplog.text


def rewritten(rows: bytes, index: bytes, payloads: bytes) -> Files:
    """Return the dataset with another table, and with block checksums that are right."""
    files, stem = dict(FILES), "shards/00000-layer0"
    checksums = BlockChecksums(file_seed=7000)
    checksums.update(rows + index)
    files[f"{stem}.spans"], files[f"{stem}.crc32c"], files[f"{stem}.payloads"] = (
        rows + index,
        checksums.finish(),
        payloads,
    )
    return files


@given(st.data())
def test_hostile_tables_only_fail(data: st.DataObject) -> None:
    """M: numbers of any size in rows and index, whose checksums are right: typed errors, and no memory for them."""
    stem = "shards/00000-layer0"
    manifest = load_manifest(FILES[MANIFEST_NAME], path=MANIFEST_NAME)
    assert isinstance(manifest, StreamManifest)
    count = manifest.shards[0].layers[0].spans
    table = FILES[f"{stem}.spans"]
    rows = np.frombuffer(table[: 16 * count], SPAN_DTYPE).copy()
    index = np.frombuffer(table[16 * count :], INDEX_DTYPE).copy()
    numbers = st.sampled_from([0, 1, 2, 49, count, count + 1, 2**31 - 1, 2**31, 2**32 - 1])
    for _ in range(data.draw(st.integers(1, 6))):
        array = data.draw(st.sampled_from([rows, index]))
        field = data.draw(st.sampled_from(array.dtype.names or ()))
        value = data.draw(numbers)
        if field == "payload_offset":
            value = data.draw(st.sampled_from([value, len(FILES[f"{stem}.payloads"]), 2**63 - 1, 2**63, 2**64 - 1]))
        array[field][data.draw(st.integers(0, len(array) - 1))] = value
    files = rewritten(rows.tobytes(), index.tobytes(), FILES[f"{stem}.payloads"])
    for verify in (True, False):
        with gl.open_dataset(
            gl.MemoryBackend(files), window=WINDOW, layers=["a"], verify=verify
        ).sync_reader() as reader:
            for sample in range(0, len(reader), 7):
                try:
                    spans = reader.read(sample)["a"]
                except GuideLoomError:
                    continue
                assert spans.row_offsets.tolist() == [0, len(spans)]
                assert all(0 <= low <= high <= WINDOW for low, high in zip(spans.start, spans.end, strict=True))
                assert spans.offsets[-1] == len(spans.values)


def test_payloads_that_do_not_decode() -> None:
    files = LayeredStream([100], {"a": gl.formats.Text()}, {"a": [[(0, 40, "ok"), (50, 100, "ä")]]}).files()
    dataset = gl.open_dataset(gl.MemoryBackend(files), window=50, layers={"a": gl.formats.JSON()})
    with dataset.sync_reader() as reader:
        with pytest.raises(DecodeError, match=r"sample 1 of .*elements 50 to 100"):
            reader.read(1)
        with pytest.raises(DecodeError, match="sample 0"):
            reader.read_batch([0, 1])
    uneven = gl.open_dataset(gl.MemoryBackend(files), window=50, layers={"a": gl.formats.NumpyArray("<i4")})
    with uneven.sync_reader() as reader, pytest.raises(DecodeError, match="has 2 bytes, and items"):
        reader.read(0)


def test_more_than_a_batch_may_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(FILES).sync_reader() as reader:
        size = reader.read(3)["a"].values.nbytes
        assert size
        monkeypatch.setattr("guideloom.datasets.layers.MOST_BATCH_BYTES", 40 * 16)
        with pytest.raises(gl.errors.BackendError, match="use a smaller batch or window"):
            reader.read_batch(slice(None))
        assert reader.read(3)["a"].values.nbytes == size


def test_payloads_outlive_a_read_that_is_cancelled_while_they_are_checked() -> None:
    """The thread that checks and lays them out keeps the memory, not the call."""
    payloads: list[weakref.ref[Any]] = []
    reached = asyncio.Event()

    class Recording(gl.MemoryBackend):
        async def read_ranges(self, ranges: gl.ByteRanges, buffers: Any) -> None:
            await super().read_ranges(ranges, buffers)
            if ranges.paths[0].endswith(".payloads"):
                payloads.append(weakref.ref(buffers[0].obj.base))
                reached.set()

    spans = [[(0, 10, list(range(100_000)))]]
    files = LayeredStream([10], STREAM.encodings, {"a": spans}).files()
    dataset = gl.open_dataset(Recording(files), window=10, layers=["a"])
    gate, passed = threading.Event(), threading.Event()

    async def main() -> None:
        async with dataset.async_reader() as reader:
            assert isinstance(reader._reader, WindowReader)
            pool = reader._reader._jobs._pool
            pool.submit(gate.wait)
            read = asyncio.create_task(reader.read(0))
            await asyncio.wait_for(reached.wait(), 10)
            for _ in range(3):
                await asyncio.sleep(0)
            read.cancel()
            with pytest.raises(asyncio.CancelledError):
                await read
            del read
            await asyncio.sleep(0)
            gc.collect()
            assert payloads[0]() is not None
            pool.submit(passed.set)
            gate.set()
            assert await asyncio.to_thread(passed.wait, 10)
            gc.collect()
            assert payloads[0]() is None

    asyncio.run(main())


def test_a_manifest_that_claims_huge_layers_is_no_danger() -> None:
    """M4: no memory is taken for what it claims, whatever it is."""
    files = dict(FILES)
    manifest = load_manifest(files[MANIFEST_NAME], path=MANIFEST_NAME)
    assert isinstance(manifest, StreamManifest)
    for change in (
        {"spans": 2**32 - 1},
        {"spans": 2**32 - 1, "payload_bytes": 2**62},
        {"block_elements": 2**30},
        {"payload_bytes": 2**63 - 1},
    ):
        shards = list(manifest.shards)
        layer = msgspec.structs.replace(shards[0].layers[0], **change)
        shards[0] = msgspec.structs.replace(shards[0], layers=(layer,))
        if change.get("payload_bytes") == 2**63 - 1:
            with pytest.raises(gl.errors.ManifestError, match="63 bits"):
                dataclasses.replace(manifest, shards=tuple(shards))
            continue
        hostile = dataclasses.replace(manifest, shards=tuple(shards))
        dataset = StreamDataset(gl.MemoryBackend(files), hostile, "memory", WINDOW, WINDOW, layers=["a"])
        with dataset.sync_reader() as reader, pytest.raises(GuideLoomError):
            reader.read_batch(slice(None))
