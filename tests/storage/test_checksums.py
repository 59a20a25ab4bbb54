import itertools
import random

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom._typing import UInt32Array
from guideloom.errors import CorruptionError
from guideloom.storage.checksums import BLOCK_BYTES, BlockChecksums, parse_side_file

SEED = 0x89ABCDEF
NOISE = random.Random(4096).randbytes(5 * BLOCK_BYTES + 123)


def side_file(data: bytes | bytearray, file_seed: int = SEED) -> bytes:
    checksums = BlockChecksums(file_seed=file_seed)
    checksums.update(data)
    return checksums.finish()


def checksums_of(data: bytes | bytearray, file_seed: int = SEED) -> UInt32Array:
    num_blocks = -(-len(data) // BLOCK_BYTES)
    return parse_side_file(side_file(data, file_seed), file_seed=file_seed, num_blocks=num_blocks, path="a.crc")


def expected_side_file(data: bytes, file_seed: int) -> bytes:
    """The format, as its documentation words it."""

    def checksum(block: int, block_data: bytes) -> bytes:
        seeded = file_seed.to_bytes(4, "little") + block.to_bytes(8, "little") + block_data
        return int(google_crc32c.value(seeded)).to_bytes(4, "little")

    starts = range(0, len(data), BLOCK_BYTES)
    table = b"".join(checksum(i, data[start : start + BLOCK_BYTES]) for i, start in enumerate(starts))
    return table + checksum(2**64 - 1, table)


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 3 * 4096 - 1, 3 * 4096, 3 * 4096 + 1])
def test_the_side_file_is_the_documented_one(length: int) -> None:
    assert side_file(NOISE[:length]) == expected_side_file(NOISE[:length], SEED)


@given(cuts=st.lists(st.integers(0, len(NOISE)), max_size=12).map(sorted))
def test_pieces_of_any_size_give_the_same_side_file(cuts: list[int]) -> None:
    checksums = BlockChecksums(file_seed=SEED)
    for start, end in itertools.pairwise([0, *cuts, len(NOISE)]):
        checksums.update(NOISE[start:end])
    assert checksums.finish() == expected_side_file(NOISE, SEED)


@pytest.mark.parametrize("piece_bytes", [1, 1365, 4095, 4096, 4097])
def test_a_side_file_at_any_time_covers_the_bytes_so_far(piece_bytes: int) -> None:
    checksums = BlockChecksums(file_seed=SEED)
    for start in range(0, 2 * BLOCK_BYTES + 100, piece_bytes):
        if start % 1365 < piece_bytes:
            assert checksums.finish() == expected_side_file(NOISE[:start], SEED)
        checksums.update(NOISE[start : start + piece_bytes])


def test_rows_of_any_dtype_are_taken_as_bytes() -> None:
    rows = np.frombuffer(NOISE, np.dtype([("tokens", "<u2", 3), ("mask", "u1")]), 1000)
    checksums = BlockChecksums(file_seed=SEED)
    checksums.update(rows[:300])
    checksums.update(memoryview(rows[300:].tobytes()))
    assert checksums.finish() == expected_side_file(NOISE[:7000], SEED)


def test_a_refused_piece_changes_nothing() -> None:
    checksums = BlockChecksums(file_seed=SEED)
    checksums.update(NOISE[:5000])
    with pytest.raises(ValueError, match="contiguous"):
        checksums.update(np.zeros((64, 128), np.uint8)[:, ::2])
    assert checksums.finish() == side_file(NOISE[:5000])


def test_every_flipped_bit_is_found_in_its_block() -> None:
    data = NOISE[: BLOCK_BYTES + 20]
    intact = checksums_of(data)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        differs = checksums_of(damaged) != intact
        block = bit // 8 // BLOCK_BYTES
        assert differs.tolist() == [block == 0, block == 1], bit


def test_swapped_blocks_are_found() -> None:
    blocks = [NOISE[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES] for i in range(4)]
    swapped = [blocks[0], blocks[2], blocks[1], blocks[3]]
    differs = checksums_of(b"".join(blocks)) != checksums_of(b"".join(swapped))
    assert differs.tolist() == [False, True, True, False]


def test_blocks_of_equal_bytes_have_checksums_of_their_own() -> None:
    assert len(set(checksums_of(bytes(64 * BLOCK_BYTES)).tolist())) == 64


@pytest.mark.parametrize("bit", range(32))
def test_the_bytes_of_another_file_are_found(bit: int) -> None:
    assert (checksums_of(NOISE, SEED) != checksums_of(NOISE, SEED ^ 1 << bit)).all()


@pytest.mark.parametrize("bit", range(32))
def test_the_side_file_of_another_file_is_refused(bit: int) -> None:
    with pytest.raises(CorruptionError, match=r"a\.crc"):
        parse_side_file(side_file(NOISE, SEED ^ 1 << bit), file_seed=SEED, num_blocks=6, path="a.crc")


def test_the_checksums_are_an_array_of_one_a_block() -> None:
    found = parse_side_file(side_file(NOISE), file_seed=SEED, num_blocks=6, path="a.crc")
    assert found.dtype == np.uint32
    assert found.tobytes() == expected_side_file(NOISE, SEED)[:-4]


@pytest.mark.parametrize("data", [b"", NOISE])
def test_every_flipped_bit_of_a_side_file_is_refused(data: bytes) -> None:
    intact = side_file(data)
    num_blocks = len(intact) // 4 - 1
    for bit in range(8 * len(intact)):
        damaged = bytearray(intact)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError) as caught:
            parse_side_file(bytes(damaged), file_seed=SEED, num_blocks=num_blocks, path="a.crc")
        error = caught.value
        assert (error.path, error.offset, error.length) == ("a.crc", 0, 4 * num_blocks)
        assert all(part in str(error) for part in ("a.crc", f"{error.expected:#010x}", f"{error.found:#010x}"))


@pytest.mark.parametrize("num_bytes", [n for n in range(40) if n != 28])
def test_a_side_file_of_another_length_is_refused(num_bytes: int) -> None:
    resized = (side_file(NOISE) + bytes(12))[:num_bytes]
    with pytest.raises(CorruptionError, match=rf"a\.crc has {num_bytes} bytes.* 6 blocks take 28") as caught:
        parse_side_file(resized, file_seed=SEED, num_blocks=6, path="a.crc")
    assert (caught.value.path, caught.value.expected, caught.value.found) == ("a.crc", 28, num_bytes)


@pytest.mark.parametrize("file_seed", [-1, 2**32])
def test_a_seed_outside_32_bits_is_refused(file_seed: int) -> None:
    with pytest.raises(ValueError, match="file_seed"):
        BlockChecksums(file_seed=file_seed)
    with pytest.raises(ValueError, match="file_seed"):
        parse_side_file(bytes(4), file_seed=file_seed, num_blocks=0, path="a.crc")
