import errno
import gc
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guideloom.errors import ClosedError, WriteError
from guideloom.storage import group_file
from guideloom.storage.stream import StreamStorage
from tests.storage.stream_files import files, intercepted, logged, read_rows, read_shards


@pytest.fixture
def storage(tmp_path: Path) -> StreamStorage:
    return StreamStorage.create(tmp_path / "corpus", dtype="<u2")


def shard_files(storage: StreamStorage) -> set[str]:
    return {name.removeprefix("shards/") for name in files(storage.path) if name.startswith("shards/")}


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child, and return the exit status: 0, 1 for an exception, negative for a signal."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_shard_appears_when_it_is_closed(storage: StreamStorage) -> None:
    with storage.writer(shard=3) as shard:
        shard.append([1, 2, 3])
        shard.append(np.array([4, 5], ">u2"))
        assert (shard.shard, shard.rows) == (3, 5)
        assert all(name.startswith(".") for name in shard_files(storage))
        assert storage.missing(range(5)) == [0, 1, 2, 3, 4]
    names = shard_files(storage)
    stems = {name.split(".")[0] for name in names}
    assert len(stems) == 1
    assert re.fullmatch("00000003-[0-9a-f]{32}", stems.pop())
    assert {name.split(".")[1] for name in names} == {"bin", "crc32c", "json"}
    assert storage.missing(range(5)) == [0, 1, 2, 4]


def test_names_are_never_the_same(storage: StreamStorage) -> None:
    for _ in range(20):
        storage.writer(shard=0).close()
    assert len(shard_files(storage)) == 60


@pytest.mark.parametrize("exception", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_publishes_nothing(storage: StreamStorage, exception: type[BaseException]) -> None:
    with pytest.raises(exception), storage.writer(shard=0) as shard:  # noqa: PT012 - as a caller writes it
        shard.append(np.zeros(2_000_000, "<u2"))
        raise exception
    assert shard_files(storage) == set()
    with pytest.raises(ClosedError, match="aborted"):
        shard.append([1])


def test_a_value_that_does_not_fit_publishes_nothing(storage: StreamStorage) -> None:
    with pytest.raises(ValueError, match="65536 at position 2"), storage.writer(shard=0) as shard:
        shard.append([1, 65535, 65536, 100_000])
    assert shard_files(storage) == set()


def test_a_refused_append_leaves_no_row_behind(storage: StreamStorage) -> None:
    with storage.writer(shard=0) as shard:
        shard.append([1])
        with pytest.raises(ValueError, match="-1 at position 1"):
            shard.append([7, -1])
        shard.append([2])
    storage.commit()
    assert read_rows(storage.path)["tokens"].tolist() == [1, 2]


def test_abort(storage: StreamStorage) -> None:
    with storage.writer(shard=0) as shard:
        shard.append([1])
        shard.abort()
        shard.abort()
    with pytest.raises(ClosedError, match="shard 0 is aborted"):
        shard.close()
    assert shard_files(storage) == set()


def test_close_is_final(storage: StreamStorage) -> None:
    shard = storage.writer(shard=0)
    shard.append([1])
    shard.close()
    shard.close()
    assert "shard=0 rows=1 published" in repr(shard)
    with pytest.raises(ClosedError, match="shard 0 is published"):
        shard.append([2])
    with pytest.raises(ClosedError, match="cannot be aborted"):
        shard.abort()
    assert len(shard_files(storage)) == 3


@pytest.mark.parametrize("sizes", [[0], [1] * 40, [7, 16, 1, 33, 0, 5], [100], [16, 16], [15, 1, 1]])
def test_appends_across_the_buffer(storage: StreamStorage, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_file, "_BUFFER_BYTES", 32)
    expected = np.arange(sum(sizes), dtype="<u2")
    with storage.writer(shard=0) as shard:
        for part in np.split(expected, np.cumsum(sizes)[:-1]):
            shard.append(part)
    storage.commit()
    np.testing.assert_array_equal(read_rows(storage.path)["tokens"], expected)


def test_rows_larger_than_the_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_file, "_BUFFER_BYTES", 32)
    storage = StreamStorage.create(tmp_path, dtype=("<u4", (100,)))
    with storage.writer(shard=0) as shard:
        shard.append(np.arange(300).reshape(3, 100))
    storage.commit()
    assert read_rows(tmp_path)["tokens"].ravel().tolist() == list(range(300))


