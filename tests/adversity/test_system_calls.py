"""What the system calls of reading may do: stop short, be interrupted, fail, lie."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.adversity.programs import run_program, succeeds
from tests.damage import LAYOUTS
from tests.streams import counted, shards_of, store, stream_files

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler: apt-get install gcc libc6-dev")


# Byte 9000 lies in the block 8192 to 12287: elements 2048 to 3071 of the first file, and of that from element 4001 on.
TOUCHED = [*range(2048 // 40, 3071 // 40 + 1), *range((4001 + 2048) // 40, (4001 + 3071) // 40 + 1)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("library") / "faulty_reads.so"
    source = Path(__file__).with_name("faulty_reads.c")
    subprocess.run(["gcc", "-O1", "-Wall", "-shared", "-fPIC", "-o", target, source, "-ldl"], check=True)
    return target


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(stream_files(counted([4000, 0, 1, 5000], "<i4")), tmp_path_factory.mktemp("data"))


READ_ALL = """
    import json, logging, sys
    import numpy as np
    import guideloom as gl
    from guideloom.errors import GuideLoomError

    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="log: %(message)s")
    backend = gl.LocalBackend(sys.argv[1], memory_map=False)  # every byte by a system call
    dataset = gl.open_dataset(backend, window=40, verify=sys.argv[2] == "verify")
    with dataset.sync_reader() as reader:
        report = {"wrong": 0, "errors": []}
        for sample in range(len(dataset)):
            try:
                if reader[sample]["tokens"].tolist() != list(range(40 * sample, 40 * sample + 40)):
                    report["wrong"] += 1
            except GuideLoomError as error:
                report["errors"].append([sample, type(error).__name__, getattr(error, "errno", None), str(error)])
        try:  # all at once, by the threads
            report["batch"] = bool((reader[:]["tokens"].reshape(-1) == np.arange(40 * len(dataset))).all())
        except GuideLoomError as error:
            report["batch"] = type(error).__name__
    print(json.dumps(report))
"""


def read_all(library: Path, root: Path, fault: str, *, verify: bool = True, cold: bool = False) -> tuple[Any, str]:
    environment = {"LD_PRELOAD": str(library), "GUIDELOOM_FAULT": fault, **({"GUIDELOOM_COLD": "1"} if cold else {})}
    outcome = run_program(READ_ALL, root, "verify" if verify else "trust", environment=environment)
    assert (outcome.status, outcome.errors) == (0, "")
    *log, report = outcome.output.splitlines()
    return json.loads(report), "\n".join(log)


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("fault", ["", "short"])
def test_short_reads_and_interrupted_ones_are_finished(
    library: Path, root: Path, fault: str, verify: bool, cold: bool
) -> None:
    """C74: seven bytes a call and EINTR at every third, on every path: what arrives is whole and right."""
    report, log = read_all(library, root, fault, verify=verify, cold=cold)
    assert report == {"wrong": 0, "errors": [], "batch": True}
    assert log == ""


@pytest.mark.parametrize("cold", [False, True])
def test_multi_field_rows_survive_short_reads(library: Path, tmp_path: Path, cold: bool) -> None:
    rows = np.zeros(3000, np.dtype([("a", "<u2"), ("b", "u1"), ("c", "<i4", (3,))]))
    rows["a"], rows["b"], rows["c"] = np.arange(3000), np.arange(3000) % 256, np.arange(9000).reshape(3000, 3)
    store(stream_files(shards_of(rows, [1700, 1300])), tmp_path)
    np.save(tmp_path / "rows.npy", rows)
    environment = {"LD_PRELOAD": str(library), "GUIDELOOM_FAULT": "short", **({"GUIDELOOM_COLD": "1"} if cold else {})}
    code = """
        import sys
        import numpy as np
        import guideloom as gl
        rows = np.load(sys.argv[1] + "/rows.npy")
        backend = gl.LocalBackend(sys.argv[1], memory_map=False)
        with gl.open_dataset(backend, window=10, fields={"a": "i8", "b": None, "c": "f4"}).sync_reader() as reader:
            batch = reader[:]
        for name in rows.dtype.names:
            assert (batch[name].reshape(rows[name].shape) == rows[name]).all()
    """
    succeeds(code, tmp_path, environment=environment)


@pytest.mark.parametrize("cold", [False, True])
def test_an_error_of_the_device_costs_its_samples_and_keeps_its_number(library: Path, root: Path, cold: bool) -> None:
    """C56, promise 4: EIO names file, offset and sample, and costs no other window."""
    report, _ = read_all(library, root, "eio", cold=cold)
    assert report["wrong"] == 0
    assert report["batch"] == "ReadError"
    assert [error[0] for error in report["errors"]] == TOUCHED
    for sample, kind, number, message in report["errors"]:
        assert (kind, number) == ("ReadError", 5)
        assert message.startswith(f"sample {sample} of ")
        assert ": cannot read shards/0000" in message
        assert message.endswith("Input/output error")


def test_a_lie_of_the_device_is_found_out(library: Path, root: Path) -> None:
    """C8: a read that says it went well and brought nothing is an error in all cases, never what lay in the buffer."""
    report, _ = read_all(library, root, "silent")
    assert report["wrong"] == 0
    assert report["batch"] == "CorruptionError"
    assert {error[1] for error in report["errors"]} == {"CorruptionError"}
    assert [error[0] for error in report["errors"]] == TOUCHED


def test_a_bit_that_changed_on_its_way_is_read_again(library: Path, root: Path) -> None:
    """C6: one mismatch heals, and is told of; a lasting one is an error after the second look."""
    report, log = read_all(library, root, "flip")
    assert report == {"wrong": 0, "errors": [], "batch": True}
    assert log.count("log: shards/00000-0.bin: damaged bytes were read right at the second attempt") == 1
    report, log = read_all(library, root, "flips")
    assert report["wrong"] == 0
    assert report["batch"] == "CorruptionError"
    assert log == ""
    assert all("twice" in error[3] for error in report["errors"])
    report, _ = read_all(library, root, "flips", verify=False)
    assert report["wrong"] == 2  # without checks it arrives as it came: the window with byte 9000 of each file
    assert report["errors"] == []


STUCK = """
    import sys, time
    import guideloom as gl
    from guideloom.errors import ClosedError
    from concurrent.futures import ThreadPoolExecutor

    loader = gl.Loader(gl.open_dataset(sys.argv[1], window=40), 4)
    batches = iter(loader)
    with ThreadPoolExecutor(1) as pool:
        consumer = pool.submit(lambda: sum(1 for _ in batches))
        time.sleep(0.5)
        begin = time.monotonic()
        loader.close()
        try:
            consumer.result()
        except ClosedError:
            print("told")
        assert time.monotonic() - begin < 5
    again = gl.Loader(gl.open_dataset(sys.argv[1], window=40), 4)  # and this one is left in the middle of a stuck read
    it = iter(again)
    next(it)
    time.sleep(0.2)
