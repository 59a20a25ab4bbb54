"""Damage of any kind to a dataset of any layout: an error, or the data as they were written; never other data.

Every bit, every length and every exchange when it is to be proved, else a sample of each.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import guideloom as gl
from guideloom.errors import CorruptionError, GuideLoomError, MissingFileError
from guideloom.storage.manifest import MANIFEST_NAME
from guideloom.storage.verification import Verification
from guideloom.storage.verifier import Verifier
from tests.damage import (
    LAYOUTS,
    Damaged,
    Layout,
    exchanged_blocks,
    exchanged_files,
    flipped,
    foreign_files,
    is_read,
    other_lengths,
    plain,
    read_all,
    with_damage,
    zeroed,
)
from tests.streams import Files, store

ALL = os.environ.get("GUIDELOOM_PROVE") == "1"

KINDS: dict[str, Callable[[Layout, Files], Iterator[Damaged]]] = {
    "other lengths": lambda _, files: other_lengths(files, step=1 if ALL else 997),
    "zeroed": lambda _, files: zeroed(files),
    "exchanged blocks": lambda _, files: exchanged_blocks(files),
    "exchanged files": lambda _, files: exchanged_files(files),
    "foreign files": lambda layout, files: foreign_files(files, layout.files(seed=2)),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]


@pytest.fixture(scope="module")
def files(layout: Layout) -> Files:
    return layout.files()


def some(damages: Iterable[Damaged], count: int = 25) -> Iterable[Damaged]:
    """All of them to prove; else a few, the same each time."""
    if ALL:
        return damages
    found = list(damages)
    return random.Random(3).sample(found, min(count, len(found)))


def bits(data: bytes) -> Iterable[int]:
    """Every bit to prove; else a few, the same each time."""
    if ALL or len(data) < 2:
        return range(8 * len(data))
    return random.Random(len(data)).sample(range(8 * len(data)), 12)


@pytest.mark.asyncio
async def test_every_flipped_bit_of_a_shard_is_an_error_that_names_its_place(layout: Layout, files: Files) -> None:
    """C1, C3: in the data, in the checksums, in the index."""
    changed = dict(files)
    dataset = layout.open(gl.MemoryBackend(changed))
    right = await read_all(dataset)
    for name, data in files.items():
        if name == MANIFEST_NAME or not is_read(name, files):
            continue
        for bit in bits(data):
            changed[name] = flipped(data, bit)
            with pytest.raises(CorruptionError) as caught:
                await read_all(dataset)
            error = caught.value
            assert error.path == name
            own_checksum = 4 if name.endswith(".crc32c") else 0  # which lies behind the table that it is of
            assert error.offset <= bit // 8 < error.offset + error.length + own_checksum
            assert error.expected != error.found
        changed[name] = data
    assert await read_all(dataset) == right


@pytest.mark.asyncio
async def test_a_flipped_bit_of_the_manifest_changes_no_data(layout: Layout, files: Files) -> None:
    right = await read_all(layout.open(gl.MemoryBackend(files)))
    manifest = files[MANIFEST_NAME]
    await check_reads(layout, files, right, ({MANIFEST_NAME: flipped(manifest, bit)} for bit in bits(manifest)))


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_no_damage_brings_other_data(layout: Layout, files: Files, kind: str) -> None:
    """C2: whatever a reader gives is what was written."""
    right = await read_all(layout.open(gl.MemoryBackend(files)))
    damages = (damage for damage in KINDS[kind](layout, files) if any(is_read(name, files) for name in damage))
    if kind.endswith("files"):  # a whole manifest of another dataset or snapshot is that one
        damages = (damage for damage in damages if MANIFEST_NAME not in damage)
    await check_reads(layout, files, right, some(damages))


@pytest.mark.asyncio
async def test_verify_finds_every_flipped_bit(layout: Layout, files: Files) -> None:
    """C1, C3: of every file; those of a shard by its name, and of manifests one of those that differ."""
    right = await verified(files)
    assert right is not None
    assert right.ok
    for name, data in files.items():
        for bit in bits(data):
            found = await verified({**files, name: flipped(data, bit)})
            assert found is None or not found.ok, f"bit {bit} of {name} was not found"
            if name.startswith("shards/"):
                assert found is not None
                paths = {entry.path for entry in found.damages}
                # Nothing but its checksums tells which of the two is wrong, the spans of a layer or these.
                beside = {str(Path(name).with_suffix(".spans"))} if name.endswith(".crc32c") else set()
                assert name in paths
                assert paths <= {name, *beside}


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_verify_finds_all_damage(layout: Layout, files: Files, kind: str) -> None:
    """C2. A copy of a dataset may lack what no reader needs: the manifests of shards and of earlier snapshots."""
    damages = KINDS[kind](layout, files)
    for changed in some(changed for changed in damages if any(changed.values()) or any(map(needed, changed))):
        found = await verified(with_damage(files, changed))
        assert found is None or not found.ok, f"{list(changed)} were damaged, and nothing was found"


def needed(name: str) -> bool:
    """Whether a dataset cannot be without a file."""
    return name == MANIFEST_NAME or Path(name).suffix != ".json"


async def verified(files: Files) -> Verification | None:
    """Check every byte of some files; None if they are not even a dataset."""
    verifier = Verifier(gl.MemoryBackend(files), "full", lambda _done, _total: None)
    try:
        return await verifier.run(None, list(files))
    except MissingFileError:
        return None


async def check_reads(layout: Layout, files: Files, right: Any, damages: Iterable[Damaged]) -> None:
    """Read the dataset after each damage: an error of ours, or what is right."""
    for damage in damages:
        try:
            found = await read_all(layout.open(gl.MemoryBackend(with_damage(files, damage))))
        except GuideLoomError:
            continue
        assert found == right, f"{list(damage)} were damaged, and other data were delivered"


@pytest.mark.parametrize("memory_map", [True, False], ids=["memory maps", "system calls"])
def test_random_flips_in_larger_files(layout: Layout, tmp_path: Path, memory_map: bool) -> None:
    """C1, C4: many at a time, in open files, cached and mapped ones too: they cost the samples they lie in alone."""
    num_bytes, rounds, flips = (64 * 2**20, 100, 100) if ALL else (2**20, 2, 10)
    files = layout.files(num_bytes)
    root = store(files, tmp_path)
    names = [name for name, data in files.items() if name.endswith(".bin") and len(data) > 100]
    generator = random.Random(5)
    with layout.open(gl.LocalBackend(root, memory_map=memory_map)).sync_reader() as reader:
        right = [plain(reader.read(i)) for i in range(len(reader))]
        assert plain(reader.read_batch(slice(None))) is not None  # all is cached from here on
        for _ in range(rounds):
            places = {(name, generator.randrange(8 * len(files[name]))) for name in generator.choices(names, k=flips)}
            damage(root, files, places)
            ranges = [(found.path, found.offset or 0, found.length or 0) for found in gl.verify(root).damages]
            for name, bit in places:
                assert any(name == path and 0 <= bit // 8 - start < length for path, start, length in ranges)
            lost = sum(fails(reader, i, right[i]) for i in range(len(reader)))
            assert lost > 0
            with pytest.raises(CorruptionError):
                reader.read_batch(slice(None))
            damage(root, files, places, undo=True)
            assert not any(fails(reader, i, right[i]) for i in generator.sample(range(len(reader)), 10))
        assert gl.verify(root).ok


def fails(reader: Any, sample: int, right: Any) -> bool:
    """Whether a sample is an error; if not, it is right."""
    try:
        found = plain(reader.read(sample))
    except CorruptionError:
        return True
    assert found == right, f"sample {sample} was damaged, and delivered"
    return False


def damage(root: Path, files: Files, places: Iterable[tuple[str, int]], *, undo: bool = False) -> None:
    """Flip some bits of files in place, or put them right again."""
    for name, group in itertools.groupby(sorted(places), lambda place: place[0]):
        with (root / name).open("r+b") as file:
            for _, bit in group:
                byte = files[name][bit // 8]
                file.seek(bit // 8)
                file.write(bytes([byte if undo else byte ^ 1 << bit % 8]))