def test_appended_data_are_copied(storage: StreamStorage) -> None:
    data = np.ones(10, "<u2")
    with storage.writer(shard=0) as shard:
        shard.append(data)
        data[:] = 2
        shard.append(data)
    storage.commit()
    assert read_rows(storage.path)["tokens"].tolist() == [1] * 10 + [2] * 10


def test_padding_is_written_as_zeros(tmp_path: Path) -> None:
    dtype = np.dtype([("a", "<i4"), ("b", "<i8")], align=True)
    storage = StreamStorage.create(tmp_path, dtype=dtype)
    for number in range(2):
        with storage.writer(shard=number) as shard:
            shard.append(np.frombuffer(b"\xff" * 32, dtype))
            shard.append(np.frombuffer(b"\x00" * 16, dtype))
    storage.commit()
    raw = (tmp_path / storage.manifest.shards[0].files[0].file).read_bytes()
    assert raw == (b"\xff" * 4 + b"\x00" * 4 + b"\xff" * 8) * 2 + bytes(16)


def test_a_lost_writer_is_cleaned_up_and_logged(storage: StreamStorage, caplog: pytest.LogCaptureFixture) -> None:
    shard = storage.writer(shard=41)
    shard.append([1])
    with caplog.at_level(logging.WARNING, logger="guideloom"):
        del shard
        gc.collect()
    assert [record.name for record in caplog.records] == ["guideloom"]
    assert "shard 41 was not closed" in caplog.text
    assert shard_files(storage) == set()


def test_closed_and_aborted_writers_log_nothing(storage: StreamStorage, caplog: pytest.LogCaptureFixture) -> None:
    storage.writer(shard=0).close()
    storage.writer(shard=1).abort()
    with pytest.raises(ZeroDivisionError), storage.writer(shard=2):
        _ = 1 // 0
    gc.collect()
    assert not caplog.records