"""


def test_a_read_that_is_stuck_in_the_kernel_holds_up_neither_close_nor_exit(library: Path, root: Path) -> None:
    """T10: two threads wait for a dead disk; the caller is freed, and the program ends within five seconds."""
    environment = {"LD_PRELOAD": str(library), "GUIDELOOM_FAULT": "hang", "GUIDELOOM_COLD": "1"}
    outcome = run_program(STUCK, root, environment=environment, seconds=50)
    assert (outcome.status, outcome.output, outcome.errors) == (0, "told\n", "")
    assert outcome.seconds < 10


READ_LAYOUT = """
    import json, sys
    from pathlib import Path
    import guideloom as gl
    from guideloom.errors import GuideLoomError
    from tests.damage import LAYOUTS, files_below, plain

    root, layout = Path(sys.argv[1]), LAYOUTS[sys.argv[2]]
    with layout.open(gl.MemoryBackend(files_below(root))).sync_reader() as reader:
        right = [plain(reader.read(i)) for i in range(len(reader))]
    errors = []
    with layout.open(gl.LocalBackend(root, memory_map=False)).sync_reader() as reader:
        for sample, expected in enumerate(right):
            try:
                found = plain(reader.read(sample))
            except GuideLoomError as error:
                errors.append(type(error).__name__)
            else:
                assert found == expected, f"sample {sample} is wrong"
    print(json.dumps(sorted(set(errors))))
"""


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(
    ("fault", "expected"),
    [("short", []), ("silent", ["CorruptionError"]), ("flips", ["CorruptionError"]), ("eio", ["ReadError"])],
)
def test_no_layout_delivers_what_a_device_lied_about(
    library: Path, tmp_path: Path, name: str, fault: str, expected: list[str]
) -> None:
    """C8: nothing wrong is ever delivered; what failed says so, and the rest is right."""
    store(LAYOUTS[name].files(), tmp_path)
    environment = {"LD_PRELOAD": str(library), "GUIDELOOM_FAULT": fault}
    assert json.loads(succeeds(READ_LAYOUT, tmp_path, name, environment=environment)) == expected
