"""Compression of one document at a time, within bounds that are known before anything is decompressed."""

from __future__ import annotations

import importlib.util
from typing import Protocol

from guideloom.formats.encoding import BytesLike


class Codec(Protocol):
    """Compresses documents, and decompresses them to a size known before."""

    def compress(self, data: BytesLike) -> bytes:
        """Return the compressed bytes, which say how many there were."""

    def decompress(self, data: memoryview, decoded_bytes: int) -> bytes:
        """Return the bytes of which `data` were made, `decoded_bytes` in number.

        Raises
        ------
        ValueError
            If `data` are damaged, or decompress to any other number of bytes; at most that many are allocated.
        """


class Zstd:
    """Zstandard frames that state their size. Not for several threads at a time.

    The size that a frame states is compared first, since the library allocates that, whatever the caller's limit; it
    then stops there.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("zstandard") is None:
            raise ImportError('documents with compression="zstd" need zstandard: pip install "guideloom[zstd]"')
        import zstandard

        self._stated = zstandard.frame_content_size
        self._error = zstandard.ZstdError
        self._compressor = zstandard.ZstdCompressor()
        self._decompressor = zstandard.ZstdDecompressor()

    def compress(self, data: BytesLike) -> bytes:
        """Return one frame."""
        return self._compressor.compress(data)

    def decompress(self, data: memoryview, decoded_bytes: int) -> bytes:
        """Return what one frame holds."""
        try:
            stated = self._stated(data)
            if stated != decoded_bytes:
                found = "no size" if stated < 0 else f"{stated} bytes"
                raise ValueError(f"the zstd frame states {found}, and the index {decoded_bytes}")
            decoded = self._decompressor.decompress(data, allow_extra_data=False)
        except self._error as error:
            raise ValueError(f"the zstd frame is damaged: {error}") from error
        if len(decoded) != decoded_bytes:
            raise ValueError(f"the zstd frame holds {len(decoded)} bytes, and states {decoded_bytes}")
        return decoded


def codec(compression: str | None) -> Codec | None:
    """Return what a manifest's ``compression`` names; none for ``None``.

    Raises
    ------
    ImportError
        If the package for it is not installed.
    """
    return None if compression is None else Zstd()
