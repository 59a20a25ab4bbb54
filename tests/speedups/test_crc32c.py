import itertools
import random
import sys
import threading
import time
from collections.abc import Iterator

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom._speedups import crc32c as speedup
from guideloom._speedups.crc32c import block_checksum, block_checksums, crc32c
from guideloom._typing import AnyArray, UInt32Array

IMPLEMENTATIONS = speedup._implementations()
NOISE = random.Random(3720).randbytes(80_000)

# RFC 3720, appendix B.4; the last is a SCSI read command.
VECTORS = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
    (
        bytes.fromhex(
            "01c00000 00000000 00000000 00000000 14000000 0000040000000014 00000018 28000000 00000000 02000000 00000000"
        ),
        0xD9963A56,
    ),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


def bit_by_bit(data: bytes, value: int = 0) -> int:
    """The definition, with nothing clever in it."""
    register = value ^ 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def expected_block_checksum(data: bytes, file_seed: int, block: int) -> int:
    return int(google_crc32c.value(file_seed.to_bytes(4, "little") + block.to_bytes(8, "little") + data))


@pytest.fixture(params=IMPLEMENTATIONS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_fastest_usable_implementation_is_chosen() -> None:
    assert speedup.implementation() == IMPLEMENTATIONS[0]
    assert IMPLEMENTATIONS[-1] == "software"


def test_an_unknown_implementation_is_refused() -> None:
    with pytest.raises(ValueError, match="software"):
        speedup._crc32c_by("abacus", b"")


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_vectors(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected
    assert {speedup._crc32c_by(name, data) for name in IMPLEMENTATIONS} == {expected}


def test_every_short_length_at_every_alignment(name: str) -> None:
    aligned = np.zeros(1024 + 64, np.uint8)
    aligned = aligned[-aligned.ctypes.data % 64 :]
    aligned[:1000] = np.frombuffer(NOISE, np.uint8, 1000)
    for start, length in itertools.product(range(17), range(601)):
        found = speedup._crc32c_by(name, aligned[start : start + length])
        assert found == google_crc32c.value(NOISE[start : start + length]), (start, length)


# The lanes take 504 and 4080 bytes at a time, the folding 64 and 256: lengths around several of each.
@pytest.mark.parametrize("around", sorted({n * k for n in (504, 1024, 4080, 4096) for k in (1, 2, 3, 8, 15)}))
def test_lengths_around_whole_blocks(name: str, around: int) -> None:
    for length in range(around - 70, around + 71):
        assert speedup._crc32c_by(name, NOISE[:length], 0) == google_crc32c.value(NOISE[:length]), length


@pytest.mark.parametrize("length", [40, 700, 4200])
def test_a_chain_equals_the_whole_at_every_split(name: str, length: int) -> None:
    view = memoryview(NOISE)
    expected = google_crc32c.value(NOISE[:length])
    for split in range(length + 1):
        first = speedup._crc32c_by(name, view[:split])
        assert speedup._crc32c_by(name, view[split:length], first) == expected, split


@given(data=st.binary(max_size=700), value=st.integers(0, 2**32 - 1))
def test_any_data_after_any_value(data: bytes, value: int) -> None:
    expected = bit_by_bit(data, value)
    assert crc32c(data, value) == expected
    assert {speedup._crc32c_by(name, data, value) for name in IMPLEMENTATIONS} == {expected}


@given(cuts=st.lists(st.integers(0, len(NOISE)), max_size=8).map(sorted))
def test_any_chain_equals_the_whole(cuts: list[int]) -> None:
    value = 0
    for start, end in itertools.pairwise([0, *cuts, len(NOISE)]):
        value = crc32c(NOISE[start:end], value)
    assert value == google_crc32c.value(NOISE)


def test_any_contiguous_buffer_is_taken() -> None:
    data = NOISE[:9600]
    rows = np.frombuffer(data, np.dtype([("tokens", "<u2", 3), ("mask", "u1")], align=True))
    square = np.frombuffer(data, "<f4").reshape(40, 60)
    assert not square.flags.writeable
    buffers: list[bytearray | memoryview | AnyArray] = [
        bytearray(data),
        memoryview(data),
        memoryview(data).cast("B", (96, 100)),
        rows,
        square,
        square.copy(),
    ]
    assert {crc32c(buffer) for buffer in buffers} == {google_crc32c.value(data)}


def test_a_strided_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        crc32c(np.zeros((4, 4), np.uint8)[:, 1])
    with pytest.raises(ValueError, match="contiguous"):
        crc32c(np.zeros((4, 4), np.uint8).T)
    with pytest.raises(BufferError, match="contiguous"):
        crc32c(memoryview(b"abcdef")[::2])


@pytest.mark.parametrize("value", [-1, 2**32])
def test_a_value_outside_32_bits_is_refused(value: int) -> None:
    with pytest.raises(OverflowError):
        crc32c(b"", value)


@given(data=st.binary(max_size=64), file_seed=st.integers(0, 2**32 - 1), block=st.integers(0, 2**64 - 1))
def test_a_block_checksum_covers_seed_block_and_data(data: bytes, file_seed: int, block: int) -> None:
    assert block_checksum(data, file_seed=file_seed, block=block) == expected_block_checksum(data, file_seed, block)


def test_a_block_checksum_may_be_continued() -> None:
    first = block_checksum(NOISE[:1000], file_seed=5, block=6)
    assert crc32c(NOISE[1000:4096], first) == expected_block_checksum(NOISE[:4096], 5, 6)


@pytest.mark.parametrize("block_bytes", [1, 7, 512, 4096, 80_000, 2**62])
@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 8192, 20_000])
def test_one_checksum_a_block(length: int, block_bytes: int) -> None:
    blocks = [NOISE[start : start + block_bytes] for start in range(0, length, block_bytes)]
    blocks = [block[: length - i * block_bytes] for i, block in enumerate(blocks)]
    out = np.zeros(len(blocks), np.uint32)
    block_checksums(NOISE[:length], file_seed=0xFEDCBA98, first_block=2**33, block_bytes=block_bytes, out=out)
    assert out.tolist() == [expected_block_checksum(b, 0xFEDCBA98, 2**33 + i) for i, b in enumerate(blocks)]


