"""Claims: the second live owner is told, a dead one is in nobody's way."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from guideloom.errors import ShardClaimedError, ShardError, WriteError
from guideloom.storage.claims import LEASE_SECONDS, Owner
from guideloom.storage.stream import StreamStorage
from tests.storage.stream_files import files, read_rows
from tests.storage.test_stream_storage import FORK


@pytest.fixture
def storage(tmp_path: Path) -> StreamStorage:
    return StreamStorage.create(tmp_path / "corpus", dtype="<u2")


def owner_file(storage: StreamStorage, number: int = 3) -> Path:
    return storage.path / "claims" / f"{number:08d}" / "owner.json"


def claim_files(storage: StreamStorage) -> list[str]:
    return sorted(name for name in files(storage.path) if name.startswith("claims/"))


def change(storage: StreamStorage, **changes: Any) -> None:
    owner = msgspec.json.decode(owner_file(storage).read_bytes(), type=Owner)
    owner_file(storage).write_bytes(msgspec.json.encode(msgspec.structs.replace(owner, **changes)))


def test_a_second_live_owner_is_told_at_once(storage: StreamStorage) -> None:
    with storage.writer(shard=3, task="job/3") as shard:
        shard.append([1])
        assert claim_files(storage) == ["claims/00000003/owner.json"]
        with pytest.raises(ShardClaimedError, match=r"shard 3 is being written by task 'job/3', process") as caught:
            storage.writer(shard=3, task="other")
        assert isinstance(caught.value, ShardError)
        details = (caught.value.shards, caught.value.task, caught.value.host, caught.value.pid)
        assert details == ([3], "job/3", socket.gethostname(), os.getpid())
        storage.writer(shard=2, task="other").abort()
        storage.writer(shard=3).abort()  # who does not claim is not asked
        assert claim_files(storage) == ["claims/00000003/owner.json"]
    assert claim_files(storage) == []
    assert storage.missing([3]) == []
    storage.writer(shard=3, task="other").abort()
    assert claim_files(storage) == []


def test_another_attempt_at_the_task_takes_over(storage: StreamStorage) -> None:
    first = storage.writer(shard=0, task="job/0")
    first.append([1, 2])
    second = storage.writer(shard=0, task="job/0")
    second.append([1, 2])
    first.close()
    with pytest.raises(ShardClaimedError):  # the claim is the second's, and stays
        storage.writer(shard=0, task="other")
    second.close()
    assert claim_files(storage) == []
    storage.commit()
    assert read_rows(storage.path)["tokens"].tolist() == [1, 2]


@pytest.mark.parametrize("end", ["abort", "error", "lost", "full"])
def test_every_end_of_a_writer_gives_the_claim_back(
    storage: StreamStorage, end: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if end == "full":
        monkeypatch.setattr(storage, "_writer", lambda _number: (_ for _ in ()).throw(WriteError("full")))
        with pytest.raises(WriteError, match="full"):
            storage.writer(shard=3, task="job")
    else:
        shard = storage.writer(shard=3, task="job")
        if end == "abort":
            shard.abort()
        elif end == "error":
            with pytest.raises(ZeroDivisionError), shard:
                _ = 1 // 0
        del shard
    assert claim_files(storage) == []


def test_a_killed_writer_blocks_nobody(storage: StreamStorage) -> None:
    script = """
        import os, signal, sys
        from guideloom.storage.stream import StreamStorage
        shard = StreamStorage.open(sys.argv[1]).writer(shard=3, task="killed")
        shard.append([1])
        print("claimed", flush=True)
        signal.pause()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(storage.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        with pytest.raises(ShardClaimedError, match=f"'killed', process {process.pid} on"):
            storage.writer(shard=3, task="other")
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie is dead, too
        storage.writer(shard=3, task="other").abort()
    assert claim_files(storage) == []


def test_a_number_of_a_process_used_again_is_another_process(storage: StreamStorage) -> None:
    shard = storage.writer(shard=3, task="job")
    change(storage, started=1)
    storage.writer(shard=3, task="other").abort()
    shard.abort()


def test_an_owner_elsewhere_is_alive_while_it_touches_its_claim(storage: StreamStorage) -> None:
    shard = storage.writer(shard=3, task="job")
    change(storage, host="far-away")
    now = time.time()
    for age, alive in ((0, True), (LEASE_SECONDS - 60, True), (LEASE_SECONDS + 60, False)):
        os.utime(owner_file(storage), (now - age, now - age))
        if alive:
            with pytest.raises(ShardClaimedError, match="far-away"):
                storage.writer(shard=3, task="other")
        else:
            storage.writer(shard=3, task="other").abort()
    shard.abort()


def test_appending_touches_the_claim(storage: StreamStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    with storage.writer(shard=3, task="job") as shard:
        os.utime(owner_file(storage), (0, 0))
        shard.append([1])
        assert owner_file(storage).stat().st_mtime == 0  # not at every append
        clock = time.monotonic() + 61
        monkeypatch.setattr(time, "monotonic", lambda: clock)
        shard.append([1])
        assert owner_file(storage).stat().st_mtime > 0
        os.unlink(owner_file(storage))
        monkeypatch.setattr(time, "monotonic", lambda: clock + 61)
        shard.append([1])


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"x" * 100_000, b'{"task": 1}'])
def test_half_a_claim_is_nobodys(storage: StreamStorage, data: bytes) -> None:
    shard = storage.writer(shard=3, task="job")
    owner_file(storage).write_bytes(data)
    storage.writer(shard=3, task="other").abort()
    shard.abort()


def test_of_racing_tasks_one_claims(storage: StreamStorage) -> None:
    for _ in range(5):
        barrier, done = FORK.Barrier(6), FORK.Barrier(6)

        def work(number: int, barrier: Any = barrier, done: Any = done) -> None:
            barrier.wait(60)
            try:
                shard = storage.writer(shard=0, task=f"task {number}")
            except ShardClaimedError:
                done.wait(60)
                os._exit(3)
            done.wait(60)
            shard.abort()
            os._exit(0)

        processes = [FORK.Process(target=work, args=(number,)) for number in range(6)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        assert sorted(process.exitcode or 0 for process in processes) == [0, 3, 3, 3, 3, 3]
        assert claim_files(storage) == []


@pytest.mark.parametrize("task", ["", "x" * 1001])
def test_names_of_tasks(storage: StreamStorage, task: str) -> None:
    with pytest.raises(ValueError, match="characters"):
        storage.writer(shard=0, task=task)
    with pytest.raises(TypeError, match="a str, not int"):
        storage.writer(shard=0, task=3)  # type: ignore[arg-type]
    assert claim_files(storage) == []
