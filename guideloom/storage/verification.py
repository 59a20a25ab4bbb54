"""What the check of a dataset found."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["full", "quick"]

MOST_DAMAGES = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as the manifest says.

    Parameters
    ----------
    path : str
        Name of the file, relative to the dataset.
    reason : str
        What is wrong with it.
    shard : int or None
        Number of the shard that the file is of.
    offset, length : int or None
        The bytes that are wrong, where they can be told.
    expected, found : int or str or None
        A size, a hash or a checksum.
    layer : str or None
        Name of the annotation layer that the file is of.
    """

    path: str
    reason: str
    shard: int | None = None
    offset: int | None = None
    length: int | None = None
    expected: int | str | None = None
    found: int | str | None = None
    layer: str | None = None

    def __str__(self) -> str:
        layer = "" if self.layer is None else f", layer {self.layer!r}"
        shard = "" if self.shard is None else f"shard {self.shard}{layer}: "
        where = "" if self.offset is None else f", {self.length} bytes at offset {self.offset}"
        differ = "" if self.expected is None else f" (expected {self.expected}, found {self.found})"
        return f"{shard}{self.path}{where}: {self.reason}{differ}"


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found.

    Parameters
    ----------
    mode : str
        ``"full"`` or ``"quick"``.
    snapshot : int or None
        Number of the snapshot; None if its manifest cannot be read.
    fingerprint : str or None
        Its fingerprint, which the bytes have been held against if `mode` is full and nothing is damaged.
    num_files, num_bytes : int
        Files looked at, and bytes read of them.
    damages : tuple of Damage
        The first 1,000.
    num_damages : int
        All of them.
    extra_files : tuple of str
        Files in the folder that no snapshot names; empty where the backend cannot list.
    """

    mode: Mode
    snapshot: int | None
    fingerprint: str | None
    num_files: int
    num_bytes: int
    damages: tuple[Damage, ...]
    num_damages: int
    extra_files: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return self.num_damages == 0
