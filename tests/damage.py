"""Datasets of every layout, written by the library, and every kind of damage to their files."""

from __future__ import annotations

import dataclasses
import itertools
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import guideloom as gl
from guideloom.storage.manifest import MANIFEST_NAME
from tests.streams import Files

BLOCK = 4096

# What became of which files: those not named are as they were, and those that are None are gone.
Damaged: TypeAlias = Mapping[str, bytes | None]


@dataclass(frozen=True)
class Layout:
    """How a dataset is written, and how all of it is read.

    Parameters
    ----------
    write : callable
        Given an empty folder, the bytes of data wanted, and a seed of the content.
    options : dict
        Of `open_dataset`.
    """

    write: Callable[[Path, int, int], None]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def files(self, num_bytes: int = 64 * 1024, seed: int = 1) -> Files:
        """Return all files of such a dataset, by name."""
        with tempfile.TemporaryDirectory() as folder:
            self.write(Path(folder), num_bytes, seed)
            return files_below(Path(folder))

    def open(self, location: Any) -> Any:
        """Open such a dataset."""
        return gl.open_dataset(location, **self.options)


def files_below(root: Path) -> Files:
    """Return all files of a folder, by name."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


async def read_all(dataset: Any) -> Any:
    """Return all that a dataset holds, as plain values that can be compared, or raise."""
    async with dataset.async_reader() as reader:
        return plain(await reader.read_batch(slice(None)))


def plain(value: Any) -> Any:
    """Return what a reader gave as values that can be compared."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, gl.Jagged):
        return plain(value.values), plain(value.offsets)
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if dataclasses.is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return value


