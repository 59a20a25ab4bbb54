"""Beyond 2**31 elements and 2**32 bytes: sparse files, so that it costs nothing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import guideloom as gl
from guideloom.backends.portable import PortableBackend
from guideloom.formats.schema import Schema
from guideloom.ranges import ByteRanges
from guideloom.storage.checksums import BlockChecksums
from guideloom.storage.manifest import MANIFEST_NAME, encode_manifest
from guideloom.storage.records import FileEntry, ShardEntry
from guideloom.storage.stream_manifest import StreamManifest

ZEROS = bytes(2**24)


def sparse_stream(
    root: Path, dtype: Any, rows: list[int], known: dict[int, int], *, checksums: bool = True
) -> dict[int, int]:
    """Write shards of so many elements, zero but for the known ones, at their places in the whole stream."""
    schema = Schema.of(dtype)
    (root / "shards").mkdir()
    starts = np.concatenate([[0], np.cumsum(rows)])
    entries = []
    for number, length in enumerate(rows):
        path, num_bytes = root / "shards" / f"{number}.bin", length * schema.row_bytes
        with path.open("wb") as file:
            file.truncate(num_bytes)
            for element, value in known.items():
                if starts[number] <= element < starts[number + 1]:
                    file.seek(int(element - starts[number]) * schema.row_bytes)
                    file.write(np.array([value], schema.fields[0].dtype).tobytes())
        if checksums:
            touched = {(element - starts[number]) * schema.row_bytes // len(ZEROS) for element in known}
            blocks = BlockChecksums(file_seed=number)
            with path.open("rb") as file:
                for i in range(-(-num_bytes // len(ZEROS))):  # the holes need not be read
                    file.seek(i * len(ZEROS))
                    size = min(len(ZEROS), num_bytes - i * len(ZEROS))
                    blocks.update(file.read(size) if i in touched else memoryview(ZEROS)[:size])
            (root / "shards" / f"{number}.crc32c").write_bytes(blocks.finish())
        entry = FileEntry(f"shards/{number}.bin", 0, num_bytes, "0" * 64, f"shards/{number}.crc32c", number)
        entries.append(ShardEntry(number, length, (entry,)))
    (root / MANIFEST_NAME).write_bytes(encode_manifest(StreamManifest(schema, (schema,), tuple(entries), 1)))
    return known


@pytest.mark.parametrize(
    ("dtype", "rows", "places"),
    [
        ("<u2", [2**31 + 10, 20], [2**30, 2**31 - 1, 2**31, 2**31 + 9, 2**31 + 10, 2**31 + 29]),
        (
            "u1",
            [2**31 - 1, 2**31 + 3, 50],
            [2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**32 + 2, 2**32 + 51],
        ),
    ],
)
def test_elements_and_bytes_beyond_32_bits(tmp_path: Path, dtype: str, rows: list[int], places: list[int]) -> None:
    """C28, C27: exact values on both sides of each edge, with checks and without, one at a time and in one batch."""
    known = sparse_stream(tmp_path, dtype, rows, {place: 1 + i for i, place in enumerate(places)})
    total = sum(rows)
    backends: list[Any] = [tmp_path, gl.LocalBackend(tmp_path, inline_bytes=0), PortableBackend(tmp_path)]
    for backend in backends:
        for verify in (True, False):
            dataset = gl.open_dataset(backend, window=8, stride=1, verify=verify)
            assert len(dataset) == total - 7
            assert dataset.num_elements == total
            starts = sorted({min(max(place - shift, 0), total - 8) for place in places for shift in (0, 3, 7)})
            expected = [[known.get(start + i, 0) for i in range(8)] for start in starts]
            with dataset.sync_reader() as reader:
                assert reader.read_batch(starts)["tokens"].tolist() == expected
                assert reader[np.int64(starts[-1])]["tokens"].tolist() == expected[-1]
                assert reader[-1]["tokens"].tolist()[-1] == known[total - 1]
                with pytest.raises(IndexError):
                    reader[total - 7]


def test_a_shuffled_loader_over_billions_of_samples(tmp_path: Path) -> None:
    """C22, C28: positions and samples beyond 2**31 in the order, the state and the reads."""
    sparse_stream(tmp_path, "u1", [2**32 + 100], {2**32 + 99: 7}, checksums=False)
    dataset = gl.open_dataset(tmp_path, window=1, verify=False)
    with gl.Loader(dataset, 4, shuffle=True, seed=1) as loader:
        assert len(loader) == 2**30 + 25
        batches = iter(loader)
        for step in range(3):
            ids = loader.sample_ids(step).tolist()
            assert max(ids) < 2**32 + 100
            assert next(batches)["tokens"].reshape(-1).tolist() == [7 if i == 2**32 + 99 else 0 for i in ids]
    with gl.Loader(dataset, 2**10) as loader:
        state = loader.state_dict()
        last = (2**32 + 100) // 2**10
        assert loader.sample_ids(last).tolist() == list(range(2**32, 2**32 + 100))
        assert state["position"] == 0


@pytest.mark.skipif(os.environ.get("GUIDELOOM_PROVE") != "1", reason="takes 6 GiB of memory; `make prove` runs it")
def test_one_request_of_three_gibibytes(tmp_path: Path) -> None:
    """C74: the kernel moves at most 2**31 - 4096 bytes a call; the rest is not missing."""
    length = 3 * 2**30
    places = [0, 2**30 - 1, 2**30, 2**31 - 4097, 2**31 - 4096, 2**31 - 1, 2**31, length - 1]
    with (tmp_path / "a").open("wb") as file:
        file.truncate(length + 10)
        for place in places:
            file.seek(place + 5)
            file.write(b"\x01")

    async def main() -> None:
        backend = gl.LocalBackend(tmp_path)
        await backend.open()
        buffer = np.empty(length, np.uint8)
        await backend.read_ranges(ByteRanges.of([("a", 5, length)]), [buffer.data])
        for place in places:
            assert int(np.count_nonzero(buffer[max(place - 100, 0) : place + 100])) >= 1
            assert buffer[place] == 1
        await backend.close()

    asyncio.run(main())
