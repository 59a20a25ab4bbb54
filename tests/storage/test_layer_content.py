"""`verify` of annotation layers: damage of every kind, wherever it is."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import guideloom as gl
from guideloom._speedups.spans import checksum_spans
from guideloom.errors import MissingFileError
from guideloom.storage import layer_content
from guideloom.storage.checksums import BLOCK_BYTES, BlockChecksums
from guideloom.storage.kinds import load_manifest
from guideloom.storage.layer_content import LayerContent, LayerShard
from guideloom.storage.layer_manifest import layer_record
from guideloom.storage.manifest import MANIFEST_NAME, encode_manifest
from guideloom.storage.records import LayerEntry, ShardEntry
from guideloom.storage.span_table import INDEX_BYTES, INDEX_DTYPE, SPAN_BYTES, SPAN_DTYPE
from guideloom.storage.stream_manifest import StreamManifest
from guideloom.storage.verification import Damage, Verification
from tests.datasets.opened import OneMethod
from tests.layers import LayeredStream, layer_entry, layered_streams
from tests.streams import Files

ALL = os.environ.get("GUIDELOOM_PROVE") == "1"
LENGTHS = [6000, 0, 400]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A stream with a layer from the start, and one that was added later: three snapshots, and an empty shard."""
    storage = gl.StreamWithMetadataStorage.create(tmp_path / "corpus", dtype="u1", layers={"texts": gl.formats.Text()})
    for number, length in enumerate(LENGTHS):
        with storage.writer(number) as shard:
            spans = [(low, min(low + 70, length), f"{low}" * (low % 3)) for low in range(0, length, 50)]
            shard.append(np.arange(length) % 251, {"texts": spans})
    storage.commit()
    layer = storage.add_layer("tags", gl.formats.NumpyArray("<i4"))
    for number, length in enumerate(LENGTHS):
        with layer.writer(number) as tags:
            tags.append([(low, low + 9, [low, number]) for low in range(0, length, 10)])
    layer.commit()
    return tmp_path / "corpus"


