"""The manifest of a dataset: what it holds, in which files, and the fingerprint of its content."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol, Self, TypeVar

import msgspec

from guideloom.errors import ManifestError, UnsafePathError
from guideloom.storage.names import DATA_SUFFIX, SHARD_SUFFIX, check_name
from guideloom.storage.records import MAX_COUNT, MAX_MANIFEST_BYTES, MAX_REASON, ManifestRecord, encode_record

MANIFEST_NAME = "guideloom.json"

# A manifest that cannot be read is read again after so long, until it no longer changes: on some network file systems
# a file that was just replaced has the old one's length for some milliseconds.
REREAD_SECONDS = 0.05

SNAPSHOTS_FOLDER = "snapshots"

_HEXADECIMAL = re.compile("[0-9a-f]*")


class Shard(Protocol):
    """What merging needs to know of a shard, whatever it holds."""

    @property
    def number(self) -> int:
        """Place of the shard in the dataset, from 0."""

    @property
    def content(self) -> tuple[object, ...]:
        """What is equal for two shards that hold the same, whoever wrote them."""

    @property
    def first_file(self) -> str:
        """Name of its first file; the shard's own manifest is named after that."""

    def describe(self) -> str:
        """Return what it holds, for messages."""


ShardT = TypeVar("ShardT", bound=Shard)


class Manifest(ABC):
    """One snapshot of a dataset, of some kind. It checks itself on creation, so that each number in it fits the others.

    Attributes
    ----------
    kind : str
        What the dataset holds.
    shards : tuple
        In the order of their numbers.
    snapshot : int
        Number of the snapshot; 0 is a dataset that nothing was committed to.
    metadata : dict
        The user's own, plain JSON.
    fingerprint : str
        ``"sha256:"`` and the hash of what the data mean and their content. Names, seeds, snapshot and metadata are not
        in it.
    """

    __slots__ = ()

    kind: ClassVar[str]
    shards: tuple[Any, ...]
    snapshot: int
    metadata: dict[str, Any]
    fingerprint: str

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of the data in all shards."""

    @property
    def layer_names(self) -> tuple[str, ...]:
        """The annotation layers, in the order in which they were added."""
        return ()

    @property
    @abstractmethod
    def record(self) -> ManifestRecord:
        """The manifest as ``guideloom.json`` writes it."""

    @abstractmethod
    def with_shards(self, shards: tuple[Any, ...]) -> Self:
        """Return the next snapshot, with these shards."""

    @abstractmethod
    def files_of(self, shard: Any) -> list[tuple[str, int]]:
        """Return the names of all files of one of the shards, with their sizes."""

    def keeps(self, earlier: "Manifest") -> bool:
        """Whether this snapshot has all that an earlier one of the dataset has."""
        return earlier.metadata == self.metadata and set(earlier.shards) <= set(self.shards)

    def shard_manifests_of(self, shard: Any) -> list[str]:
        """Return the names that the manifests of one of the shards have, if they are still there."""
        return [shard_manifest_name(shard)]

    @abstractmethod
    def read_shard(self, data: bytes, *, path: str) -> tuple[Any, list[tuple[str, int]]]:
        """Return the shard that a shard manifest describes, and its files with their sizes.

        Parameters
        ----------
        data : bytes
            The shard manifest.
        path : str
            Its name within the dataset, ``shards/…``; it is held against what it says.

        Raises
        ------
        ManifestError
            If it is none, or not as a writer makes it, so that it could claim other files.
        ShardError
            If its data mean something else than those of this dataset.
        """


def snapshot_name(snapshot: int) -> str:
    """Return the name of a snapshot's manifest, relative to the dataset."""
    return f"{SNAPSHOTS_FOLDER}/{snapshot}/{MANIFEST_NAME}"


def shard_manifest_name(shard: Shard) -> str:
    """Return the name of a shard's own manifest, relative to the dataset."""
    return shard.first_file.removesuffix(DATA_SUFFIX) + SHARD_SUFFIX


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as ``guideloom.json`` holds it.

    Raises
    ------
    ManifestError
        If it is longer than 64 MiB.
    """
    data = encode_record(manifest.record)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestError(
            f"the manifest of {len(manifest.shards)} shards takes {len(data)} bytes, more than {MAX_MANIFEST_BYTES}; "
            "write fewer, larger shards"
        )
    return data


def check_snapshot(snapshot: int) -> None:
    """Raise `ManifestError` unless a number is one of a snapshot."""
    if not 0 <= snapshot <= MAX_COUNT:
        raise ManifestError(f"snapshot is {snapshot}, which is no number of a snapshot")


def check_numbers(shards: Iterable[Shard]) -> None:
    """Raise `ManifestError` unless the numbers of shards increase."""
    previous = -1
    for index, shard in enumerate(shards):
        if shard.number <= previous:
            raise ManifestError(f"shards[{index}].number is {shard.number}, after {previous}; numbers must increase")
        previous = shard.number


def check_names(names: Iterable[str], *, place: str) -> None:
    """Raise `UnsafePathError`, naming the place, if a name could lead out of the dataset."""
    for name in names:
        try:
            check_name(name)
        except UnsafePathError as error:
            raise UnsafePathError(f"{place}: {error}", **error.details) from error


def check_hashes(hashes: list[str]) -> None:
    """Raise `ManifestError` unless each is a SHA-256 in hexadecimal."""
    if _HEXADECIMAL.fullmatch("".join(hashes)) and all(len(digest) == 64 for digest in hashes):
        return
    bad = next(digest for digest in hashes if len(digest) != 64 or not _HEXADECIMAL.fullmatch(digest))
    raise ManifestError(f"{bad!r} is not a SHA-256 in lower-case hexadecimal")


def quoted(name: str) -> str:
    """Return a text as JSON, for the fingerprint."""
    return msgspec.json.encode(name).decode()


def translated(error: Exception, path: str) -> Exception:
    """Return what a manifest's contradiction is raised as: an error that names the manifest."""
    if isinstance(error, UnsafePathError):
        return UnsafePathError(f"{path}: {error}", path=path, **error.details)
    return ManifestError(f"{path}: {str(error)[:MAX_REASON]}", path=path)
