"""Thousands of shards under a small limit of open files; and how often the file system is asked."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.adversity.programs import ROOT, succeeds
from tests.streams import counted, store, stream_files

EPOCH = """
    import os, resource, sys
    import guideloom as gl
    from tests.loader.samples import ids

    limit, num_loaders = int(sys.argv[2]), int(sys.argv[3])
    dataset = gl.open_dataset(sys.argv[1], window=4)
    options = dict(batch_size=64, shuffle=True, seed=3)
    loaders = [gl.Loader(gl.open_dataset(sys.argv[1], window=4), **options) for _ in range(num_loaders)]
    with gl.Loader(dataset) as loader:  # so that what Python opens once is open
        next(iter(loader))
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    most, seen = 0, 0
    iterators = [iter(loader) for loader in loaders]
    own = []
    for _ in range(len(loaders[0])):
        for iterator in iterators:
            seen += len(ids(next(iterator)))
        most = max(most, len(os.listdir("/proc/self/fd")) - before)
        if len(own) < limit // 5:
            own.append(open(sys.argv[1] + "/guideloom.json"))  # user code opens files too
    for file in own:
        file.close()
    for loader in loaders:
        loader.close()
    print(seen, most - len(own), len(os.listdir("/proc/self/fd")) - before)
"""


def dataset_of_shards(root: Path, count: int) -> Path:
    """Shards of ten windows, cut so that windows cross their edges."""
    return store(stream_files(counted([39, *[40] * (count - 2), 41], "<i4")), root)


# Four loaders open four times as many files; the full number of shards is for `make prove`.
SHARE = 1 if os.environ.get("GUIDELOOM_PROVE") == "1" else 5


@pytest.mark.parametrize(("num_shards", "limit"), [(5000, 256), (10_000, 128)])
@pytest.mark.parametrize("num_loaders", [1, 4])
def test_thousands_of_shards_under_a_small_limit(tmp_path: Path, num_shards: int, limit: int, num_loaders: int) -> None:
    """C58, B3: a shuffled epoch without EMFILE; a quarter of the limit is open, and user code can open files too."""
    num_shards //= SHARE if num_loaders > 1 else 1
    root = dataset_of_shards(tmp_path, num_shards)
    seen, most, left = map(int, succeeds(EPOCH, root, limit, num_loaders, seconds=110).split())
    assert seen == 10 * num_shards * num_loaders
    most_of_a_loader = 2 + 8  # a file for each thread when all others are in use, and the loop's own
    assert most <= limit // 4 + most_of_a_loader * num_loaders
    assert left <= 0


TRACED = """
    import sys
    import guideloom as gl
    dataset = gl.open_dataset(sys.argv[1], window=4)
    with gl.Loader(dataset, 10, shuffle=True) as loader:
        for epoch in range(3):
            for batch in loader:
                pass
"""


def can_trace() -> bool:
    strace = shutil.which("strace")
    return (
        strace is not None and subprocess.run([strace, "-f", "true"], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not can_trace(), reason="needs strace (apt-get install strace), and ptrace allowed")
def test_each_file_is_opened_once_and_nothing_is_asked_per_window(tmp_path: Path) -> None:
    """C77, C78: 64 shards, 3 x 3,333 random windows: one open a file, one stat of its descriptor, no listing."""
    root = store(stream_files(counted([521] * 64, "<i4")), tmp_path / "data")
    log = tmp_path / "log"
    command = ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=%file,fstat,getdents64,close"]
    code = "\n".join(line[4:] for line in TRACED.splitlines())
    subprocess.run([*command, sys.executable, "-c", code, str(root)], check=True, cwd=ROOT, timeout=100)
    calls: Counter[str] = Counter()
    opened: Counter[str] = Counter()
    for line in log.read_text().splitlines():
        name = re.match(r"\d+ +(\w+)\(", line)
        if name and str(root) in line:
            calls[name[1]] += 1
            if name[1] in ("open", "openat"):
                opened[line.split('"')[1]] += 1
    shards = {name: count for name, count in opened.items() if name.startswith(str(root / "shards"))}
    assert len(shards) == 128  # data and checksums
    assert set(shards.values()) == {1}
    assert set(calls) <= {"openat", "execve"}, f"no stat by name and no listing: {calls}"
    assert opened[str(root / "guideloom.json")] == 1


def test_the_limit_is_that_of_the_process() -> None:
    """The soft limit counts, and may change while the program runs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    output = succeeds(
        "import resource; from guideloom.backends.descriptors import _capacity; "
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard)); print(_capacity()); "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard)); print(_capacity())"
    )
    assert output.split() == ["25", "15"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
    assert os.sysconf("SC_OPEN_MAX") == soft
