"""The hash beside the writer: the same as without it, and nothing of it stays."""

import gc
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom.errors import ClosedError
from guideloom.storage.hashing import BackgroundHash
from guideloom.storage.stream import StreamStorage
from tests.adversity.programs import run_program
from tests.leaks import no_leaks  # noqa: F401 - for every test of this file
from tests.storage.stream_files import files, read_rows

BIG = 100_000


def threads() -> int:
    return sum(thread.name == "guideloom-hash" for thread in threading.enumerate())


@given(sizes=st.lists(st.sampled_from([0, 1, 1000, 65_535, 65_536, 200_000]), max_size=6))
def test_it_is_the_hash_of_all_pieces(sizes: list[int]) -> None:
    data = np.random.default_rng(len(sizes)).bytes(sum(sizes))
    background, start = BackgroundHash(), 0
    for size in sizes:
        background.update(memoryview(data)[start : start + size])
        start += size
    assert background.hexdigest() == hashlib.sha256(data).hexdigest()


def test_a_piece_may_change_once_the_next_is_taken() -> None:
    pieces = [bytearray(os.urandom(1 << 20)) for _ in range(2)]
    expected, background = hashlib.sha256(), BackgroundHash()
    for number in range(20):
        piece = pieces[number % 2]
        piece[:8] = number.to_bytes(8, "little")
        expected.update(piece)
        background.update(memoryview(piece))
    assert background.hexdigest() == expected.hexdigest()


@pytest.mark.parametrize("end", ["hexdigest", "close", "forgotten"])
def test_its_thread_starts_when_needed_and_ends(end: str) -> None:
    background = BackgroundHash()
    background.update(memoryview(b"small"))
    assert threads() == 0
    background.update(memoryview(bytes(BIG)))
    assert threads() == 1
    if end != "forgotten":
        getattr(background, end)()
    del background
    gc.collect()  # and `no_leaks` waits for the end


def test_what_goes_wrong_is_raised_to_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def update(self, piece: memoryview) -> None:
            raise MemoryError("no more")

    storage = StreamStorage.create(tmp_path / "corpus", dtype="<u2")
    monkeypatch.setattr(hashlib, "sha256", Failing)
    with pytest.raises(MemoryError, match="no more"), storage.writer(shard=0) as shard:  # noqa: PT012 - as a caller writes it
        for _ in range(4):
            shard.append(np.zeros(2**19, "<u2"))
    assert not [name for name in files(storage.path) if name.startswith("shards/")]


def test_a_child_does_not_wait_for_the_thread_of_its_parent(tmp_path: Path) -> None:
    storage = StreamStorage.create(tmp_path / "corpus", dtype="<u2")
    data = np.arange(2**20, dtype="<u4").astype("<u2")
    with storage.writer(shard=0) as shard:
        shard.append(data)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                shard.append(data)
            except ClosedError:
                status = 7
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        shard.append(data)
    storage.commit()
    np.testing.assert_array_equal(read_rows(storage.path)["tokens"], np.concatenate([data, data]))


@pytest.mark.parametrize("way", ["left open", "in an exit handler", "in a thread"])
def test_a_program_ends_whatever_is_being_hashed(tmp_path: Path, way: str) -> None:
    code = """
        import atexit, sys, threading
        import numpy as np
        import guideloom as gl
        storage = gl.StreamStorage.create(sys.argv[1], dtype="<u4")
        shard = storage.writer(0)
        def write():
            for _ in range(20):
                shard.append(np.arange(2**18, dtype="<u4"))
            if sys.argv[2] != "left open":
                shard.close()
                storage.commit()
        if sys.argv[2] == "in an exit handler":
            atexit.register(write)
        elif sys.argv[2] == "in a thread":
            threading.Thread(target=write).start()
        else:
            write()
    """
    outcome = run_program(code, tmp_path / "corpus", way)
    assert outcome.status == 0
    if way == "left open":
        assert outcome.errors.startswith("shard 0 was not closed")
    else:
        assert outcome.errors == ""
        assert len(read_rows(tmp_path / "corpus")) == 20 * 2**18


APPENDS = st.lists(st.sampled_from([0, 1, 5, 100, 699, 700, 701, 5000]), max_size=12)


@pytest.mark.parametrize("dtype", ["<u2", ">u2", "<i8"])
@given(sizes=APPENDS)
def test_rows_of_the_same_dtype_take_the_short_way(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, sizes: Any
) -> None:
    """Strided or not, of any length around that of the buffer; the rows are those of the long way."""
    storage = StreamStorage.create(tmp_path_factory.mktemp("rows") / "corpus", dtype="<u2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("guideloom.storage.group_file._BUFFER_BYTES", 1400)
        expected = []
        with storage.writer(shard=0) as shard:
            for number, size in enumerate(sizes):
                rows = np.arange(2 * size, dtype=dtype)[:: 1 + number % 2]
                shard.append(rows)
                expected.append(rows)
            assert shard.rows == sum(map(len, expected))
    storage.commit()
    found = read_rows(storage.path)["tokens"]
    np.testing.assert_array_equal(found, np.concatenate([np.zeros(0, "<u2"), *expected]))


@pytest.mark.parametrize("rows", [np.zeros((2, 2), "<u2"), np.zeros((), "<u2")])
def test_other_shapes_are_refused_as_before(tmp_path: Path, rows: Any) -> None:
    storage = StreamStorage.create(tmp_path / "corpus", dtype="<u2")
    with storage.writer(shard=0) as shard, pytest.raises(ValueError, match="shape"):
        shard.append(rows)
