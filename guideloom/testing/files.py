"""The files that a backend is tested with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from guideloom._typing import PathLike


def _files() -> dict[str, bytes]:
    random = np.random.default_rng(1)
    files = {
        "empty.bin": b"",
        "one.bin": b"\x07",
        "folder/some name #1.bin": bytes(range(256)) * 3,
        "größe.bin": random.bytes(70_001),
        "a%20b+c.bin": random.bytes(1000),
        "big.bin": random.bytes(3 * 2**20 + 1),
    }
    files.update({f"many/{i:03d}.bin": random.bytes(500 + i) for i in range(300)})
    return files


FILES: Mapping[str, bytes] = _files()
"""Contents by name: empty and small files, names that want quoting, one of 3 MiB, and some hundreds."""

LARGE_FILE = "large.bin"
LARGE_BYTES = 2**32 + 70_000
"""A file of zeros beyond 4 GiB, but for the bytes of ``LARGE_MARKS``; sparse, where the storage can."""

LARGE_MARKS = {0: b"begin", 2**31 - 3: b"middle", 2**32 - 4: b"boundary", LARGE_BYTES - 3: b"end"}


def write_files(root: PathLike, *, large: bool = False) -> Path:
    """Write what the suite reads below a folder.

    Parameters
    ----------
    root : str or path
        The folder.
    large : bool, default False
        Whether to write the file beyond 4 GiB too; it is sparse.

    Returns
    -------
    Path
        The folder.
    """
    root = Path(root)
    for name, data in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if large:
        with (root / LARGE_FILE).open("wb") as file:
            file.truncate(LARGE_BYTES)
            for offset, data in LARGE_MARKS.items():
                file.seek(offset)
                file.write(data)
    return root
