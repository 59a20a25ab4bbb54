"""Damage of any kind, anywhere: an error, or the data as they were written; never other data."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import guideloom as gl
from guideloom.datasets.stream import StreamDataset
from guideloom.errors import CorruptionError, GuideLoomError
from guideloom.storage.checksums import BLOCK_BYTES
from guideloom.storage.kinds import load_manifest
from guideloom.storage.manifest import MANIFEST_NAME
from guideloom.storage.stream_manifest import StreamManifest
from tests.streams import Files, counted, shards_of, store, stream_files

# A short block, a whole one with a rest, an empty shard, a tiny one; and rows of several fields.
LENGTHS = [300, 0, 3, 1100]
PLAIN = stream_files(counted(LENGTHS, "<i4"))
ROWS = np.zeros(800, np.dtype([("tokens", "<u2"), ("mask", "u1")]))
ROWS["tokens"], ROWS["mask"] = np.arange(800), np.arange(800) % 251
FIELDS = stream_files(shards_of(ROWS, [500, 300]), groups=[["tokens"], ["mask"]])
READ = [name for name in PLAIN if not name.startswith("shards/00001")]  # nothing is ever read of the empty shard
ALL = os.environ.get("GUIDELOOM_PROVE") == "1"


async def contents(files: Files) -> dict[str, list[Any]]:
    """Return every field of every window that can be read, as lists, or raise the error of opening."""
    manifest = load_manifest(files[MANIFEST_NAME], path=MANIFEST_NAME)
    assert isinstance(manifest, StreamManifest)
    dataset = StreamDataset(gl.MemoryBackend(files), manifest, "memory", window=50, stride=50)
    found: dict[str, list[Any]] = {name: [] for name in manifest.schema.names}
    async with dataset.async_reader() as reader:
        for sample in range(len(dataset)):
            try:
                window = await reader.read(sample)
            except GuideLoomError:
                window = {}
            for name, windows in found.items():
                windows.append(window[name].tolist() if window else None)
    return found


async def whole(files: Files) -> Any:
    manifest = load_manifest(files[MANIFEST_NAME], path="m")
    assert isinstance(manifest, StreamManifest)
    dataset = StreamDataset(gl.MemoryBackend(files), manifest, "memory", window=50, stride=50)
    async with dataset.async_reader() as reader:
        batch = await reader.read_batch(slice(None))
    return {name: array.tolist() for name, array in batch.items()}


def check(original: Files, variants: Iterable[tuple[str, bytes]], *, detected: bool = True) -> None:
    """Read the dataset with one file changed, in each of these ways."""

    async def main() -> None:
        right = await whole(original)
        for name, data in variants:
            files = {**original, name: data}
            try:
                found = await whole(files)
            except GuideLoomError:
                continue
            except (KeyError, OSError) as error:  # only ours may leave the library
                raise AssertionError(f"{name}: {error!r}") from error
            assert found == right, f"{name} was changed, and other data were delivered"
            assert not detected or name == MANIFEST_NAME, f"{name} was changed, and nobody noticed"

    asyncio.run(main())


def flips(data: bytes, every_bit: bool, seed: int) -> Iterable[bytes]:
    generator = random.Random(seed)
    for i in range(len(data)):
        for bit in range(8) if every_bit else [generator.randrange(8)]:
            yield data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :]


@pytest.mark.parametrize("name", READ)
def test_every_flipped_byte_is_noticed(name: str) -> None:
    """C1: one bit of each byte of each file, data, checksums and manifest; every bit when it is to be proved."""
    check(PLAIN, ((name, data) for data in flips(PLAIN[name], ALL, 1)))


@pytest.mark.parametrize("name", list(FIELDS))
def test_every_flipped_byte_of_column_groups_is_noticed(name: str) -> None:
    check(FIELDS, ((name, data) for data in flips(FIELDS[name], ALL, 2)))


@pytest.mark.parametrize("name", READ)
def test_every_length_of_a_truncated_file_is_noticed(name: str) -> None:
    """C2, C46: whatever its length."""
    data = PLAIN[name]
    lengths = range(len(data)) if ALL or len(data) < 1000 else [*range(40), *range(40, len(data), 41), len(data) - 1]
    check(PLAIN, ((name, data[:length]) for length in lengths))


def test_zeroed_and_exchanged_blocks_are_noticed() -> None:
    """C2: the checksum of a block is of its place, too: blocks of one content cannot change places."""
    blocks = 4
    same = [np.tile(np.arange(1024, dtype="<i4"), blocks)] * 2
    files = stream_files(same)
    names = [f"shards/0000{i}-0.bin" for i in range(2)]
    places = [(name, block) for name in names for block in range(blocks)]

    def cut(name: str, block: int) -> slice:
        return slice(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)

    async def main() -> None:
        right = await whole(files)
        for name, block in places:
            changed = bytearray(files[name])
            changed[cut(name, block)] = bytes(BLOCK_BYTES)
            with pytest.raises(CorruptionError, match=name):
                await whole({**files, name: bytes(changed)})
        for (name, block), (other, place) in itertools.combinations(places, 2):
            assert files[name][cut(name, block)] == files[other][cut(other, place)]
            assert await whole(files) == right
        # Their contents are equal, so exchange them with their checksums: what was written elsewhere does not fit here.
        sides = [name.replace(".bin", ".crc32c") for name in names]
        for first, second in itertools.combinations(range(blocks), 2):
            table = bytearray(files[sides[0]])
            one, two = slice(4 * first, 4 * first + 4), slice(4 * second, 4 * second + 4)
            table[one], table[two] = table[two], table[one]
            with pytest.raises(CorruptionError):
                await whole({**files, sides[0]: bytes(table)})
        with pytest.raises(CorruptionError):
            await whole({**files, sides[0]: files[sides[1]]})

    asyncio.run(main())


def test_exchanged_blocks_and_shards_of_other_content_are_noticed() -> None:
    """C2: also a shard of another dataset under this one's name."""
    files = stream_files(counted([4096, 4096], "<i4"))
    names = [f"shards/0000{i}-0.bin" for i in range(2)]
    other = stream_files(counted([4096, 4096], "<i4"))
    variants = []
    for name, block, place in itertools.product(names, range(4), range(4)):
        data = files[name]
        parts = [data[i : i + BLOCK_BYTES] for i in range(0, len(data), BLOCK_BYTES)]
        if block != place:
            parts[block], parts[place] = parts[place], parts[block]
            variants.append((name, b"".join(parts)))
    variants += [(names[0], files[names[1]]), (names[1], other[names[0]])]
    check(files, variants)


