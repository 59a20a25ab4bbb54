"""`verify` against damage of every kind, wherever it is."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest

import guideloom as gl
from guideloom.errors import FingerprintMismatchError, MissingFileError
from guideloom.storage import verifier
from guideloom.storage.checksums import BLOCK_BYTES, BlockChecksums
from guideloom.storage.kinds import load_manifest
from guideloom.storage.manifest import MANIFEST_NAME, encode_manifest
from guideloom.storage.records import ShardEntry
from guideloom.storage.stream_manifest import StreamManifest
from guideloom.storage.verification import MOST_DAMAGES, Verification
from tests.datasets.opened import OneMethod
from tests.streams import Files, counted, shards_of, store, stream_files

ALL = os.environ.get("GUIDELOOM_PROVE") == "1"
ROWS = np.zeros(3000, np.dtype([("tokens", "<u2"), ("mask", "u1")]))
ROWS["tokens"], ROWS["mask"] = np.arange(3000), np.arange(3000) % 251


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two snapshots of a stream of 64 KiB, with metadata and an empty shard, as the writer leaves it."""
    storage = gl.StreamStorage.create(tmp_path / "corpus", dtype="<u2", metadata={"note": "hello"})
    for lengths in ([9000, 0], [6000, 17_768]):
        for length in lengths:
            with storage.writer(storage.missing(range(10))[0]) as shard:
                shard.append(np.arange(length) % 60_000)
        storage.commit()
    return tmp_path / "corpus"