def run(script: str, root: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_writer_open_at_exit_is_cleaned_up_and_reported(storage: StreamStorage) -> None:
    script = """
        import sys
        from guideloom.storage.stream import StreamStorage
        shard = StreamStorage.open(sys.argv[1]).writer(shard=5)
        shard.append([1, 2, 3])
        keep = [shard]
        keep.append(keep)
    """
    result = run(script, storage.path)
    assert result.returncode == 0
    assert result.stderr.startswith("shard 5 was not closed, and is not published")
    assert result.stderr.count("\n") == 1
    assert shard_files(storage) == set()


def test_a_child_leaves_the_writer_of_its_parent_alone(storage: StreamStorage) -> None:
    script = """
        import os, sys
        from guideloom.errors import ClosedError
        from guideloom.storage.stream import StreamStorage
        storage = StreamStorage.open(sys.argv[1])
        shard = storage.writer(shard=0)
        shard.append([1, 2])
        child = os.fork()
        if child == 0:
            shard.append([9])
            try:
                shard.close()
            except ClosedError:
                with storage.writer(shard=1) as other:
                    other.append([3])
                sys.exit(7)
            sys.exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        silent = os.fork()
        if silent == 0:
            sys.exit(0)
        os.waitpid(silent, 0)
        shard.close()
        storage.commit()
        sys.exit(status)
    """
    result = run(script, storage.path)
    assert (result.returncode, result.stderr) == (7, "")
    assert [shard["tokens"].tolist() for shard in read_shards(storage.path)] == [[1, 2], [3]]


def test_forked_children_write_their_own_shards(storage: StreamStorage) -> None:
    def write(number: int) -> None:
        with storage.writer(shard=number) as shard:
            shard.append([number] * 10)

    assert [in_child(lambda number=number: write(number)) for number in range(4)] == [0] * 4  # type: ignore[misc]  # default
    storage.commit()
    assert [shard["tokens"].tolist() for shard in read_shards(storage.path)] == [[n] * 10 for n in range(4)]


def test_everything_is_synced_before_it_is_relied_on(storage: StreamStorage) -> None:
    with storage.writer(shard=0) as shard:
        shard.append([1])
        with logged() as log:
            shard.close()
    folder = ["open", "fsync", "close"]
    side_written = ["open", "write"]
    named = ["fsync", "close", "rename"]
    assert log == ["write", *side_written, "fsync", "rename", *named, *folder, "open", "write", *named, *folder]


def test_existing_files_are_never_opened_for_writing(storage: StreamStorage) -> None:
    flags: list[int] = []
    original = os.open

    def watched(path: Any, flag: int, *args: Any, **kwargs: Any) -> int:
        flags.append(flag)
        return original(path, flag, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        with storage.writer(shard=0) as shard:
            shard.append([1])
        storage.commit()
    writing = [flag for flag in flags if flag & (os.O_WRONLY | os.O_RDWR)]
    assert len(writing) == 5
    assert all(flag & os.O_EXCL and flag & os.O_NOFOLLOW for flag in writing)


def attempt(storage: StreamStorage) -> None:
    with storage.writer(shard=0) as shard:
        shard.append([1, 2, 3])


def num_calls(storage: StreamStorage) -> int:
    with logged() as log:
        attempt(storage)
    for name in shard_files(storage):
        os.unlink(storage.path / "shards" / name)
    return len(log)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
def test_a_failed_call_is_final(storage: StreamStorage, code: int, forever: bool) -> None:
    for bad in range(1, num_calls(storage) + 1):
        failed = False

        def act(count: int, name: str, call: Callable[[], Any], bad: int = bad) -> Any:
            nonlocal failed
            if name != "unlink" and (count == bad or (forever and count > bad)):
                failed = True
                if name == "close":  # which closes, whatever it says
                    call()
                raise OSError(code, os.strerror(code))
            return call()

        with pytest.raises(WriteError, match=re.escape(os.strerror(code))) as caught, intercepted(act):
            attempt(storage)
        assert failed
        assert caught.value.details["errno"] == code
        assert caught.value.shard == 0
        assert storage.missing([0]) == [0]
        left = shard_files(storage)
        assert not [name for name in left if name.endswith((".tmp", ".json"))]
        for name in left:  # of a shard that had been visible
            os.unlink(storage.path / "shards" / name)
    attempt(storage)
    storage.commit()
    assert read_rows(storage.path)["tokens"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("done", [False, True], ids=["before the call", "after it"])
def test_an_interrupt_at_any_call_publishes_nothing(storage: StreamStorage, done: bool) -> None:
    for bad in range(1, num_calls(storage) + 1):

        def act(count: int, _name: str, call: Callable[[], Any], bad: int = bad) -> Any:
            if count != bad:
                return call()
            if done:
                call()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), intercepted(act):
            attempt(storage)
        assert storage.missing([0]) == [0]
        assert not [name for name in shard_files(storage) if name.endswith((".tmp", ".json"))]


def test_after_a_failure_nothing_is_accepted(storage: StreamStorage) -> None:
    def fail(_count: int, name: str, call: Callable[[], Any]) -> Any:
        if name == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call()

    with pytest.raises(ClosedError, match=r"shard 0 is failed .*No space left"), storage.writer(shard=0) as shard:  # noqa: PT012 - as a caller writes it
        with intercepted(fail), pytest.raises(WriteError, match="No space left"):
            shard.append(np.zeros(1_000_000, "<u2"))
        with pytest.raises(ClosedError, match="failed"):
            shard.append([1])
    assert shard_files(storage) == set()


def test_a_planted_name_is_not_followed(storage: StreamStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    target = storage.path / "target"
    target.write_bytes(b"precious")
    monkeypatch.setattr("secrets.token_hex", lambda num_bytes: "0" * 2 * num_bytes)
    name = f"00000000-{'0' * 32}.bin"
    planted = storage.path / "shards" / f".{name}.{'0' * 32}.tmp"
    planted.symlink_to(target)
    with pytest.raises(WriteError, match="File exists"):
        storage.writer(shard=0)
    planted.unlink(missing_ok=True)
    (storage.path / "shards" / name).symlink_to(target)
    with pytest.raises(WriteError, match="File exists"):
        attempt(storage)
    assert target.read_bytes() == b"precious"
    assert (storage.path / "shards" / name).is_symlink()  # nothing of somebody else's is replaced, or removed


def test_the_limit_of_a_file_is_a_write_error(storage: StreamStorage) -> None:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with pytest.raises(WriteError, match="too large"), storage.writer(shard=0) as shard:
            shard.append(np.zeros(2_000_000, "<u2"))

    assert in_child(work) == 0
    assert shard_files(storage) == set()


def test_a_full_disk_is_a_write_error(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root; run the test as root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        storage = StreamStorage.create(disk / "corpus", dtype="<u2")
        attempt(storage)
        storage.commit()
        with pytest.raises(WriteError, match="No space left") as caught, storage.writer(shard=1) as shard:
            shard.append(np.zeros(2_000_000, "<u2"))
        assert caught.value.details["errno"] == errno.ENOSPC
        assert not [name for name in files(disk) if name.endswith(".tmp")]
        with storage.writer(shard=1) as shard:
            shard.append([4])
        storage.commit()
        assert read_rows(storage.path)["tokens"].tolist() == [1, 2, 3, 4]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
