import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import guideloom as gl
from guideloom.cli.app import guideloom


def inspect(*arguments: object) -> str:
    result = CliRunner().invoke(guideloom, ["inspect", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats"
    storage = gl.DocumentStorage.create(path, encoding=gl.formats.JSON(), compression="zstd", metadata={"by": "me"})
    with storage.writer(shard=0) as shard:
        shard.extend({"n": i, "text": "[bold]ü[/bold]" * i} for i in range(10))
    storage.commit()
    return path


def test_documents_are_shown(chats: Path) -> None:
    output = inspect(chats)
    for part in ("documents, snapshot 1", "json, zstd", "metadata: by", "me", "3 of 10 documents", "[bold]ü"):
        assert part in output
    assert "window" not in output


def test_documents_as_json(chats: Path) -> None:
    found = json.loads(inspect(chats, "--json", "--samples", 2))
    assert (found["kind"], found["documents"], found["shards"]) == ("documents", 10, 1)
    assert [item["index"] for item in found["samples"]] == [0, 5]
    assert found["samples"][1]["document"]["n"] == 5
    assert "samples" in json.loads(inspect(chats, "--json", "--samples", 0))


def test_arrays_are_shown_by_field(tmp_path: Path) -> None:
    storage = gl.DocumentStorage.create(tmp_path / "x", encoding=gl.formats.NumpyArray("<u2"))
    with storage.writer(shard=0) as shard:
        shard.append(np.arange(100))
    storage.commit()
    output = inspect(tmp_path / "x")
    assert "tokens: 0 1 2 3" in output
    assert "tokens uint16" in output


def test_an_unknown_encoding_is_shown_as_bytes(tmp_path: Path) -> None:
    class Foreign(gl.formats.Bytes):
        name = "tests.foreign"

        def decode(self, data: memoryview) -> Any:
            raise AssertionError

    storage = gl.DocumentStorage.create(tmp_path / "x", encoding=Foreign())
    with storage.writer(shard=0) as shard:
        shard.append(b"\xffplain")
    storage.commit()
    output = inspect(tmp_path / "x")
    assert "tests.foreign" in output
    assert "xffplain" in output