def paths(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def names(found: Verification) -> set[str]:
    return {damage.path for damage in found.damages}


def layers_of(root: Path) -> dict[str, tuple[int, str, LayerEntry]]:
    """Return shard, name and entry of the layer that each file is of."""
    manifest = gl.StreamStorage.open(root).manifest
    return {
        file: (shard.number, layer.name, entry)
        for shard in manifest.shards
        for layer, entry in zip(manifest.layers, shard.layers, strict=True)
        for file in (entry.file, entry.checksums, entry.payloads, entry.file.replace(".spans", ".layer.json"))
    }


@pytest.mark.parametrize("mode", ["full", "quick"])
def test_a_whole_dataset(corpus: Path, mode: Literal["full", "quick"]) -> None:
    moves: list[tuple[int, int]] = []
    found = gl.verify(corpus, mode=mode, progress=lambda done, total: moves.append((done, total)))
    assert found.ok
    assert found.extra_files == ()
    assert moves[-1][0] == moves[-1][1]
    assert [done for done, _ in moves] == sorted(done for done, _ in moves)
    assert found.num_bytes == (moves[-1][1] if mode == "full" else 0)


def test_every_flipped_bit_is_found(corpus: Path) -> None:
    """C1: of every file; all of them when it is to be proved. Of layers, its place is named, and no other file."""
    generator = random.Random(3)
    layers = layers_of(corpus)
    for path in paths(corpus):
        data, name = path.read_bytes(), str(path.relative_to(corpus))
        few = ALL or len(data) < 30
        for place in range(len(data)) if few else sorted(generator.sample(range(len(data)), 12)):
            for bit in range(8) if ALL else [generator.randrange(8)]:
                changed = bytearray(data)
                changed[place] ^= 1 << bit
                path.write_bytes(changed)
                try:
                    found = gl.verify(corpus)
                except MissingFileError:
                    continue
                assert not found.ok, (name, place, bit)
                if name in layers:
                    number, layer, _ = layers[name]
                    (damage,) = found.damages
                    assert (damage.path, damage.shard, damage.layer) == (name, number, layer)
                    assert str(damage).startswith(f"shard {number}, layer '{layer}': {name}")
                    if not name.endswith(".json"):
                        assert damage.offset is not None
                        assert damage.length is not None
                        start = place // BLOCK_BYTES * BLOCK_BYTES if name.endswith(".spans") else damage.offset
                        assert damage.offset == start
                        assert damage.length <= BLOCK_BYTES
                        # The last 4 bytes of a table are its own checksum.
                        assert damage.offset <= place < damage.offset + damage.length + 4 * name.endswith(".crc32c")
        path.write_bytes(data)
    assert gl.verify(corpus).ok


@pytest.mark.parametrize("mode", ["full", "quick"])
def test_every_other_length_is_found(corpus: Path, mode: Literal["full", "quick"]) -> None:
    for name, (number, layer, _) in layers_of(corpus).items():
        path = corpus / name
        if name.endswith(".json"):
            continue
        data = path.read_bytes()
        lengths = range(len(data)) if ALL else {0, 1, 4, 15, 16, 17, 4096, len(data) - 17, len(data) - 1}
        for changed in [*(data[:n] for n in lengths if 0 <= n < len(data)), data + b"\0", data + bytes(5000)]:
            path.write_bytes(changed)
            found = gl.verify(corpus, mode=mode)
            assert names(found) == {name}
            sizes = [damage for damage in found.damages if "size" in damage.reason]
            assert [(each.expected, each.found, each.shard, each.layer) for each in sizes] == [
                (len(data), len(changed), number, layer)
            ]
        path.unlink()
        found = gl.verify(corpus, mode=mode)
        assert names(found) == {name}
        assert {(damage.shard, damage.layer) for damage in found.damages} == {(number, layer)}
        path.write_bytes(data)


@given(layered_streams(), st.data())
def test_any_layers_on_any_backend(stream: LayeredStream, data: st.DataObject) -> None:
    """Gaps, overlaps, empty spans, payloads and shards; pieces of any size."""
    files = stream.files()
    backend: Callable[[Files], gl.ReadBackend] = data.draw(st.sampled_from([gl.MemoryBackend, OneMethod]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_content, "_ROWS", data.draw(st.sampled_from([1, 3, 8192])))
        patch.setattr(layer_content, "_PAYLOAD_BYTES", data.draw(st.sampled_from([1, 6, 512 * 1024])))
        patch.setattr(layer_content, "_INDEX_BYTES", data.draw(st.sampled_from([1, 8192])) * INDEX_BYTES)
        assert gl.verify(backend(files)).ok
        name = data.draw(st.sampled_from([name for name in files if "layer" in name and files[name]]))
        changed = bytearray(files[name])
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        (damage,) = gl.verify(backend({**files, name: bytes(changed)})).damages
        assert damage.path == name


def test_exchanged_files_are_found() -> None:
    """C2: between shards whose content and sizes are equal, and payloads within a file."""
    spans = [[(0, 40, [1]), (50, 100, [2])], [(0, 40, [2]), (50, 100, [1])]]
    files = LayeredStream([100, 100], {"a": gl.formats.NumpyArray("<i4")}, {"a": spans}).files()
    for suffixes in ((".payloads",), (".spans",), (".crc32c",), (".spans", ".crc32c")):
        first, second = ([f"shards/0000{i}-layer0{suffix}" for suffix in suffixes] for i in (0, 1))
        swapped = dict(files)
        for one, other in zip(first, second, strict=True):
            swapped[one], swapped[other] = files[other], files[one]
        found = gl.verify(gl.MemoryBackend(swapped))
        assert names(found) == {*first, *second}
        assert {damage.layer for damage in found.damages} == {"a"}
    name = "shards/00000-layer0.payloads"
    (damage,) = gl.verify(gl.MemoryBackend({**files, name: files[name][4:] + files[name][:4]})).damages
    assert (damage.path, damage.offset, damage.length) == (name, 0, 8)


def rewritten(change: Callable[[Any, Any, bytearray], None]) -> list[Damage]:
    """Return what is found after somebody changed rows, index or payloads, and then the checksums of the blocks."""
    spans = [[(low, low + 20, [low]) for low in range(0, 4000, 20)]]
    stream = LayeredStream([4000], {"a": gl.formats.NumpyArray("<i4")}, {"a": spans})
    files = stream.files()
    manifest = load_manifest(files[MANIFEST_NAME], path=MANIFEST_NAME)
    assert isinstance(manifest, StreamManifest)
    entry = manifest.shards[0].layers[0]
    rows = np.frombuffer(files[entry.file], SPAN_DTYPE)[: entry.spans].copy()
    index = np.frombuffer(files[entry.file], INDEX_DTYPE)[entry.spans :].copy()
    payloads = bytearray(files[entry.payloads])
    change(rows, index, payloads)
    checksums = BlockChecksums(file_seed=entry.checksum_seed)
    checksums.update(rows.tobytes() + index.tobytes())
    files[entry.file], files[entry.checksums] = rows.tobytes() + index.tobytes(), checksums.finish()
    files[entry.payloads] = bytes(payloads)
    return list(gl.verify(gl.MemoryBackend(files)).damages)


def test_what_was_changed_with_its_checksums_is_found() -> None:
    """M9: the hashes tell, and the index is made anew."""

    def checksum(rows: Any, _index: Any, _payloads: Any) -> None:
        rows["checksum"][7:9] ^= 1

    def length(rows: Any, _index: Any, payloads: bytearray) -> None:
        rows["length"][7] += 1
        checksum_spans(rows.view("<u4").reshape(-1, 4), np.frombuffer(payloads, np.uint8), file_seed=7000, first_span=0)

    def order(rows: Any, _index: Any, _payloads: Any) -> None:
        rows["start"][7] = 0

    def entry(_rows: Any, index: Any, _payloads: Any) -> None:
        index["payload_offset"][1] += 4

    def payload(rows: Any, _index: Any, payloads: bytearray) -> None:
        payloads[28] ^= 1
        checksum_spans(rows.view("<u4").reshape(-1, 4), np.frombuffer(payloads, np.uint8), file_seed=7000, first_span=0)

    name = "shards/00000-layer0"
    for change, path, offset, num_bytes, words in (
        (checksum, f"{name}.spans", 7 * SPAN_BYTES, 2 * SPAN_BYTES, "checksum of the first of these rows"),
        (length, f"{name}.spans", 0, 200 * SPAN_BYTES, "SHA-256 of its rows"),
        (order, f"{name}.spans", 7 * SPAN_BYTES, SPAN_BYTES, "row 7 contradicts"),
        (entry, f"{name}.spans", 200 * SPAN_BYTES + INDEX_BYTES, INDEX_BYTES, "entries of the index"),
        (payload, f"{name}.payloads", 0, 800, "SHA-256 differs"),
    ):
        (damage,) = rewritten(change)
        assert (damage.path, damage.offset, damage.length, damage.layer) == (path, offset, num_bytes, "a")
        assert words in damage.reason
    assert rewritten(lambda _rows, _index, _payloads: None) == []


def test_damage_to_several_files_of_a_layer() -> None:
    """None hides another; a row that neither its block nor its payload can prove counts as damaged, too."""
    files = LayeredStream([400], {"a": gl.formats.Text()}, {"a": [[(0, 9, "abc"), (20, 400, "def")]]}).files()
    stem = "shards/00000-layer0"
    for places in ({".crc32c": 0, ".payloads": 4}, {".spans": 3, ".payloads": 4}, {".crc32c": 5, ".spans": 3}):
        changed = dict(files)
        for suffix, place in places.items():
            data = bytearray(files[stem + suffix])
            data[place] ^= 4
            changed[stem + suffix] = bytes(data)
        unproven = {stem + ".spans"} if ".crc32c" in places else set()
        assert names(gl.verify(gl.MemoryBackend(changed))) == {stem + suffix for suffix in places} | unproven


def test_spans_with_more_than_32_bits_between_them() -> None:
    """Rows hold 32 bits of a start; the index has the others."""
    files: Files = {}
    num_rows = 2**34 + 5
    encoding = gl.formats.NumpyArray("<i4")
    spans = [(5, 9, [1]), (2**33 + 7, 2**33 + 8, [2]), (2**34 + 4, num_rows, [3])]
    entry = layer_entry(files, "shards/00000-far", 77, encoding, spans, num_rows)
    part = LayerShard(layer_record("far", encoding), ShardEntry(0, num_rows, ()), entry)

    def check() -> list[Damage]:
        content = LayerContent(part)
        reads, could_read = content.read(with_rows=True), None
        with contextlib.suppress(StopIteration):
            while True:
                path, offset, buffer = reads.send(could_read)  # type: ignore[arg-type]  # None, the first time
                buffer[:] = files[path][offset : offset + len(buffer)]
                could_read = True
        found = [*content.finish(with_rows=True)]
        assert content.is_proven == (not found)
        return found

    assert check() == []
    right = files[entry.file]
    for place in range(0, len(right), 1 if ALL else 7):
        files[entry.file] = right[:place] + bytes([right[place] ^ 1]) + right[place + 1 :]
        assert {(damage.path, damage.layer) for damage in check()} == {(entry.file, "far")}


@pytest.mark.parametrize("suffix", [".spans", ".payloads"])
@pytest.mark.parametrize("count", [1, 2])
def test_unreadable_bytes_are_damage(suffix: str, count: int) -> None:
    """Also if it is the second reading, of the rows, that fails."""
    spans = [[(low, low + 9, [low]) for low in range(100)]]
    files = LayeredStream([400], {"a": gl.formats.NumpyArray("<i4")}, {"a": spans}).files()
    broken = OSError(errno.EIO, os.strerror(errno.EIO))

    class Broken(OneMethod):
        num_reads = 0

        async def read_range(self, path: str, offset: int, length: int) -> bytes:
            if path.endswith(suffix) and length > 16:  # more than a look at the size
                self.num_reads += 1
                if self.num_reads == count or suffix == ".payloads":
                    raise broken
            return await super().read_range(path, offset, length)

    (damage,) = gl.verify(Broken(files)).damages
    assert (damage.path, damage.shard, damage.layer) == (f"shards/00000-layer0{suffix}", 0, "a")
    assert damage.offset is not None
    assert "Input/output error" in damage.reason


def test_layers_written_but_not_committed_are_no_damage(corpus: Path) -> None:
    layer = gl.StreamStorage.open(corpus).add_layer("later", gl.formats.Text())
    with layer.writer(0) as spans:
        spans.append([(0, 5, "a")])
    found = gl.verify(corpus)
    assert found.ok
    assert sorted(name.split(".", 1)[1] for name in found.extra_files) == ["crc32c", "layer.json", "payloads", "spans"]


def test_a_layer_that_earlier_snapshots_lack_is_no_damage(corpus: Path) -> None:
    """But one that a later snapshot lacks is, and so is another manifest of the shard of a layer."""
    assert gl.verify(corpus, snapshot=1).ok
    assert len(gl.list_snapshots(corpus)[1].layers) == 1
    before = corpus / "snapshots/1/guideloom.json"
    manifest = load_manifest(before.read_bytes(), path="")
    assert isinstance(manifest, StreamManifest)
    shards = tuple(
        msgspec.structs.replace(
            shard,
            layers=tuple(
                msgspec.structs.replace(entry, payload_sha256=hashlib.sha256(b"x").hexdigest())
                for entry in shard.layers
            ),
        )
        for shard in manifest.shards
    )
    layers = manifest.layers
    before.write_bytes(
        encode_manifest(StreamManifest(manifest.schema, manifest.groups, shards, 1, manifest.metadata, layers))
    )
    found = gl.verify(corpus, mode="quick")
    assert "snapshots/1/guideloom.json" in names(found)


def test_the_manifest_of_another_shard_of_a_layer_is_found(corpus: Path) -> None:
    first, *_, last = sorted((corpus / "shards").glob("*.layer.json"))
    shutil.copy(last, first)
    (damage,) = gl.verify(corpus).damages
    assert (damage.path, damage.shard, damage.layer) == (str(first.relative_to(corpus)), 0, "tags")
    first.unlink()
    assert gl.verify(corpus).ok