def test_damage_leaves_all_other_windows_readable() -> None:
    """C4: the other blocks stay readable, in the same file too."""

    async def main() -> None:
        right = await contents(PLAIN)
        name = "shards/00003-0.bin"
        for byte in (0, 2000, 4095):
            data = bytearray(PLAIN[name])
            data[byte] ^= 1
            found = await contents({**PLAIN, name: bytes(data)})
            lost = [i for i, window in enumerate(found["tokens"]) if window is None]
            assert lost == list(range(303 // 50, 1326 // 50 + 1))
            assert all(window is None or window == right["tokens"][i] for i, window in enumerate(found["tokens"]))

    asyncio.run(main())


def test_local_files_too(tmp_path: Path) -> None:
    """C1: through the compiled readers, inline and by threads, with files that are open already."""
    root = store(PLAIN, tmp_path)
    expected = np.arange(1400, dtype="<i4").reshape(-1, 50)
    generator = random.Random(7)
    names = [name for name in READ if name.endswith(".bin") and len(PLAIN[name]) > 100]

    async def main() -> None:
        for inline_bytes in (0, 131_072):
            dataset = await asyncio.to_thread(
                gl.open_dataset, gl.LocalBackend(root, inline_bytes=inline_bytes), window=50
            )
            async with dataset.async_reader() as reader:
                for _ in range(100):
                    name = generator.choice(names)
                    place, bit = generator.randrange(len(PLAIN[name])), 1 << generator.randrange(8)
                    with (root / name).open("r+b") as file:
                        file.seek(place)
                        file.write(bytes([PLAIN[name][place] ^ bit]))
                    with pytest.raises(CorruptionError, match=name):
                        await reader.read_batch(slice(None))
                    with (root / name).open("r+b") as file:
                        file.seek(place)
                        file.write(PLAIN[name][place : place + 1])
                    assert (await reader.read_batch(slice(None)))["tokens"].tolist() == expected.tolist()

    asyncio.run(main())
