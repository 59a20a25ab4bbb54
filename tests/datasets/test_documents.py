"""Documents against lists of Python values: every encoding, any shards, every way to read."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import guideloom as gl
from guideloom.datasets import document_reader
from guideloom.errors import (
    BackendError,
    ConversionError,
    CorruptionError,
    DecodeError,
    ManifestError,
    MissingFileError,
    UnknownEncodingError,
)
from guideloom.formats.encoding import Encoding
from guideloom.formats.jagged import Jagged
from guideloom.storage import document_index, document_writer
from guideloom.storage.manifest import MANIFEST_NAME, encode_manifest
from guideloom.storage.records import Compression
from tests.datasets.opened import KINDS, OneMethod, backend_of
from tests.documents import document_files, forged, manifest_of, opened
from tests.strategies import element_types, prefetches, random_rows

COMPRESSIONS: list[Compression] = [None, "zstd"]


@dataclass(frozen=True)
class Corpus:
    """Random documents, and how they are encoded and cut into shards."""

    encoding: Encoding
    shards: list[list[Any]]
    compression: Compression

    @property
    def documents(self) -> list[Any]:
        """All of them, as samples of a reader."""
        return [self.sample(document) for shard in self.shards for document in shard]

    def sample(self, document: Any) -> Any:
        """What a reader makes of a document."""
        if isinstance(self.encoding, gl.formats.NumpyArray):
            return {"tokens": document}
        if isinstance(self.encoding, gl.formats.Rows):
            return {name: document[name] for name in document.dtype.names}
        return document


SIZES = st.sampled_from([0, 0, 1, 1, 2, 3, 7, 31, 127, 1100])
ROWS = np.dtype({"names": ["a", "b"], "formats": ["<u2", ("<f4", (2,))], "offsets": [1, 3], "itemsize": 13})


@st.composite
def corpora(draw: st.DrawFn) -> Corpus:
    """Corpora of up to five shards, of any encoding."""
    lengths = draw(st.lists(st.lists(SIZES, max_size=9), min_size=1, max_size=5))
    kind = draw(st.sampled_from(["bytes", "text", "json", "array", "arrays", "rows"]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    encoding: Encoding
    if kind == "array":
        dtype, shape = draw(element_types()), draw(st.sampled_from([(), (), (3,)]))
        encoding = gl.formats.NumpyArray(dtype, shape)

        def make(size: int) -> Any:
            return random_rows(np.dtype([("x", dtype, shape)]), size, int(generator.integers(99)))["x"]
    elif kind == "arrays":
        encoding = gl.formats.NumpyArrays({"a": "<i4", "b": "u1", "c": ("<f8", (2,))})

        def make(size: int) -> Any:
            others = [int(generator.integers(size + 1)) for _ in range(2)]
            return {
                "a": generator.integers(-(2**31), 2**31, size, np.int32),
                "b": generator.integers(0, 256, others[0], np.uint8),
                "c": generator.random((others[1], 2)),
            }
    elif kind == "rows":
        encoding = gl.formats.Rows(ROWS)

        def make(size: int) -> Any:
            return random_rows(ROWS, size, int(generator.integers(99)))
    else:
        general: dict[str, Encoding] = {
            "bytes": gl.formats.Bytes(),
            "text": gl.formats.Text(),
            "json": gl.formats.JSON(),
        }
        encoding = general[kind]

        def make(size: int) -> Any:
            data = generator.bytes(size)
            return data if kind == "bytes" else data.hex() if kind == "text" else {"data": list(data), "ü": None}

    shards = [[make(size) for size in shard] for shard in lengths]
    return Corpus(encoding, shards, draw(st.sampled_from(COMPRESSIONS)))


def same(found: Any, expected: Any) -> None:
    """Fail unless a sample is the expected one, dtypes aside."""
    if not isinstance(expected, dict) or not any(isinstance(part, np.ndarray) for part in expected.values()):
        assert found == expected
        return
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert isinstance(found[name], np.ndarray)
        np.testing.assert_array_equal(found[name], array)


def rows_of(batch: Any) -> list[Any]:
    """The samples of a batch, without the rows that only fill it."""
    if isinstance(batch, list):
        return batch
    count = int(batch.get("num_valid", len(next(iter(batch.values())))))
    fields = {name: field.rows() for name, field in batch.items() if isinstance(field, Jagged)}
    for rows in fields.values():
        assert all(len(row) == 0 for row in rows[count:])
    return [{name: rows[i] for name, rows in fields.items()} for i in range(count)]


@settings(max_examples=70)
@given(corpora(), st.data())
def test_every_way_to_read_gives_the_documents(corpus: Corpus, data: st.DataObject) -> None:
    expected = corpus.documents
    dataset = opened(document_files(corpus.shards, corpus.encoding, corpus.compression))
    assert len(dataset) == len(expected)
    with dataset.sync_reader() as reader:
        for found, document in zip(reader, expected, strict=True):
            same(found, document)
        if not expected:
            return
        indices = data.draw(st.lists(st.integers(-len(expected), len(expected) - 1), max_size=40))
        for found, i in zip(rows_of(reader.read_batch(indices)), indices, strict=True):
            same(found, expected[i])
        i = data.draw(st.integers(0, len(expected) - 1))
        same(reader[i], expected[i])
        for found, document in zip(rows_of(reader[i::2]), expected[i::2], strict=True):
            same(found, document)
        options: dict[str, Any] = {"shuffle": data.draw(st.booleans()), "seed": data.draw(st.integers(0, 9))}
        options |= {"batch_size": data.draw(st.integers(1, 9)), "prefetch": data.draw(prefetches())}
        world_size = data.draw(st.integers(1, 3))
        seen = []
        for rank in range(world_size):
            loader: gl.Loader[Any] = gl.Loader(dataset, rank=rank, world_size=world_size, **options)
            loader.set_epoch(3)
            steps = [loader.sample_ids(step).tolist() for step in range(len(loader))]
            batches = list(reader.batches(rank=rank, world_size=world_size, epoch=3, **options))
            assert len(batches) == len(loader)
            for batch, ids in zip(batches, steps, strict=True):
                for found, sample in zip(rows_of(batch), ids, strict=True):
                    same(found, expected[sample])
                seen += ids
            loader.close()
        assert sorted(seen) == list(range(len(expected)))


@settings(max_examples=40)
@given(corpora(), st.data())
def test_a_loader_resumes_at_any_step(corpus: Corpus, data: st.DataObject) -> None:
    dataset = opened(document_files(corpus.shards, corpus.encoding, corpus.compression))
    options: dict[str, Any] = {"shuffle": True, "seed": 4, "rank": 0, "world_size": 1}
    whole: gl.Loader[Any] = gl.Loader(dataset, 3, **options)
    unbroken = [rows_of(batch) for _ in range(2) for batch in whole]
    whole.close()
    stop = data.draw(st.integers(0, len(unbroken)))
    first: gl.Loader[Any] = gl.Loader(dataset, 3, **options)
    batches = (batch for _ in range(2) for batch in first)
    for expected in unbroken[:stop]:
        for found, document in zip(rows_of(next(batches)), expected, strict=True):
            same(found, document)
    state = first.state_dict()
    first.close()
    second: gl.Loader[Any] = gl.Loader(pickle.loads(pickle.dumps(dataset)), 3, **options)
    second.load_state_dict(state)
    batches = (batch for _ in range(2) for batch in second)
    for expected in unbroken[stop:]:
        for found, document in zip(rows_of(next(batches)), expected, strict=True):
            same(found, document)
    second.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most_bytes", [0, 2**30])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_backend_with_the_index_in_memory_and_without(
    kind: str, most_bytes: int, compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_index.DocumentIndex.__init__, "__defaults__", (most_bytes,))
    documents = [np.arange(i * i % 977, dtype="<i4") for i in range(300)]
    shards = [documents[:1], [], documents[1:200], documents[200:]]
    order = np.random.default_rng(1).permutation(300)
    with backend_of(kind, document_files(shards, gl.formats.NumpyArray("<i4"), compression)) as backend:
        dataset = gl.open_dataset(backend, fields={"tokens": "int64"})
        with dataset.sync_reader() as reader:
            for _ in range(2):
                batch = reader.read_batch(order)
                for i, row in zip(order.tolist(), rows_of(batch), strict=True):
                    assert row["tokens"].dtype == np.int64
                    np.testing.assert_array_equal(row["tokens"], documents[i])


def test_an_index_out_of_memory_takes_one_call_for_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_index.DocumentIndex.__init__, "__defaults__", (0,))
    calls = []

    class Counting(gl.MemoryBackend):
        async def read_ranges(self, ranges: gl.ByteRanges, buffers: Sequence[memoryview]) -> None:
            calls.append(len(ranges))
            await super().read_ranges(ranges, buffers)

    files = document_files([[b"x" * i for i in range(100)]], gl.formats.Bytes())
    dataset = gl.open_dataset(Counting(files))
    with dataset.sync_reader() as reader:
        assert [len(value) for value in reader.read_batch(slice(10, 74))] == list(range(10, 74))
    assert calls == [64, 64]


def test_batches_own_their_memory_and_are_writable() -> None:
    dataset = opened(document_files([[np.arange(5), np.arange(3)]], gl.formats.NumpyArray("<i8")))
    with dataset.sync_reader() as reader:
        batch = reader.read_batch([0, 1])
        assert isinstance(batch, dict)
        field = batch["tokens"]
        assert isinstance(field, Jagged)
        assert field.values.flags.owndata
        field.values[:] = -1
        assert reader[1]["tokens"].tolist() == [0, 1, 2]
        assert reader[0]["tokens"].flags.writeable


def test_an_encoding_that_is_not_registered_is_named_and_its_bytes_can_be_read() -> None:
    class Secret(gl.formats.Encoding):
        name = "tests.secret"

        def encode(self, value: Any) -> bytes:
            return bytes(value)[::-1]

        def decode(self, data: memoryview) -> bytes:
            return bytes(data)[::-1]

    files = document_files([[b"abc", b""]], Secret())
    with pytest.raises(UnknownEncodingError, match=r"'tests.secret'.*register.*encoding="):
        opened(files)
    with opened(files, encoding=gl.formats.Bytes()).sync_reader() as reader:
        assert list(reader) == [b"cba", b""]
    with opened(files, encoding=Secret()).sync_reader() as reader:
        assert reader[0] == b"abc"


def test_numeric_documents_can_be_read_as_bytes() -> None:
    files = document_files([[{"a": [1], "b": [2, 3]}]], gl.formats.NumpyArrays({"a": "<u2", "b": "u1"}))
    with opened(files, encoding=gl.formats.Bytes()).sync_reader() as reader:
        assert reader[0] == b"\1\0\0\0\1\0\2\3"


def test_arguments_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    files = document_files([[b"x"]], gl.formats.Bytes())
    for options in ({"window": 3}, {"stride": 3}, {"offset": 0}, {"verify": False}):
        with pytest.raises(ValueError, match=f"holds documents.*leave out {next(iter(options))}"):
            gl.open_dataset(gl.MemoryBackend(files), **options)
    with pytest.raises(ValueError, match="fields are those of numeric documents"):
        opened(files, fields=["tokens"])
    with pytest.raises(ManifestError, match="sections"):
        opened(files, encoding=gl.formats.NumpyArray("<i4"))
    gl.StreamStorage.create(tmp_path, dtype="<i4").commit()
    with pytest.raises(ValueError, match=r"is a stream.*say window="):
        gl.open_dataset(tmp_path)
    with pytest.raises(ValueError, match="leave out encoding"):
        gl.open_dataset(tmp_path, window=3, encoding=gl.formats.JSON())  # type: ignore[call-overload]


def test_a_value_that_does_not_fit_names_its_document() -> None:
    for encoding, value in (
        (gl.formats.NumpyArray("<i8"), lambda i: [i]),
        (gl.formats.NumpyArrays({"tokens": "<i8", "x": "u1"}), lambda i: {"tokens": [i], "x": []}),
    ):
        files = document_files([[value(1), value(300)]], encoding)
        with opened(files, fields={"tokens": "u1"}).sync_reader() as reader:
            assert reader[0]["tokens"].tolist() == [1]
            with pytest.raises(ConversionError, match=r"sample 1 .*'tokens' of document 1 .*does not fit uint8"):
                reader.read(1)


def test_a_document_that_cannot_be_decoded_costs_its_batch_alone() -> None:
    files = document_files([[{"a": 1}, {"b": 2}, {"c": 3}]], gl.formats.JSON())
    entry = manifest_of(files).shards[0]
    files = forged(files, 0, data=files[entry.data.file].replace(b'{"b":2}', b'{"b":2,'))
    with opened(files).sync_reader() as reader:
        assert reader[0] == {"a": 1}
        with pytest.raises(DecodeError, match=r"sample 1 .*document 1 of shards/.*cannot be decoded: DecodeError"):
            reader.read(1)
        assert reader[2] == {"c": 3}


def test_a_missing_file_is_named() -> None:
    files = document_files([[b"x"], [b"y"]], gl.formats.Bytes())
    entry = manifest_of(files).shards[1]
    for name in (entry.data.file, entry.index.file):
        with opened({key: value for key, value in files.items() if key != name}).sync_reader() as reader:
            assert reader[0] == b"x"
            with pytest.raises(MissingFileError, match=f"sample 1 .*{name} is missing"):
                reader.read(1)


def test_a_batch_too_large_is_refused_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_reader, "MOST_BATCH_BYTES", 100)
    with opened(document_files([[b"x" * 60] * 4], gl.formats.Bytes())).sync_reader() as reader:
        assert len(reader.read_batch([0])) == 1
        with pytest.raises(BackendError, match="would take 120 bytes, and at most 100"):
            reader.read_batch([0, 1])


def test_one_read_again_heals_a_transient_error(caplog: pytest.LogCaptureFixture) -> None:
    files = document_files([[b"alpha", b"beta"]], gl.formats.Bytes())
    entry = manifest_of(files).shards[0]
    for name in (entry.data.file, entry.index.file):

        class Flaky(OneMethod):
            async def read_range(self, path: str, offset: int, length: int, name: str = name) -> bytes:
                data = await super().read_range(path, offset, length)
                if path == name and not self.failed:
                    self.failed = True
                    return bytes([data[0] ^ 1]) + data[1:]
                return data

            failed = False

        caplog.clear()
        with gl.open_dataset(Flaky(files)).sync_reader() as reader:
            assert list(reader) == [b"alpha", b"beta"]
        assert [f"{name}: damaged bytes were read right" in record.message for record in caplog.records] == [True]


def test_a_shard_beyond_4_gib_is_ordinary(tmp_path: Path) -> None:
    """A sparse file: the first two documents are gigabytes of zeros; those that follow lie beyond 4 GiB."""
    documents = [b"bc", b"", b"def"]
    storage = gl.DocumentStorage.create(tmp_path, encoding=gl.formats.Bytes())
    storage.writer(shard=0).close()
    storage.commit()
    entry = storage.manifest.shards[0]
    rows = np.zeros(5, storage.manifest.index_dtype)
    rows["decoded_bytes"] = [2**31 - 1, 2**31 - 1, *map(len, documents)]
    rows["end"] = np.cumsum(rows["decoded_bytes"], dtype=np.uint64)
    with (tmp_path / entry.data.file).open("wb") as file:
        file.seek(int(rows["end"][1]))
        file.write(b"".join(documents))
    for number in range(5):
        place = number.to_bytes(8, "little")
        if number >= 2:
            seed = entry.data.checksum_seed.to_bytes(4, "little")
            rows["checksum"][number] = google_crc32c.value(seed + place + documents[number - 2])
        seed = entry.index.checksum_seed.to_bytes(4, "little")
        rows["row_checksum"][number] = google_crc32c.value(seed + place + rows[number].tobytes()[:-4])
    (tmp_path / entry.index.file).write_bytes(rows.tobytes())
    size = int(rows["end"][-1])
    data = msgspec.structs.replace(entry.data, bytes=size)
    index = msgspec.structs.replace(entry.index, bytes=rows.nbytes)
    shard = msgspec.structs.replace(entry, documents=5, decoded_bytes=size, data=data, index=index)
    manifest = dataclasses.replace(storage.manifest, shards=(shard,))
    (tmp_path / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    with gl.open_dataset(tmp_path).sync_reader() as reader:
        assert reader.read_batch([4, 2, 3, 4]) == [b"def", b"bc", b"", b"def"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"end": [3, 2, 10]}, "row 1"),
        ({"end": [2, 5, 11]}, "row 2"),
        ({"end": [2, 5, 2**64 - 1]}, "row 2"),
        ({"end": [2**63, 5, 10]}, "row 0"),
        ({"decoded_bytes": [2, 2**32 - 1, 5]}, "row 1"),
        ({"decoded_bytes": [0, 3, 5]}, "row 0"),
    ],
)
def test_an_index_that_contradicts_itself_is_an_error(columns: dict[str, Any], message: str) -> None:
    """Hostile rows whose checksums are right: no read, and no memory for what they claim."""
    files = forged(document_files([[b"ab", b"cde", b"fghij"]], gl.formats.Bytes()), 0, **columns)
    expected = [b"ab", b"cde", b"fghij"]
    failures = []
    with opened(files).sync_reader() as reader:
        for i in range(3):
            try:
                found = reader.read(i)
            except CorruptionError as error:
                failures.append(str(error))
            else:
                assert found == expected[i]
    assert any(message in failure for failure in failures)


@pytest.mark.parametrize("counts", [[[2, 0]], [[2**32 - 1, 2**32 - 1]], [[0, 2]], [[1, 5]], [[0, 9]]])
def test_counts_that_do_not_make_the_size_are_an_error(counts: list[list[int]]) -> None:
    files = document_files([[{"a": [7], "b": [1]}]], gl.formats.NumpyArrays({"a": "<i4", "b": "u1"}))
    with opened(forged(files, 0, counts=counts)).sync_reader() as reader, pytest.raises((CorruptionError, DecodeError)):
        reader.read(0)


def test_lengths_in_a_document_that_differ_from_the_index_are_an_error() -> None:
    files = document_files([[{"a": [7, 7], "b": [1]}]], gl.formats.NumpyArrays({"a": "<u2", "b": "u1"}))
    data = bytearray(files[manifest_of(files).shards[0].data.file])
    data[0] = 1
    with (
        opened(forged(files, 0, data=bytes(data))).sync_reader() as reader,
        pytest.raises(DecodeError, match="its lengths are not those of the index"),
    ):
        reader.read(0)


def test_a_zstd_bomb_is_an_error() -> None:
    """Frames that state another size than the index, no size at all, or hold more than they state."""
    import zstandard

    files = document_files([[b"x" * 1000]], gl.formats.Bytes(), "zstd")
    bomb = zstandard.ZstdCompressor().compress(b"\0" * 2**28)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"\0" * 2**28)
    small = zstandard.ZstdCompressor().compress(b"x" * 10)
    lying = bytearray(zstandard.ZstdCompressor().compress(b"y" * 200))
    assert zstandard.frame_content_size(bytes(lying)) == 200
    lying[5] = 100  # the content size that the frame states
    assert zstandard.frame_content_size(bytes(lying)) == 100
    frames = [(bomb, 1000), (unsized, 1000), (small + small, 10), (small[:-1], 10), (bytes(lying), 100), (b"", 0)]
    for frame, decoded_bytes in frames:
        hostile = forged(files, 0, data=frame, end=[len(frame)], decoded_bytes=[decoded_bytes])
        with opened(hostile).sync_reader() as reader, pytest.raises(DecodeError, match="zstd frame"):
            reader.read(0)


def test_async_readers_read_many_at_a_time() -> None:
    documents = [f"document {i}" for i in range(50)]
    dataset = opened(document_files([documents], gl.formats.Text()))

    async def main() -> list[Any]:
        async with dataset.async_reader() as reader:
            found = await asyncio.gather(*(reader.read(i) for i in range(50)))
            batches = [batch async for batch in reader.batches(8)]
            assert [value for batch in batches for value in batch] == found
            return found

    assert asyncio.run(main()) == documents


def test_bulk_and_single_appends_write_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_writer, "_BUFFER_BYTES", 64)
    generator = np.random.default_rng(3)
    values = [
        {"a": generator.integers(0, 99, n), "b": generator.random(m)}
        for n, m in generator.integers(0, 20, (60, 2)).tolist()
    ]
    encoding = gl.formats.NumpyArrays({"a": "<i4", "b": "<f4"})
    values = [{"a": value["a"], "b": value["b"].astype("<f4")} for value in values]
    jagged = {name: Jagged.of([value[name] for value in values]) for name in ("a", "b")}
    for compression in COMPRESSIONS:
        single = document_files([values], encoding, compression)
        bulk = document_files([jagged], encoding, compression)
        assert manifest_of(single).fingerprint == manifest_of(bulk).fingerprint
