"""Hold every file of a dataset against its manifest: by existence and size, or byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from guideloom.backends.base import HasSizes, ReadBackend, ReadsHere
from guideloom.errors import BackendError, GuideLoomError, MissingFileError, RangesError, ShortReadError
from guideloom.ranges import ByteRanges
from guideloom.storage.content import Chunk, Content, DataFile, data_files
from guideloom.storage.document_content import DocumentFileContent
from guideloom.storage.document_manifest import DocumentManifest
from guideloom.storage.kinds import load_manifest
from guideloom.storage.layer_content import LayerContent, LayerShard, Reads, layer_shards
from guideloom.storage.layer_manifest import layer_files, layer_shard_name, layer_shard_record
from guideloom.storage.manifest import (
    MANIFEST_NAME,
    SNAPSHOTS_FOLDER,
    Manifest,
    Shard,
    shard_manifest_name,
    snapshot_name,
)
from guideloom.storage.names import SNAPSHOT
from guideloom.storage.pinning import check_fingerprint
from guideloom.storage.records import MAX_MANIFEST_BYTES, LayerShardRecord, decode_record
from guideloom.storage.stream_manifest import StreamManifest
from guideloom.storage.verification import MOST_DAMAGES, Damage, Mode, Verification

Progress: TypeAlias = Callable[[int, int], object]
Advance: TypeAlias = Callable[[int], object]
_Place: TypeAlias = tuple[int, str | None]  # number of a shard, and the layer
_Failure: TypeAlias = tuple[str, int, int, Exception]  # what could not be read: name, offset and length

# What a thread reads is hashed while its processor's cache holds it; what is fetched should be worth the hop.
_BLOCKS_HERE = 64
_BLOCKS_FETCHED = 512
_BYTES_PER_MOVE = 4 * 1024 * 1024
_MOST_WORKERS = 16
_PIECE_BYTES = 2 * 1024 * 1024  # of documents

_SNAPSHOT = re.compile(rf"{SNAPSHOTS_FOLDER}/({SNAPSHOT.pattern})/{re.escape(MANIFEST_NAME)}", re.ASCII)


class Verifier:
    """Checks one dataset through one open backend.

    Parameters
    ----------
    backend : ReadBackend
        An open backend.
    mode : {"full", "quick"}
        Every byte, or existence and sizes.
    progress : callable
        Given the bytes done and those to do, now and then; in quick mode the files.
    """

    def __init__(self, backend: ReadBackend, mode: Mode, progress: Progress) -> None:
        self._backend = backend
        self._mode = mode
        self._progress = progress
        self._damages: list[Damage] = []
        self._num_damages = 0
        self._num_bytes = 0
        self._done = 0
        self._stopped = False

    async def run(
        self, snapshot: int | None = None, names: Sequence[str] = (), *, expect: str | None = None, location: str = ""
    ) -> Verification:
        """Check one snapshot and, of a folder whose files are known, all the others.

        Parameters
        ----------
        snapshot : int, optional
            Its number; the newest by default.
        names : sequence of str
            All files of the folder, if they could be listed.
        expect : str, optional
            The fingerprint that it must have.
        location : str
            Of the dataset, for messages.

        Raises
        ------
        MissingFileError
            If there is no such snapshot.
        FingerprintMismatchError
            If it has another fingerprint.
        """
        path = MANIFEST_NAME if snapshot is None else snapshot_name(snapshot)
        try:
            main = await self._manifest(path, must_exist=True)
        except MissingFileError as error:
            raise MissingFileError(f"there is no dataset at {location}: it has no {path}", path=path) from error
        manifests = {} if main is None else {path: main}
        if main is not None:
            check_fingerprint(main, expect, location)
        if main is not None and snapshot is None:
            await self._compare_copy(main)
        for name in names:
            if name not in manifests and _SNAPSHOT.fullmatch(name) and (other := await self._manifest(name)):
                manifests[name] = other
        self._compare_snapshots(manifests)
        sizes: dict[tuple[str, int], _Place] = {
            file: (shard.number, None)
            for manifest in manifests.values()
            for shard in manifest.shards
            for file in manifest.files_of(shard)
        }
        streams = [each for each in manifests.values() if isinstance(each, StreamManifest)]
        layers = layer_shards(streams)
        for part in layers:
            for file in layer_files(part.entry, part.shard.rows):
                sizes[file] = (part.shard.number, part.layer.name)
        documents = _document_files(each for each in manifests.values() if isinstance(each, DocumentManifest))
        await self._check(sizes, data_files(streams), layers, documents)
        known = {MANIFEST_NAME, *manifests, *(path for path, _ in sizes)}
        extra = set(names) - known - await self._check_shard_manifests(manifests.values(), names)
        extra -= await self._check_layer_manifests(layers, names)
        return Verification(
            self._mode,
            None if main is None else main.snapshot,
            None if main is None else main.fingerprint,
            len(known),
            self._num_bytes,
            tuple(sorted(self._damages, key=lambda damage: (damage.path, damage.offset or 0))),
            self._num_damages,
            tuple(sorted(extra)),
        )

    def _report(self, damage: Damage) -> None:
        self._num_damages += 1
        if len(self._damages) < MOST_DAMAGES:
            self._damages.append(damage)

    async def _manifest(self, path: str, *, must_exist: bool = False) -> Manifest | None:
        try:
            manifest = load_manifest(await self._backend.read_file(path, max_bytes=MAX_MANIFEST_BYTES), path=path)
        except MissingFileError:
            if must_exist:
                raise
            return None
        except GuideLoomError as error:
            self._report(Damage(path, str(error).removeprefix(f"{path}: ")))
            return None
        if path not in (MANIFEST_NAME, snapshot_name(manifest.snapshot)):
            self._report(Damage(path, f"it is the manifest of snapshot {manifest.snapshot}"))
        return manifest

    async def _compare_copy(self, manifest: Manifest) -> None:
        """Hold ``guideloom.json`` against its snapshot's, since the fingerprint covers neither names nor metadata."""
        path = snapshot_name(manifest.snapshot)
        copy = await self._manifest(path)
        if copy is not None and copy != manifest:
            self._report(Damage(path, f"it differs from {MANIFEST_NAME}, which is a copy of it"))

    def _compare_snapshots(self, manifests: Mapping[str, Manifest]) -> None:
        """See that each snapshot kept what the one before it had."""
        newest = max(manifests.values(), key=lambda manifest: manifest.snapshot, default=None)
        for path, manifest in manifests.items():
            if newest is None or not newest.keeps(manifest):
                self._report(Damage(path, "its metadata, shards or layers are not those of the later snapshots"))

    async def _check_shard_manifests(self, manifests: Iterable[Manifest], names: Iterable[str]) -> set[str]:
        """Return the names of the manifests of committed shards, having held each against what was committed."""
        committed: dict[str, tuple[Manifest, Shard]] = {}
        for manifest in sorted(
            manifests, key=lambda manifest: -manifest.snapshot
        ):  # the one that took it in comes last
            for shard in manifest.shards:
                committed[shard_manifest_name(shard)] = (manifest, shard)
        present = committed.keys() & set(names)
        for path in present if self._mode == "full" else ():
            manifest, shard = committed[path]
            try:
                data = await self._backend.read_file(path, max_bytes=MAX_MANIFEST_BYTES)
                if manifest.read_shard(data, path=path)[0] != shard:
                    self._report(Damage(path, "it differs from what was committed", shard.number))
            except GuideLoomError as error:
                self._report(Damage(path, str(error).removeprefix(f"{path}: "), shard.number))
        return present

    async def _check_layer_manifests(self, layers: Iterable[LayerShard], names: Iterable[str]) -> set[str]:
        """Return the names of the manifests of committed layers, having held each against what was committed."""
        committed = {layer_shard_name(part.entry): part for part in layers}
        present = committed.keys() & set(names)
        for path in present if self._mode == "full" else ():
            part = committed[path]
            number, layer = part.shard.number, part.layer.name
            try:
                data = await self._backend.read_file(path, max_bytes=MAX_MANIFEST_BYTES)
                expected = layer_shard_record(part.layer, part.shard, part.entry)
                if decode_record(data, LayerShardRecord, path=path) != expected:
                    self._report(Damage(path, "it differs from what was committed", number, layer=layer))
            except GuideLoomError as error:
                self._report(Damage(path, str(error).removeprefix(f"{path}: "), number, layer=layer))
        return present

    async def _check(
        self,
        sizes: Mapping[tuple[str, int], _Place],
        files: Sequence[DataFile],
        layers: Sequence[LayerShard],
        documents: Sequence[tuple[DocumentFileContent, int]],
    ) -> None:
        """Check the size of each file, which comes with its shard, and then the content."""
        total = sum(file.num_bytes for file in files) + sum(content.file.bytes for content, _ in documents)
        total += sum(part.num_bytes for part in layers)
        if self._mode == "quick":
            files, layers, documents, total = [], [], [], len(sizes)
        coming_sizes, coming_files = iter(sizes.items()), iter(files)
        coming_layers, coming_documents = iter(layers), iter(documents)
        cpus = os.cpu_count() or 1
        threads = ThreadPoolExecutor(cpus, "guideloom-verify")
        here = isinstance(self._backend, ReadsHere)

        def advance(count: int) -> None:
            self._done += count
            self._progress(self._done, total)

        async def work() -> None:
            for (path, num_bytes), place in coming_sizes:
                await self._check_size(path, num_bytes, place)
                if self._mode == "quick":
                    advance(1)
            chunk = Chunk(_BLOCKS_HERE if here else _BLOCKS_FETCHED)
            scan = self._scan_here if here else self._fetch
            for file in coming_files:
                content = Content(file)
                await scan(file, content, chunk, threads, advance)
                for damage in content.finish():
                    self._report(damage)
            for part in coming_layers:
                content = Content(part.spans_file)
                await scan(part.spans_file, content, chunk, threads, advance)
                await self._check_layer(part, content, threads, advance)
            for document_file, piece_bytes in coming_documents:
                await self._fetch_documents(document_file, piece_bytes, threads, advance)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_MOST_WORKERS, 2 * cpus, len(sizes))):
                    group.create_task(work())
        except* Exception as errors:
            raise errors.exceptions[0] from None
        finally:
            self._stopped = True
            threads.shutdown(wait=False, cancel_futures=True)

    async def _check_size(self, path: str, num_bytes: int, place: _Place) -> None:
        shard, layer = place
        try:
            found = await self._size(path, num_bytes)
        except BackendError as error:
            missing = isinstance(error, MissingFileError)
            self._report(Damage(path, "it is missing" if missing else str(error), shard, layer=layer))
            return
        if found is None:
            reason = f"it has another size than the {num_bytes} bytes of the manifest"
            self._report(Damage(path, reason, shard, layer=layer))
        elif found != num_bytes:
            reason = "it was cut" if found < num_bytes else "bytes were appended"
            reason = f"{reason}: its size is wrong"
            self._report(Damage(path, reason, shard, expected=num_bytes, found=found, layer=layer))

    async def _size(self, path: str, expected: int) -> int | None:
        """Return the size of a file, or None if it is another than expected and cannot be told."""
        if isinstance(self._backend, HasSizes):
            return await self._backend.size(path)
        last = max(expected - 1, 0)
        ranges = ByteRanges.of([(path, last, expected - last), (path, expected, 1)])
        failures = await self._read(ranges, [memoryview(bytearray(expected - last)), memoryview(bytearray(1))])
        if 0 in failures and not isinstance(failures[0], ShortReadError):
            raise failures[0]
        return expected if 0 not in failures and isinstance(failures.get(1), ShortReadError) else None

    async def _fetch(
        self, file: DataFile, content: Content, chunk: Chunk, threads: ThreadPoolExecutor, advance: Advance
    ) -> None:
        """Read a file through the backend, and hash it on a thread."""
        loop = asyncio.get_running_loop()
        for first in range(0, max(file.num_blocks, 1), chunk.most_blocks):
            places = chunk.place(file, first)
            ranges = ByteRanges.of([(path, offset, len(buffer)) for path, offset, buffer in places])
            failures = await self._read(ranges, [buffer for _, _, buffer in places])
            await loop.run_in_executor(threads, content.add, chunk, failures)
            self._num_bytes += chunk.data.nbytes
            advance(chunk.data.nbytes)

    async def _check_layer(
        self, part: LayerShard, blocks: Content, threads: ThreadPoolExecutor, advance: Advance
    ) -> None:
        """Check rows, index and payloads of a layer, whose blocks have been read, and report what is wrong with all.

        Rows are not looked at where blocks of them are damaged.
        """
        loop, content = asyncio.get_running_loop(), LayerContent(part)
        with_rows = not blocks.has_wrong_blocks
        reads = content.read(with_rows=with_rows)
        number, layer = part.shard.number, part.layer.name
        found = []
        read_layer = self._scan_layer if isinstance(self._backend, ReadsHere) else self._fetch_layer
        for path, offset, length, error in await read_layer(reads, threads, advance):
            if not isinstance(error, (MissingFileError, ShortReadError)):  # which the size told
                found.append(Damage(path, str(error), number, offset, length, layer=layer))
        found += await loop.run_in_executor(threads, lambda: [*content.finish(with_rows=with_rows)])
        in_blocks = [*blocks.finish(is_proven=content.is_proven)]
        told = {damage.path for damage in in_blocks}  # block by block, which says more
        for damage in in_blocks + [damage for damage in found if damage.path not in told]:
            self._report(damage)

    async def _fetch_layer(self, reads: Reads, threads: ThreadPoolExecutor, advance: Advance) -> list[_Failure]:
        """Read what the check of a layer asks for through the backend, and let it check on a thread."""
        loop, failed = asyncio.get_running_loop(), []
        could_read: bool | None = None  # as a generator that has not begun takes it
        while (place := await loop.run_in_executor(threads, _send, reads, could_read)) is not None:
            path, offset, buffer = place
            failures = await self._read(ByteRanges.of([(path, offset, len(buffer))]), [buffer])
            failed += [(path, offset, len(buffer), error) for error in failures.values()]
            could_read = not failures
            if could_read:
                self._num_bytes += len(buffer)
                advance(len(buffer))
        return failed

    async def _scan_layer(self, reads: Reads, threads: ThreadPoolExecutor, advance: Advance) -> list[_Failure]:
        """Read and check a layer on one thread."""
        assert isinstance(self._backend, ReadsHere)
        loop, backend = asyncio.get_running_loop(), self._backend

        def scan() -> tuple[int, list[_Failure]]:
            failed: list[_Failure] = []
            moved = total = 0
            could_read: bool | None = None
            while not self._stopped and (place := _send(reads, could_read)) is not None:
                path, offset, buffer = place
                try:
                    backend.read_here(path, offset, buffer)
                    could_read = True
                    moved += len(buffer)
                except BackendError as error:
                    failed.append((path, offset, len(buffer), error))
                    could_read = False
                if moved >= _BYTES_PER_MOVE:
                    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                        loop.call_soon_threadsafe(advance, moved)
                    total, moved = total + moved, 0
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(advance, moved)
            return total + moved, failed

        num_bytes, failed = await loop.run_in_executor(threads, scan)
        self._num_bytes += num_bytes
        return failed

    async def _fetch_documents(
        self, content: DocumentFileContent, piece_bytes: int, threads: ThreadPoolExecutor, advance: Advance
    ) -> None:
        """Read a file of documents through the backend, and hash it on a thread."""
        loop, file = asyncio.get_running_loop(), content.file
        buffer = bytearray(min(piece_bytes, file.bytes))
        for offset in range(0, file.bytes, piece_bytes):
            piece = memoryview(buffer)[: min(piece_bytes, file.bytes - offset)]
            failures = await self._read(ByteRanges.of([(file.file, offset, len(piece))]), [piece])
            if failures:
                if not isinstance(failures[0], (MissingFileError, ShortReadError)):  # which the size told
                    self._report(Damage(file.file, str(failures[0]), None, offset, len(piece)))
                return
            await loop.run_in_executor(threads, content.add, piece)
            self._num_bytes += len(piece)
            advance(len(piece))
        for damage in content.finish():
            self._report(damage)

    async def _scan_here(
        self, file: DataFile, content: Content, chunk: Chunk, threads: ThreadPoolExecutor, advance: Advance
    ) -> None:
        """Read and hash a file on one thread, in pieces that its processor's cache holds."""
        assert isinstance(self._backend, ReadsHere)
        loop, backend = asyncio.get_running_loop(), self._backend

        def scan() -> None:
            moved = 0
            for first in range(0, max(file.num_blocks, 1), chunk.most_blocks):
                if self._stopped:
                    return
                failures: dict[int, Exception] = {}
                for number, place in enumerate(chunk.place(file, first)):
                    try:
                        backend.read_here(*place)
                    except BackendError as error:
                        failures[number] = error
                content.add(chunk, failures)
                moved += chunk.data.nbytes
                if moved >= _BYTES_PER_MOVE or chunk.is_last:
                    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                        loop.call_soon_threadsafe(advance, moved)
                    moved = 0

        await loop.run_in_executor(threads, scan)
        self._num_bytes += file.num_bytes

    async def _read(self, ranges: ByteRanges, buffers: Sequence[memoryview]) -> Mapping[int, Exception]:
        try:
            await self._backend.read_ranges(ranges, buffers)
        except RangesError as error:
            failures: Mapping[int, Exception] = error.failures
            return failures
        return {}


def _send(reads: Reads, could_read: bool | None) -> tuple[str, int, memoryview] | None:
    """Return what is to be read next, or None at the end: no future can carry a `StopIteration`."""
    try:
        return next(reads) if could_read is None else reads.send(could_read)
    except StopIteration:
        return None


def _document_files(manifests: Iterable[DocumentManifest]) -> list[tuple[DocumentFileContent, int]]:
    """Return the files of documents, each once, with the bytes to read at a time: whole rows of an index."""
    found: dict[str, tuple[DocumentFileContent, int]] = {}
    for manifest in manifests:
        row_bytes = manifest.index_dtype.itemsize
        for shard in manifest.shards:
            data, index = shard.data, shard.index
            found[data.file] = (DocumentFileContent(data, shard.number, 0), _PIECE_BYTES)
            rows = max(1, _PIECE_BYTES // row_bytes)
            found[index.file] = (DocumentFileContent(index, shard.number, row_bytes), rows * row_bytes)
    return list(found.values())
