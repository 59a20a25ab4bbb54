"""Layers on the disk: written with the stream or added later, by whoever, and never half."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import guideloom as gl
from guideloom.errors import ManifestError, ShardError
from guideloom.storage.layer_manifest import layer_files
from guideloom.storage.manifest import encode_manifest
from tests.datasets.test_layers import assert_spans
from tests.layers import LayeredStream, Span

ARRAY = gl.formats.NumpyArray("<i4")
LAYERS: dict[str, gl.formats.Encoding] = {"document": gl.formats.JSON(), "concepts": ARRAY}


def random_documents(seed: int) -> tuple[LayeredStream, list[list[tuple[int, dict[str, list[Span]]]]]]:
    """A stream of documents, and what to append of each shard: lengths, and spans from the document's start."""
    generator = random.Random(seed)
    lengths, appends = [], []
    spans: dict[str, list[list[Span]]] = {name: [] for name in LAYERS}
    for number in range(4):
        pieces: list[tuple[int, dict[str, list[Span]]]] = []
        for name in LAYERS:
            spans[name].append([])
        base = 0
        for document in range(generator.choice([0, 1, 5])):
            length = generator.choice([0, 1, 7, 300, 2500])
            starts = sorted(generator.randint(0, length) for _ in range(generator.choice([0, 3, 40])))
            found: list[Span] = [(low, generator.randint(low, length), [low, document]) for low in starts]
            piece: dict[str, list[Span]] = {
                "document": [(0, length, {"id": f"{number}-{document}"})],
                "concepts": found,
            }
            pieces.append((length, piece))
            for name, part in piece.items():
                spans[name][-1] += [(low + base, high + base, value) for low, high, value in part]
            base += length
        lengths.append(base)
        appends.append(pieces)
    return LayeredStream(lengths, dict(LAYERS), spans), appends


def check(path: Path, stream: LayeredStream, window: int = 64) -> None:
    """Read every window with its layers."""
    dataset = gl.open_dataset(path, window=window, layers=list(stream.spans))
    with dataset.sync_reader() as reader:
        batch = reader[:]
        begins = list(range(0, len(dataset) * window, window))
        assert batch["tokens"].reshape(-1).tolist() == list(range(len(dataset) * window))
        for name in stream.spans:
            assert_spans(batch[name], stream, name, begins, window)


def write_plain(path: Path, lengths: list[int]) -> gl.StreamStorage:
    """Write a stream without layers."""
    storage = gl.StreamStorage.create(path, dtype="<i4")
    add_shards(storage, lengths, first=0, start=0)
    storage.commit()
    return storage


def add_shards(storage: gl.StreamStorage, lengths: list[int], *, first: int, start: int) -> None:
    for number, length in enumerate(lengths, first):
        with storage.writer(shard=number) as writer:
            writer.append(np.arange(start, start + length))
        start += length


def add_layer(
    storage: gl.StreamStorage, stream: LayeredStream, name: str, encoding: gl.formats.Encoding | None = None
) -> gl.LayerStorage:
    layer = storage.add_layer(name, encoding or stream.encodings[name])
    for number, spans in enumerate(stream.spans[name]):
        with layer.writer(shard=number) as writer:
            for low in range(0, len(spans), 7):
                writer.append(spans[low : low + 7])
    return layer