def _write_tokens(root: Path, num_bytes: int, seed: int) -> None:
    _write_stream(root, np.random.default_rng(seed).integers(0, 50_000, num_bytes // 4, np.int32))


def _write_rows(root: Path, num_bytes: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = np.zeros(num_bytes // 7, np.dtype([("tokens", "<u2"), ("mask", "u1"), ("concept", "<i4")]))
    for name in rows.dtype.names or ():
        rows[name] = generator.integers(0, 100, len(rows))
    _write_stream(root, rows)


def _write_stream(root: Path, rows: Any) -> None:
    """Shards of about half of the rows, none, one row, and the others; the last ends within a block."""
    storage = gl.StreamStorage.create(root, dtype=rows.dtype, metadata={"note": "hello"})
    half = len(rows) // 2 - 11
    _append(storage, np.split(rows, [half, half, half + 1]))


def _write_layers(root: Path, num_bytes: int, seed: int) -> None:
    """As a plain stream, with half of the bytes in spans: some overlap, some are empty, and so are some payloads."""
    generator = random.Random(seed)
    layers = {"concepts": gl.formats.NumpyArray("<i4"), "document": gl.formats.JSON()}
    storage = gl.StreamWithMetadataStorage.create(root, dtype="<i4", metadata={"note": "hello"}, layers=layers)
    rows = np.array(generator.choices(range(50_000), k=num_bytes // 8), "<i4")
    half = len(rows) // 2 - 11
    for number, part in enumerate(np.split(rows, [half, half, half + 1])):
        starts = sorted(generator.choices(range(len(part)), k=len(part) // 30)) if len(part) else []
        ends = [min(start + generator.choice([0, 20, 60]), len(part)) for start in starts]
        concepts = [
            (low, high, generator.choices(range(100), k=low % 8)) for low, high in zip(starts, ends, strict=True)
        ]
        with storage.writer(shard=number) as shard:
            shard.append(
                part, spans={"concepts": concepts, "document": [(low, high, {"id": low}) for low, high, _ in concepts]}
            )
        if number == 1:
            storage.commit()
    storage.commit()


def _documents(encoding: Any, compression: Any = None) -> Layout:
    def write(root: Path, num_bytes: int, seed: int) -> None:
        storage = gl.DocumentStorage.create(
            root, encoding=encoding, compression=compression, metadata={"note": "hello"}
        )
        made = [_document(encoding, *drawn) for drawn in _lengths(num_bytes, seed)]
        half = len(made) // 2
        _append(storage, [made[:half], [], made[half : half + 1], made[half + 1 :]])

    return Layout(write)


def _lengths(num_bytes: int, seed: int) -> Iterator[tuple[int, random.Random]]:
    """Yield the bytes of documents, empty ones among them, until all are given out."""
    generator = random.Random(seed)
    scale = max(num_bytes // 2**16, 1) ** 0.5  # more, and longer ones
    while num_bytes > 0:
        length = min(int(scale * generator.choice([0, 1, 40, 400, 900])), num_bytes)
        yield length, generator
        num_bytes -= max(length, 8)


def _document(encoding: Any, num_bytes: int, generator: random.Random) -> Any:
    text = "".join(generator.choices("abcdefghij klmnop ", k=num_bytes))
    if isinstance(encoding, gl.formats.JSON):
        return {"text": text, "n": num_bytes}
    if isinstance(encoding, gl.formats.Text):
        return text
    if isinstance(encoding, gl.formats.NumpyArray):
        return np.frombuffer(text[: num_bytes // 4 * 4].encode(), "<i4")
    if isinstance(encoding, gl.formats.NumpyArrays):
        tokens = np.frombuffer(text[: num_bytes // 4 * 4].encode(), "<i4")
        return {"tokens": tokens, "mask": np.ones(num_bytes % 5, "u1")}
    raise TypeError(f"no documents for {encoding}")


def _append(storage: Any, shards: Iterable[Any]) -> None:
    """Write shards, in two commits, so that there is an earlier snapshot."""
    for number, values in enumerate(shards):
        with storage.writer(shard=number) as shard:
            if isinstance(values, list):
                shard.extend(values)
            else:
                shard.append(values)
        if number == 1:
            storage.commit()
    storage.commit()


LAYOUTS: dict[str, Layout] = {
    "stream": Layout(_write_tokens, {"window": 512}),
    "rows": Layout(_write_rows, {"window": 100}),
    "layers": Layout(_write_layers, {"window": 512, "layers": ["concepts", "document"]}),
    "json": _documents(gl.formats.JSON()),
    "text": _documents(gl.formats.Text()),
    "array": _documents(gl.formats.NumpyArray("<i4")),
    "arrays": _documents(gl.formats.NumpyArrays({"tokens": "<i4", "mask": "u1"})),
    "json-zstd": _documents(gl.formats.JSON(), "zstd"),
    "arrays-zstd": _documents(gl.formats.NumpyArrays({"tokens": "<i4", "mask": "u1"}), "zstd"),
}


def flipped(data: bytes, bit: int) -> bytes:
    """Return bytes with one bit changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def other_lengths(files: Files, step: int = 1) -> Iterator[Damaged]:
    """Yield each file cut to every length, or each of so many, lengthened, and gone."""
    for name, data in files.items():
        end = len(data) - name.endswith(".json")  # without its last line break, a manifest says the same
        lengths = {*range(0, end, step), max(end - 1, 0)} if end else ()
        yield from ({name: data[:length]} for length in sorted(lengths))
        yield from ({name: data + more} for more in (b"\0", b"\0" * BLOCK, data[:BLOCK] or b"x"))
        yield {name: None}


def zeroed(files: Files) -> Iterator[Damaged]:
    """Yield each file with one block, and with one sector, of zeros."""
    for name, data in files.items():
        for size in (BLOCK, 512):
            for start in range(0, len(data), size):
                end = min(start + size, len(data))
                if any(data[start:end]):
                    yield {name: data[:start] + bytes(end - start) + data[end:]}


def exchanged_blocks(files: Files) -> Iterator[Damaged]:
    """Yield each file with two of its blocks, and two of its sectors, in each other's place; and two files' blocks."""
    for name, data in files.items():
        for size in (BLOCK, 512):
            parts = [data[start : start + size] for start in range(0, len(data), size)]
            for i, k in itertools.combinations(range(len(parts)), 2):
                if parts[i] != parts[k]:
                    yield {name: b"".join([*parts[:i], parts[k], *parts[i + 1 : k], parts[i], *parts[k + 1 :]])}
    for (name, data), (other, theirs) in _pairs(files):
        for start in range(0, min(len(data), len(theirs)), BLOCK):
            mine, other_block = data[start : start + BLOCK], theirs[start : start + BLOCK]
            if len(mine) == len(other_block) and mine != other_block:
                yield {
                    name: data[:start] + other_block + data[start + BLOCK :],
                    other: theirs[:start] + mine + theirs[start + BLOCK :],
                }


def exchanged_files(files: Files) -> Iterator[Damaged]:
    """Yield each two files of one kind in each other's place."""
    for (name, data), (other, theirs) in _pairs(files):
        if data != theirs:
            yield {name: theirs, other: data}


def foreign_files(files: Files, others: Files) -> Iterator[Damaged]:
    """Yield files of another dataset under the names of this one: each alone, and all of a shard together."""
    mine, theirs = (
        sorted(
            (name for name in some if name.startswith("shards/")), key=lambda name: (shard_of(name), Path(name).suffix)
        )
        for some in (files, others)
    )
    together: dict[str, dict[str, bytes]] = {}
    for name, other in zip(mine, theirs, strict=True):
        assert Path(name).suffix == Path(other).suffix
        if files[name] != others[other]:
            yield {name: others[other]}
            together.setdefault(shard_of(name), {})[name] = others[other]
    yield from together.values()
    for name in files:
        if not name.startswith("shards/") and files[name] != others.get(name, files[name]):
            yield {name: others[name]}


def with_damage(files: Files, damage: Damaged) -> Files:
    """Return the files after some of them were damaged."""
    return {name: data for name, data in {**files, **damage}.items() if data is not None}


def is_read(name: str, files: Files) -> bool:
    """Whether a reader of the newest snapshot looks into a file: not into manifests of shards, nor empty shards."""
    if not name.startswith("shards/") or name.endswith(".json"):
        return name == MANIFEST_NAME
    rows = [files[other] for other in files if other.endswith(".bin") and shard_of(other) == shard_of(name)]
    return files[name] != b"" and any(rows)


def shard_of(name: str) -> str:
    """Return the number of the shard in the name of a file of it."""
    return name[len("shards/") :][:8]


def _pairs(files: Files) -> Iterator[tuple[tuple[str, bytes], tuple[str, bytes]]]:
    for one, two in itertools.combinations(files.items(), 2):
        if Path(one[0]).suffix == Path(two[0]).suffix:
            yield one, two