@pytest.mark.parametrize("num_blocks", [1, 3])
def test_an_array_for_another_number_of_blocks_is_refused(num_blocks: int) -> None:
    out = np.zeros(num_blocks, np.uint32)
    with pytest.raises(ValueError, match="for 2 blocks"):
        block_checksums(bytes(4097), file_seed=0, first_block=0, block_bytes=4096, out=out)
    assert not out.any()


@pytest.mark.parametrize("block_bytes", [0, -4096])
def test_a_block_without_bytes_is_refused(block_bytes: int) -> None:
    with pytest.raises(ValueError, match="block_bytes"):
        block_checksums(b"", file_seed=0, first_block=0, block_bytes=block_bytes, out=np.zeros(0, np.uint32))


@pytest.fixture
def no_forced_switch() -> Iterator[None]:
    """Let a thread run only when another one gives the GIL away of itself."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("no_forced_switch")
@pytest.mark.parametrize("by_blocks", [False, True])
def test_the_gil_is_released(by_blocks: bool) -> None:
    data = bytes(2**22)
    out: UInt32Array = np.zeros(len(data) // 4096, np.uint32)
    gate, ran = threading.Lock(), threading.Event()
    gate.acquire()

    def other() -> None:
        with gate:
            ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    gate.release()
    deadline = time.monotonic() + 10
    while not ran.is_set() and time.monotonic() < deadline:
        if by_blocks:
            block_checksums(data, file_seed=0, first_block=0, block_bytes=4096, out=out)
        else:
            crc32c(data)
    found = ran.is_set()
    thread.join()
    assert found