@pytest.mark.parametrize("seed", range(4))
def test_layers_written_with_the_stream(tmp_path: Path, seed: int) -> None:
    stream, appends = random_documents(seed)
    storage = gl.StreamWithMetadataStorage.create(tmp_path / "a", dtype="<i4", layers=LAYERS)
    start = 0
    for number in (2, 0, 3, 1):
        start = sum(stream.lengths[:number])
        with storage.writer(shard=number) as writer:
            for length, spans in appends[number]:
                writer.append({"tokens": np.arange(start, start + length)}, spans=spans)
                start += length
    assert storage.commit() == 1
    check(tmp_path / "a", stream)
    manifest = gl.StreamStorage.open(tmp_path / "a").manifest
    for shard in manifest.shards:
        for entry in shard.layers:
            assert [(tmp_path / "a" / name).stat().st_size for name, _ in layer_files(entry, shard.rows)] == [
                size for _, size in layer_files(entry, shard.rows)
            ]
    # Added later, in other portions: the same content, and so the same fingerprint.
    other = write_plain(tmp_path / "b", stream.lengths)
    tokens = {name: (tmp_path / "b" / name).read_bytes() for name in files(tmp_path / "b") if "shards" in name}
    for name in LAYERS:
        add_layer(other, stream, name).commit()
    assert other.snapshot == 3
    check(tmp_path / "b", stream)
    assert other.manifest.fingerprint == manifest.fingerprint
    assert all((tmp_path / "b" / name).read_bytes() == data for name, data in tokens.items())


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_a_layer_leaves_readers_of_tokens_and_their_states_alone(tmp_path: Path) -> None:
    stream, _ = random_documents(1)
    storage = write_plain(tmp_path, stream.lengths)
    before = gl.open_dataset(tmp_path, window=32)
    loader = gl.Loader(before, batch_size=4, shuffle=True, seed=3)
    epoch = iter(loader)
    assert len(list(itertools.islice(epoch, 5))) == 5
    state = loader.state_dict()
    rest = [batch["tokens"].tolist() for batch in epoch]
    loader.close()
    add_layer(storage, stream, "concepts").commit()
    after = gl.open_dataset(tmp_path, window=32)
    assert after.manifest.snapshot == 2
    assert after.fingerprint == before.fingerprint != after.manifest.fingerprint
    assert gl.open_dataset(tmp_path, window=32, snapshot=1).manifest.layers == ()
    resumed = gl.Loader(after, batch_size=4, shuffle=True, seed=3)
    resumed.load_state_dict(state)
    assert [batch["tokens"].tolist() for batch in resumed] == rest
    resumed.close()
    with_layer = gl.Loader(
        gl.open_dataset(tmp_path, window=32, layers=["concepts"]), batch_size=4, shuffle=True, seed=3
    )
    with pytest.raises(gl.StateMismatchError, match="fingerprint"):
        with_layer.load_state_dict(state)
    with_layer.close()


def test_bulk_spans_are_those_of_a_list(tmp_path: Path) -> None:
    spans = [(start, start + 5, [start, start + 1][: start % 3]) for start in range(0, 90, 3)]
    flat = gl.FlatSpans(
        start=[span[0] for span in spans],
        end=np.array([span[1] for span in spans], np.uint16),
        values=[value for span in spans for value in span[2]],
        offsets=np.cumsum([0, *(len(span[2]) for span in spans)]),
    )
    found = []
    for name, given in (("list", spans), ("bulk", flat)):
        storage = gl.StreamWithMetadataStorage.create(tmp_path / name, dtype="<i4", layers={"concepts": ARRAY})
        with storage.writer(shard=0) as writer:
            writer.append(np.arange(100), {"concepts": given})
        storage.commit()
        found.append(storage.manifest.fingerprint)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("spans", "error", "why"),
    [
        ({"concept": []}, ValueError, "no layer 'concept' among"),
        ({"concepts": [(0, 11, [])]}, ValueError, "ends after the 10 elements"),
        ({"concepts": [(-1, 2, [])]}, ValueError, "before the first element"),
        ({"concepts": [(4, 3, [])]}, ValueError, "ends before it starts"),
        ({"concepts": [(4, 5, []), (3, 5, [])]}, ValueError, "sort the spans"),
        ({"concepts": [(0.5, 2, [])]}, TypeError, "must be integers"),
        ({"concepts": [(0, 2**80, [])]}, TypeError, "must be integers"),
        ({"concepts": [(0, 2)]}, ValueError, "has 2 parts"),
        ({"concepts": [(0, 2, [2**40])]}, ValueError, "fit"),
        ({"concepts": [(0, 2, ["a"])]}, (TypeError, ValueError), "tokens"),
        ({"concepts": gl.FlatSpans([0], [1], [1, 2], [0, 1])}, ValueError, "rise from 0 to 2"),
        ({"concepts": gl.FlatSpans([0], [1], [1], [0, 1, 1])}, ValueError, "1 starts, 1 ends and 3 offsets"),
        ({"document": gl.FlatSpans([0], [1], [1], [0, 1])}, TypeError, "give a list of spans"),
    ],
)
def test_spans_that_are_refused_leave_the_shard_as_it_was(tmp_path: Path, spans: Any, error: Any, why: str) -> None:
    storage = gl.StreamWithMetadataStorage.create(tmp_path, dtype="<i4", layers=LAYERS)
    with storage.writer(shard=0) as writer:
        writer.append(np.arange(10), {"concepts": [(8, 10, [7])]})
        with pytest.raises(error, match=why):
            writer.append(np.arange(10), spans)
        writer.append(np.arange(10, 20))
    storage.commit()
    expected = LayeredStream([20], dict(LAYERS), {"document": [[]], "concepts": [[(8, 10, [7])]]})
    check(tmp_path, expected, window=4)


