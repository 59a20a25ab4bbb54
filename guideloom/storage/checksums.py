"""The side file of a stream file: a CRC32C for each of its blocks, in a table that is checksummed itself."""

import numpy as np

from guideloom._speedups.crc32c import block_checksum, block_checksums, crc32c
from guideloom._typing import AnyArray, UInt8Array, UInt32Array
from guideloom.errors import CorruptionError

BLOCK_BYTES = 4096

_CHECKSUM_BYTES = 4
TABLE_BLOCK = 2**64 - 1  # the number under which the table is checksummed; no block of a file has it


class BlockChecksums:
    """Checksum a file, block by block, as its bytes are written.

    The checksum of a block is the CRC32C of `file_seed` as 4 bytes, of the block's number as 8 bytes, both
    little-endian, and of the block's bytes. It tells of changed bytes, and of blocks that stand in another place or
    come from another file.

    Parameters
    ----------
    file_seed : int
        32 bits of the random id of the file.

    Raises
    ------
    ValueError
        If `file_seed` lies outside 32 bits.

    References
    ----------
    CRC32C: RFC 3720, section 12.1 and appendix B.4.
    """

    def __init__(self, *, file_seed: int) -> None:
        _check_file_seed(file_seed)
        self._file_seed = file_seed
        self._table = bytearray()  # of the finished blocks
        self._tail_bytes = 0  # of the unfinished block
        self._tail_checksum = 0

    def update(self, data: bytes | bytearray | memoryview | AnyArray) -> None:
        """Take the next bytes of the file.

        Parameters
        ----------
        data : C-contiguous buffer
            Any number of bytes, of any element type.

        Raises
        ------
        BufferError or ValueError
            If `data` is not C-contiguous; the owner of the buffer chooses which.
        """
        piece = np.frombuffer(data, np.uint8)
        if self._tail_bytes:
            missing_bytes = BLOCK_BYTES - self._tail_bytes
            self._extend_tail(piece[:missing_bytes])
            piece = piece[missing_bytes:]
        whole_bytes = len(piece) - len(piece) % BLOCK_BYTES
        self._append_blocks(piece[:whole_bytes])
        self._extend_tail(piece[whole_bytes:])

    def finish(self) -> bytes:
        """Return the side file for the bytes so far.

        Returns
        -------
        bytes
            Little-endian uint32: one for each block, of which the last may be short, and one for the table of these,
            checksummed as block ``2**64 - 1`` of the file.
        """
        table = bytes(self._table)
        if self._tail_bytes:
            table += _encoded(self._tail_checksum)
        return table + _encoded(block_checksum(table, file_seed=self._file_seed, block=TABLE_BLOCK))

    def _append_blocks(self, blocks: UInt8Array) -> None:
        checksums = np.empty(len(blocks) // BLOCK_BYTES, np.uint32)
        block_checksums(
            blocks,
            file_seed=self._file_seed,
            first_block=len(self._table) // _CHECKSUM_BYTES,
            block_bytes=BLOCK_BYTES,
            out=checksums,
        )
        self._table += checksums.astype("<u4", copy=False).tobytes()

    def _extend_tail(self, piece: UInt8Array) -> None:
        if not len(piece):
            return
        if not self._tail_bytes:
            block = len(self._table) // _CHECKSUM_BYTES
            self._tail_checksum = block_checksum(b"", file_seed=self._file_seed, block=block)
        self._tail_checksum = crc32c(piece, self._tail_checksum)
        self._tail_bytes += len(piece)
        if self._tail_bytes == BLOCK_BYTES:
            self._table += _encoded(self._tail_checksum)
            self._tail_bytes = 0


def parse_side_file(data: bytes, *, file_seed: int, num_blocks: int, path: str) -> UInt32Array:
    """Return the checksums in a side file, once it has been found whole and of this file.

    Parameters
    ----------
    data : bytes
        The whole side file, as `BlockChecksums.finish` made it.
    file_seed : int
        32 bits of the random id of the file that the checksums are of.
    num_blocks : int
        Blocks in that file, a short last one included.
    path : str
        Name of the side file, for messages.

    Returns
    -------
    uint32 array of shape (num_blocks,)
        A read-only view of `data` where the machine is little-endian.

    Raises
    ------
    CorruptionError
        If the side file has another length than `num_blocks` need, or if its table does not match its own checksum.
    ValueError
        If `file_seed` lies outside 32 bits.
    """
    _check_file_seed(file_seed)
    expected_bytes = (num_blocks + 1) * _CHECKSUM_BYTES
    if len(data) != expected_bytes:
        raise CorruptionError(
            f"{path} has {len(data)} bytes, but the checksums of {num_blocks} blocks take {expected_bytes}: "
            "it was cut, extended or mistaken for another. Restore it from a copy of the dataset.",
            path=path,
            offset=0,
            length=len(data),
            expected=expected_bytes,
            found=len(data),
        )
    table = memoryview(data)[:-_CHECKSUM_BYTES]
    expected = int.from_bytes(data[-_CHECKSUM_BYTES:], "little")
    found = block_checksum(table, file_seed=file_seed, block=TABLE_BLOCK)
    if found != expected:
        raise CorruptionError(
            f"{path}: the checksum of its {len(table)} bytes of table is {found:#010x}, but {expected:#010x} is "
            "stored: it was changed, or belongs to another file. Restore it from a copy of the dataset.",
            path=path,
            offset=0,
            length=len(table),
            expected=expected,
            found=found,
        )
    return np.frombuffer(table, "<u4").astype(np.uint32, copy=False)


def _check_file_seed(file_seed: int) -> None:
    if not 0 <= file_seed < 2**32:
        raise ValueError(f"file_seed is {file_seed}, outside 0 .. 2**32 - 1")


def _encoded(checksum: int) -> bytes:
    return checksum.to_bytes(_CHECKSUM_BYTES, "little")
