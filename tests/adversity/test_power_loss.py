"""Power cuts on real file systems: ext4, XFS and btrfs on a disk whose every write is recorded (W2, W3).

A cut leaves all that came before the disk's last flush, and of the rest the beginning, or any half. It needs root, FUSE
and the tools of the file systems; ``make prove`` runs it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import guideloom as gl
from tests.adversity.programs import ROOT
from tests.adversity.recorded_disk import FLUSH, WRITE, events

NUM_CUTS = 70
DISK_BYTES = {"ext4": 64 * 2**20, "xfs": 320 * 2**20, "btrfs": 160 * 2**20}
_MAKE = {"ext4": ["mkfs.ext4", "-F", "-q"], "xfs": ["mkfs.xfs", "-f", "-q"], "btrfs": ["mkfs.btrfs", "-f", "-q"]}

# Each commit that returned is noted on the disk itself, in the place of the first block of a file that was laid out
# before, so that the note is part of the recording, and later than what it speaks of.
JOB = """
    import os, sys
    import numpy as np
    import guideloom as gl

    root, forget = sys.argv[1], sys.argv[2]
    if forget != "nothing":
        fsync = os.fsync
        def forgetful(descriptor):
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if not (os.path.isdir(name) if forget == "folders" else "/shards/" in name and not os.path.isdir(name)):
                fsync(descriptor)
        os.fsync = forgetful
    notes = os.open(f"{root}/notes", os.O_RDWR)
    try:
        storage = gl.StreamStorage.create(f"{root}/corpus", dtype="<u2")
    except FileExistsError:
        storage = gl.StreamStorage.open(f"{root}/corpus")
    for stop in (2, 4, 5):
        for number in storage.missing(range(stop)):
            with storage.writer(number, task="job") as shard:
                shard.append((np.arange(20_000) * (number + 1)).astype("<u2"))
        snapshot = storage.commit(shards=range(stop))
        os.pwrite(notes, b"acknowledged %4d" % snapshot, 0)
        os.fdatasync(notes)