def test_a_layer_is_committed_whole_or_not(tmp_path: Path) -> None:
    stream, _ = random_documents(2)
    storage = write_plain(tmp_path, stream.lengths)
    layer = storage.add_layer("concepts", ARRAY)
    assert layer.missing() == [0, 1, 2, 3]
    with layer.writer(shard=1) as writer:
        writer.append(stream.spans["concepts"][1])
    assert layer.missing() == [0, 2, 3]
    with pytest.raises(ShardError, match="shards are missing: 0, 2, 3"):
        layer.commit()
    aborted = layer.writer(shard=0)
    aborted.append(stream.spans["concepts"][0])
    aborted.abort()
    assert layer.missing() == [0, 2, 3]
    assert storage.commit() == 1
    again = gl.StreamStorage.open(tmp_path).add_layer("concepts", ARRAY)  # another process goes on
    for number in again.missing():
        with again.writer(shard=number) as writer:
            writer.append(stream.spans["concepts"][number])
    with again.writer(shard=1) as writer:  # a rerun, equal
        writer.append(stream.spans["concepts"][1])
    assert again.commit() == 2
    with pytest.raises(ShardError, match="has a layer 'concepts'"):
        again.writer(shard=0)
    check(tmp_path, LayeredStream(stream.lengths, {"concepts": ARRAY}, {"concepts": stream.spans["concepts"]}))


def test_layers_that_cannot_be_committed(tmp_path: Path) -> None:
    storage = write_plain(tmp_path, [10, 10])
    with pytest.raises(ValueError, match="has a field 'tokens'"):
        storage.add_layer("tokens", ARRAY)
    with pytest.raises(ValueError, match="no name"):
        storage.add_layer("", ARRAY)
    layer = storage.add_layer("a", ARRAY)
    with pytest.raises(ShardError, match="no committed shard 2"):
        layer.writer(shard=2)
    for number in (0, 1, 1):
        with layer.writer(shard=number) as writer:
            writer.append([(0, 5, [len(layer.missing())])])
            with pytest.raises(ValueError, match="after the 10 elements"):
                writer.append([(0, 11, [])])
    with pytest.raises(ShardError, match="written twice with different content"):
        layer.commit()
    records = sorted(path for path in (tmp_path / "shards").iterdir() if path.name.endswith(".layer.json"))
    records[-1].unlink()
    with pytest.raises(ShardError, match="another encoding"):
        storage.add_layer("a", gl.formats.JSON()).commit()
    text = records[0].read_text()
    stem = records[0].name.removesuffix(".layer.json")
    for old, new in ((f"{stem}.spans", "elsewhere.spans"), ('"number":0', '"number":1')):
        assert old in text
        records[0].write_text(text.replace(old, new))
        with pytest.raises(ManifestError, match="remove it"):
            layer.commit()
    records[0].write_text(text)
    payloads = tmp_path / "shards" / f"{stem}.payloads"
    data = payloads.read_bytes()
    payloads.write_bytes(data[:-1])
    with pytest.raises(ShardError, match="has 3 bytes, and should have 4"):
        layer.commit()
    payloads.write_bytes(data)
    assert layer.commit() == 2