def paths(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def names(found: Verification) -> set[str]:
    return {damage.path for damage in found.damages}


@pytest.mark.parametrize("mode", ["full", "quick"])
def test_a_whole_dataset(corpus: Path, mode: Literal["full", "quick"]) -> None:
    moves: list[tuple[int, int]] = []
    found = gl.verify(corpus, mode=mode, progress=lambda done, total: moves.append((done, total)))
    assert found.ok
    assert found.damages == ()
    assert found.extra_files == ()
    assert (found.mode, found.snapshot) == (mode, 2)
    assert found.fingerprint == gl.StreamStorage.open(corpus).manifest.fingerprint
    assert found.num_bytes == (2 * 32_768 if mode == "full" else 0)
    assert found.num_files == len(paths(corpus)) - 4  # all but the manifests of shards
    assert moves[-1] == ((65_536, 65_536) if mode == "full" else (8, 8))
    assert [done for done, _ in moves] == sorted(done for done, _ in moves)


def test_every_flipped_bit_is_found(corpus: Path) -> None:
    """C1: of every file, those of commits and of earlier snapshots too; all of them when it is to be proved."""
    generator = random.Random(3)
    for path in paths(corpus):
        data = path.read_bytes()
        few = ALL or len(data) < 100
        for place in range(len(data)) if few else sorted(generator.sample(range(len(data)), 40)):
            for bit in range(8) if ALL else [generator.randrange(8)]:
                changed = bytearray(data)
                changed[place] ^= 1 << bit
                path.write_bytes(changed)
                try:
                    found = gl.verify(corpus)
                except MissingFileError:
                    continue
                name = str(path.relative_to(corpus))
                assert not found.ok, (name, place, bit)
                if name.endswith(".bin"):
                    (damage,) = found.damages
                    assert (damage.path, damage.offset) == (name, place // BLOCK_BYTES * BLOCK_BYTES)
                    assert damage.shard == int(name[7:15])
                    assert str(damage).startswith(f"shard {damage.shard}: {name}, ")
                elif name.endswith(".crc32c"):
                    assert names(found) == {name}
        path.write_bytes(data)
    assert gl.verify(corpus).ok


@pytest.mark.parametrize("mode", ["full", "quick"])
def test_every_other_length_is_found(corpus: Path, mode: Literal["full", "quick"]) -> None:
    for path in paths(corpus / "shards"):
        if path.suffix == ".json":
            continue
        data = path.read_bytes()
        lengths = {0, 1, 4, 4095, 4096, 4097, len(data) - 1} if not ALL else range(len(data))
        for changed in [*(data[:n] for n in lengths if 0 <= n < len(data)), data + b"\0", data + bytes(5000)]:
            path.write_bytes(changed)
            found = gl.verify(corpus, mode=mode)
            name = str(path.relative_to(corpus))
            assert names(found) == {name}
            sizes = [(damage.expected, damage.found) for damage in found.damages if "size" in damage.reason]
            assert sizes == [(len(data), len(changed))]
        path.write_bytes(data)


@pytest.mark.parametrize("mode", ["full", "quick"])
def test_a_missing_file_is_found(corpus: Path, mode: Literal["full", "quick"]) -> None:
    for path in paths(corpus / "shards"):
        if path.suffix != ".json":
            data = path.read_bytes()
            path.unlink()
            found = gl.verify(corpus, mode=mode)
            assert names(found) == {str(path.relative_to(corpus))}
            assert "missing" in found.damages[0].reason or "No such file" in found.damages[0].reason
            path.write_bytes(data)


def test_exchanged_files_and_blocks_are_found(tmp_path: Path) -> None:
    """C2: between shards and datasets, with their checksums and without."""
    files = stream_files(counted([4096, 4096], "<i4"))
    other = stream_files(counted([4096, 4096], "<i4")[::-1])
    for suffixes in ((".bin",), (".crc32c",), (".bin", ".crc32c")):
        for source in (files, other):
            changed = dict(files)
            for suffix in suffixes:
                changed[f"shards/00000-0{suffix}"] = source[f"shards/0000{int(source is files)}-0{suffix}"]
            assert not gl.verify(gl.MemoryBackend(changed)).ok
    data = files["shards/00000-0.bin"]
    swapped = data[4096:8192] + data[:4096] + data[8192:]
    (damage,) = gl.verify(gl.MemoryBackend({**files, "shards/00000-0.bin": swapped})).damages
    assert (damage.offset, damage.length) == (0, 8192)


def test_a_shard_changed_with_its_checksums_is_found(corpus: Path) -> None:
    """M9: the CRC of a block can be repaired, its SHA-256 not."""
    manifest = gl.StreamStorage.open(corpus).manifest
    entry = manifest.shards[3].files[0]
    data = bytearray((corpus / entry.file).read_bytes())
    data[20_000] ^= 1
    (corpus / entry.file).write_bytes(data)
    checksums = BlockChecksums(file_seed=entry.checksum_seed)
    checksums.update(data)
    (corpus / entry.checksums).write_bytes(checksums.finish())
    assert gl.open_dataset(corpus, window=8, expect=manifest.fingerprint).num_elements == 32_768
    (damage,) = gl.verify(corpus).damages
    assert (damage.path, damage.shard, damage.expected) == (entry.file, 3, entry.sha256)
    assert "SHA-256" in damage.reason
    assert gl.verify(corpus, mode="quick").ok


@pytest.mark.parametrize("backend", [gl.MemoryBackend, OneMethod], ids=["sizes known", "sizes unknown"])
@pytest.mark.parametrize("byte_offset", [0, 100, 5000])
def test_any_backend_and_layout(backend: Callable[[Files], gl.ReadBackend], byte_offset: int) -> None:
    files = stream_files(shards_of(ROWS, [1700, 0, 1300]), groups=[["tokens"], ["mask"]], byte_offset=byte_offset)
    assert gl.verify(backend(files)).ok
    for mode in ("full", "quick"):
        for name in files:
            if name.startswith("shards/") and files[name]:
                for changed in (files[name][:-1], files[name] + b"\0"):
                    found = gl.verify(backend({**files, name: changed}), mode=mode)
                    assert names(found) == {name}
    if byte_offset:  # which no hash covers, but the checksum of its block
        changed = b"\xa4" + files["shards/00000-1.bin"][1:]
        (damage,) = gl.verify(backend({**files, "shards/00000-1.bin": changed})).damages
        assert (damage.path, damage.offset, damage.length) == ("shards/00000-1.bin", 0, min(4096, len(changed)))


def test_shards_that_share_a_file(tmp_path: Path) -> None:
    """As adopted files may be: each shard is held against its own hash."""
    files = stream_files(counted([2000], "<u2"))
    whole = load_manifest(files[MANIFEST_NAME], path="")
    assert isinstance(whole, StreamManifest)
    entry, data = whole.shards[0].files[0], files["shards/00000-0.bin"]
    cuts = [(0, 1400), (1400, 600), (2000, 2000)]
    shards = [
        ShardEntry(
            number,
            length // 2,
            (
                msgspec.structs.replace(
                    entry, byte_offset=start, sha256=sha256(data[start : start + length]).hexdigest()
                ),
            ),
        )
        for number, (start, length) in enumerate(cuts)
    ]
    files[MANIFEST_NAME] = encode_manifest(StreamManifest(whole.schema, whole.groups, tuple(shards), 1))
    assert gl.verify(gl.MemoryBackend(files)).ok
    for shard, place in enumerate((1399, 1400, 3999)):
        changed = bytearray(data)
        changed[place] ^= 1
        checksums = BlockChecksums(file_seed=entry.checksum_seed)
        checksums.update(changed)
        found = gl.verify(gl.MemoryBackend({**files, entry.file: bytes(changed), entry.checksums: checksums.finish()}))
        assert [(damage.shard, damage.offset) for damage in found.damages] == [(shard, cuts[shard][0])]


def test_damages_are_counted_and_the_first_are_listed(tmp_path: Path) -> None:
    files = stream_files(counted([2 * MOST_DAMAGES * 2048 + 5000], "<u2"))
    name = "shards/00000-0.bin"
    data = bytearray(files[name])
    data[::8192] = bytes(255 - value for value in data[::8192])  # every other block
    found = gl.verify(gl.MemoryBackend({**files, name: bytes(data)}))
    assert found.num_damages >= MOST_DAMAGES
    assert len(found.damages) == MOST_DAMAGES


def test_extra_files_are_named_and_harmless(corpus: Path) -> None:
    storage = gl.StreamStorage.open(corpus)
    with storage.writer(9) as shard:
        shard.append([1])
    (corpus / "README").write_text("mine")
    (corpus / "shards" / "link").symlink_to("/dev/zero")
    found = gl.verify(corpus)
    assert found.ok
    assert len(found.extra_files) == 5
    assert {"README", "shards/link"} < set(found.extra_files)


def test_a_broken_manifest_is_damage_and_a_missing_one_an_error(corpus: Path) -> None:
    (corpus / "guideloom.json").write_bytes(b"{")
    found = gl.verify(corpus)
    assert names(found) == {"guideloom.json"}
    assert found.snapshot is None
    assert found.fingerprint is None
    assert found.num_bytes == 65_536  # the others name the files
    (corpus / "guideloom.json").unlink()
    with pytest.raises(MissingFileError):
        gl.verify(corpus)
    assert gl.verify(corpus, snapshot=1).ok
    with pytest.raises(MissingFileError):
        gl.verify(corpus, snapshot=3)


def test_a_copy_without_its_history_is_whole(corpus: Path) -> None:
    shutil.rmtree(corpus / "snapshots")
    for path in (corpus / "shards").glob("*.json"):
        path.unlink()
    assert gl.verify(corpus).ok


def test_a_fingerprint_that_is_not_expected(corpus: Path) -> None:
    fingerprint = gl.StreamStorage.open(corpus).manifest.fingerprint
    assert gl.open_dataset(corpus, window=8, expect=fingerprint).fingerprint == fingerprint
    assert gl.verify(corpus, expect=fingerprint).ok
    for work in (
        lambda expect: gl.open_dataset(corpus, window=8, expect=expect),
        lambda expect: gl.open_dataset(corpus, window=8, snapshot=1, expect=fingerprint),
        lambda expect: gl.verify(corpus, expect=expect),
    ):
        other = "sha256:" + "0" * 64
        with pytest.raises(FingerprintMismatchError, match="expected") as caught:
            work(other)
        assert caught.value.expected in (other, fingerprint)
        assert caught.value.found != caught.value.expected
    for wrong in ("", "0" * 64, "sha256:", "sha256:" + "F" * 64, "md5:" + "0" * 64):
        for call in (gl.verify, lambda path, expect: gl.open_dataset(path, window=8, expect=expect)):
            with pytest.raises(ValueError, match="expect is a fingerprint"):
                call(corpus, expect=wrong)
    with pytest.raises(ValueError, match="mode is"):
        gl.verify(corpus, mode="slow")  # type: ignore[arg-type]


@pytest.mark.parametrize("here", [True, False], ids=["on its threads", "fetched"])
def test_unreadable_bytes_are_damage(corpus: Path, here: bool) -> None:
    """A bad sector costs its blocks; those before and after it are still checked."""
    entry = gl.StreamStorage.open(corpus).manifest.shards[3].files[0]
    bad = range(8192, 12_288)
    broken = OSError(errno.EIO, os.strerror(errno.EIO))

    class Local(gl.LocalBackend):
        def read_here(self, path: str, offset: int, target: memoryview) -> None:
            if path == entry.file and offset < bad.stop and offset + len(target) > bad.start:
                raise gl.errors.ReadError("no", path=path, errno=errno.EIO) from broken
            super().read_here(path, offset, target)

    class Fetched(OneMethod):
        async def read_range(self, path: str, offset: int, length: int) -> bytes:
            if path == entry.file and offset < bad.stop and offset + length > bad.start:
                raise broken
            return await super().read_range(path, offset, length)

    files = {str(path.relative_to(corpus)): path.read_bytes() for path in paths(corpus)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifier, "_BLOCKS_HERE", 1)
        patch.setattr(verifier, "_BLOCKS_FETCHED", 1)
        found = gl.verify(Local(corpus) if here else Fetched(files))
    (damage,) = [damage for damage in found.damages if damage.offset is not None]
    assert (damage.path, damage.offset, damage.length, damage.shard) == (entry.file, 8192, 4096, 3)
    assert damage.reason == "Input/output error"


def test_documents_too(tmp_path: Path) -> None:
    """Each bit of their files, and each length; a row of the index by its place."""
    storage = gl.DocumentStorage.create(tmp_path / "chats", encoding=gl.formats.JSON())
    for number in range(2):
        with storage.writer(number) as shard:
            for document in range(20):
                shard.append({"messages": ["hello"] * document})
    storage.commit()
    root = storage.path
    assert gl.verify(root).ok
    generator = random.Random(1)
    for path in paths(root / "shards"):
        data, name = path.read_bytes(), str(path.relative_to(root))
        for place in range(len(data)) if ALL else generator.sample(range(len(data)), 30):
            changed = bytearray(data)
            changed[place] ^= 1 << generator.randrange(8)
            path.write_bytes(changed)
            found = gl.verify(root)
            assert names(found) == {name}
            if name.endswith(".index"):
                (damage,) = found.damages
                assert damage.offset is not None
                assert damage.length is not None
                assert damage.offset <= place < damage.offset + damage.length
        for changed_length in (data[:-1], data + b"\0"):
            path.write_bytes(changed_length)
            assert path.suffix == ".json" or gl.verify(root, mode="quick").num_damages == 1
        path.unlink()
        assert path.suffix == ".json" or names(gl.verify(root)) == {name}
        path.write_bytes(data)
    assert gl.verify(root).ok


def in_process(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """C7: at most 64 MiB above the baseline, over files of 256 MiB in all."""
    root = store(stream_files([np.zeros(2**25, "<u4"), *counted([2**22] * 8, "<u4")]), tmp_path)
    code = """
        import resource, sys
        import guideloom as gl
        def peak():
            with open("/proc/self/status") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
        before = peak()
        assert gl.verify(sys.argv[1]).ok
        print((peak() - before) // 1024)
    """
    result = in_process(code, root)
    assert result.stderr == ""
    assert int(result.stdout) <= 64


def test_ctrl_c_stops_it(tmp_path: Path) -> None:
    files = stream_files([np.zeros(2**24, "<u4")])
    root = store(files, tmp_path)
    for number in range(40):  # one file under many names is enough to be busy for a while
        os.link(root / "shards/00000-0.bin", root / f"shards/{number}")
    code = """
        import sys, time
        from guideloom.cli.app import guideloom
        import guideloom.storage.content as content
        add = content.Content.add
        def slow(self, *arguments):
            print("busy", flush=True)
            time.sleep(0.05)
            add(self, *arguments)
        content.Content.add = slow
        guideloom(["verify", sys.argv[1]])
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert time.monotonic() - begin < 1.5
    assert process.returncode == 130
    assert errors.strip() == "interrupted"


def test_a_layer_that_was_added_later_is_checked_and_earlier_snapshots_stay_right(corpus: Path) -> None:
    """C2, M9: its rows and payloads are held against their hashes, even if all checksums were made to match."""
    storage = gl.StreamStorage.open(corpus)
    layer = storage.add_layer("label", gl.formats.Text())
    for number in range(4):
        with layer.writer(number) as shard:
            shard.append([(0, 0, "")] if number == 1 else [(0, 9, "good"), (2000, 2007, "bad")])
    layer.commit()
    assert gl.verify(corpus).ok
    assert gl.verify(corpus, snapshot=1).ok
    entry = gl.StreamStorage.open(corpus).manifest.shards[3].layers[0]
    rows = bytearray((corpus / entry.file).read_bytes())
    rows[0] ^= 1
    (corpus / entry.file).write_bytes(rows)
    checksums = BlockChecksums(file_seed=entry.checksum_seed)
    checksums.update(rows)
    (corpus / entry.checksums).write_bytes(checksums.finish())
    (damage,) = gl.verify(corpus).damages
    assert (damage.path, damage.shard, damage.layer) == (entry.file, 3, "label")
    rows[0] ^= 1
    checksums = BlockChecksums(file_seed=entry.checksum_seed)
    checksums.update(rows)
    (corpus / entry.file).write_bytes(rows)
    (corpus / entry.checksums).write_bytes(checksums.finish())
    assert gl.verify(corpus).ok
    (corpus / entry.payloads).write_bytes(b"goodBad")
    assert names(gl.verify(corpus)) == {entry.payloads}