"""


def missing_parts() -> str:
    tools = ["losetup", "mount", "fusermount3", *(command[0] for command in _MAKE.values())]
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    lacking += ["/dev/fuse"] * (not os.path.exists("/dev/fuse")) + ["root"] * (os.geteuid() != 0)
    lacking += ["mfusepy"] * (importlib.util.find_spec("mfusepy") is None)
    return ", ".join(lacking)


pytestmark = [
    pytest.mark.skipif(os.environ.get("GUIDELOOM_PROVE") != "1", reason="make prove runs it"),
    pytest.mark.skipif(bool(missing_parts()), reason=f"needs {missing_parts()}"),
]


def call(*command: object) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def mounted(source: Path | str, target: Path, *options: str) -> Iterator[Path]:
    call("mount", *options, source, target)
    try:
        yield target
    finally:
        for _ in range(50):  # a file system may be busy for a moment
            if subprocess.run(["umount", target], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.1)
        else:
            raise RuntimeError(f"{target} cannot be unmounted")


@contextlib.contextmanager
def recorded(image: Path, log: Path, folder: Path) -> Iterator[str]:
    """Give a block device over an image that writes all that it is told into a log."""
    recorder = Path(__file__).with_name("recorded_disk.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, recorder, image, log, folder], cwd=ROOT, env=environment) as process:
        try:
            deadline = time.monotonic() + 20
            while not (folder / "disk").exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            device = call("losetup", "-f", "--show", folder / "disk")
            try:
                yield device
            finally:
                call("losetup", "-d", device)
        finally:
            subprocess.run(["fusermount3", "-u", folder], check=False)
            process.wait(20)


def record(kind: str, folder: Path, forget: str = "nothing") -> tuple[Path, list[tuple[bytes, int, bytes]]]:
    """Write a dataset on a new file system; return the empty disk, and what the disk was told then."""
    base, image, log = folder / "base.img", folder / "disk.img", folder / "log"
    with base.open("wb") as file:
        file.truncate(DISK_BYTES[kind])
    call(*_MAKE[kind], base)
    for name in ("mount", "fuse"):
        (folder / name).mkdir()
    with mounted(base, folder / "mount", "-o", "loop"):
        (folder / "mount" / "notes").write_bytes(bytes(4096))
        os.sync()
    call("cp", "--sparse=always", base, image)
    program = [sys.executable, "-c", textwrap.dedent(JOB), folder / "mount", forget]
    with recorded(image, log, folder / "fuse") as device, mounted(device, folder / "mount"):
        call(*program)
    return base, list(events(log))


def cut(base: Path, told: list[tuple[bytes, int, bytes]], end: int, order: str, image: Path) -> None:
    """Make the disk that a cut after `end` events leaves."""
    chance = random.Random(end)
    flushed = max((i for i in range(end) if told[i][0] == FLUSH), default=-1)
    reached = chance.randint(flushed + 1, end) if order == "in order" else end
    call("cp", "--sparse=always", base, image)
    with image.open("r+b") as file:
        for i, (event, offset, data) in enumerate(told[:reached]):
            if event == WRITE and (i <= flushed or order == "in order" or chance.random() < 0.5):
                file.seek(offset)
                file.write(data)


def verdict(root: Path) -> str:
    """Say what is on a disk: whether the dataset is whole, and all that was acknowledged is there."""
    note = (root / "notes").read_bytes()[:17]
    acknowledged = int(note[12:17]) if note.startswith(b"acknowledged") else 0
    corpus = root / "corpus"
    try:
        if not (corpus / "guideloom.json").exists():
            return "nothing yet" if acknowledged == 0 else f"LOST {acknowledged}"
        found = gl.verify(corpus)
    except (gl.GuideLoomError, OSError) as error:
        return f"BROKEN {error}"
    if found.damages:
        return f"DAMAGED {found.damages[0]}"
    assert found.snapshot is not None
    return "whole" if found.snapshot >= acknowledged else f"LOST {acknowledged}, found {found.snapshot}"


def verdicts(kind: str, order: str, folder: Path, forget: str = "nothing") -> Counter[str]:
    base, told = record(kind, folder, forget)
    found: Counter[str] = Counter()
    options = "loop,nouuid" if kind == "xfs" else "loop"
    step = max(1, len(told) // NUM_CUTS)
    for end in range(0, len(told) + 1, step):
        image = folder / "cut.img"
        cut(base, told, end, order, image)
        with mounted(image, folder / "mount", "-o", options) as root:
            seen = verdict(root)
            found[seen.split()[0]] += 1
            if forget == "nothing":
                assert seen in ("whole", "nothing yet"), (end, len(told), seen)
                if end % 5 == 0:  # and the job can be run to its end
                    call(sys.executable, "-c", textwrap.dedent(JOB), root, forget)
                    assert verdict(root) == "whole"
                    assert len(gl.StreamStorage.open(root / "corpus").manifest.shards) == 5
    return found


@pytest.mark.parametrize("order", ["in order", "reordered"])
@pytest.mark.parametrize("kind", list(_MAKE))
def test_a_power_cut_leaves_a_whole_dataset(tmp_path: Path, kind: str, order: Literal["in order", "reordered"]) -> None:
    found = verdicts(kind, order, tmp_path)
    assert found.total() >= 60
    assert found["whole"] >= 20
    print(f"{kind}, {order}: {found.total()} cuts, {dict(found)}")


@pytest.mark.parametrize("kind", list(_MAKE))
def test_the_cuts_find_a_missing_sync(tmp_path: Path, kind: str) -> None:
    """What a kill never finds: the same writer that forgets to sync its shards."""
    found = verdicts(kind, "reordered", tmp_path, "shards")
    print(f"{kind}, shards not synced: {found.total()} cuts, {dict(found)}")
    assert found.total() > found["whole"] + found["nothing"]