def test_shards_and_layers_that_come_later(tmp_path: Path) -> None:
    storage = write_plain(tmp_path, [10, 10])
    stale = storage.writer(shard=2)
    stale.append(np.arange(20, 25))
    with storage.writer(shard=3) as early:
        early.append(np.arange(25, 30))
    rerun = storage.manifest.shards[0]
    copy = gl.StreamStorage.open(tmp_path)
    layer = copy.add_layer("a", ARRAY)
    for number in (0, 1):
        with layer.writer(shard=number) as writer:
            writer.append([(3, 5, [number])])
    layer.commit()
    stale.close()
    with pytest.raises(ShardError, match=r"has the layers \[\], but the dataset has \['a'\]"):
        storage.commit()
    for path in (tmp_path / "shards").glob("0000000[23]-*.json"):
        path.unlink()
    for number in (2, 3):
        with storage.writer(shard=number) as writer:
            writer.append(np.arange(5 * number + 10, 5 * number + 15), {"a": [(0, 2, [number])]})
    assert storage.commit() == 3
    spans: list[list[Span]] = [[(3, 5, [0])], [(3, 5, [1])], [(0, 2, [2])], [(0, 2, [3])]]
    check(tmp_path, LayeredStream([10, 10, 5, 5], {"a": ARRAY}, {"a": spans}), window=7)
    # A duplicate of a shard that was committed before the layer came harms nothing.
    other = write_plain(tmp_path.with_name("other"), [10])
    twin = other.manifest.shards[0]
    assert twin.content == rerun.content
    for suffix in (".bin", ".crc32c", ".json"):
        name = Path(twin.first_file).with_suffix(suffix)
        (tmp_path / name).write_bytes((other.path / name).read_bytes())
    assert storage.commit() == 3


def test_manifests_that_contradict_themselves(tmp_path: Path) -> None:
    storage = write_plain(tmp_path, [10])
    layer = storage.add_layer("a", ARRAY)
    with layer.writer(shard=0) as writer:
        writer.append([(3, 5, [1])])
    layer.commit()
    good = json.loads(encode_manifest(storage.manifest))

    def refused(change: Any, why: str) -> None:
        plain = json.loads(json.dumps(good))
        change(plain, plain["shards"][0]["layers"][0])
        (tmp_path / "guideloom.json").write_text(json.dumps(plain))
        with pytest.raises((ManifestError, gl.errors.UnsafePathError), match=why):
            gl.open_dataset(tmp_path, window=1)

    refused(lambda _, entry: entry.update(block_elements=1025), "no power of two")
    refused(lambda _, entry: entry.update(block_elements=512), "1024")
    refused(lambda _, entry: entry.update(payloads="../x"), "refused")
    refused(lambda _, entry: entry.update(file="/etc/passwd"), "refused")
    refused(lambda _, entry: entry.update(spans=2**32), "4294967295")
    refused(lambda _, entry: entry.update(payload_bytes=-1), "0")
    refused(lambda _, entry: entry.update(sha256="g" * 64), "SHA-256")
    refused(lambda _, entry: entry.update(spans=2), "fingerprint")
    refused(lambda plain, _: plain["layers"][0].update(name="tokens"), "named 'tokens' already")
    refused(lambda plain, _: plain["layers"][0].update(name=""), "no name")
    refused(lambda plain, _: plain["layers"].append({**plain["layers"][0], "name": "b"}), "has 1 layers")
    refused(lambda plain, _: plain["layers"][0]["encoding"].update(name="No such"), "no name of an encoding")
    refused(lambda plain, _: plain.update(layers=[]), "has 1 layers, and the dataset 0")


def test_an_encoding_that_is_not_registered(tmp_path: Path) -> None:
    storage = write_plain(tmp_path, [10])
    layer = storage.add_layer("a", Unregistered())
    with layer.writer(shard=0) as writer:
        writer.append([(3, 5, b"abc")])
    layer.commit()
    assert len(gl.open_dataset(tmp_path, window=2)) == 5  # whoever does not ask for the layer is not disturbed
    with pytest.raises(gl.errors.UnknownEncodingError, match="'tests-unregistered'"):
        gl.open_dataset(tmp_path, window=2, layers=["a"])
    with gl.open_dataset(tmp_path, window=5, layers={"a": gl.formats.Bytes()}).sync_reader() as reader:
        assert reader[0]["a"].payloads == [b"abc"]


class Unregistered(gl.formats.Bytes):
    """An encoding that only the writer knows."""

    name = "tests-unregistered"
