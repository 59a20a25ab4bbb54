"""Documents: all of them, once, in order, whatever the shards; and what is wrong with them, named."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guideloom.cli import corpus as corpus_module
from guideloom.cli.corpus import MOST_PIECE_CHARACTERS, Corpus, find_files

TEXT = st.text(st.characters(codec="utf-8"), max_size=60).filter(lambda text: not text.startswith("\ufeff"))


def nobody(_: int) -> None:
    pass


def documents(corpus: Corpus, shard: int) -> list[str]:
    found = [""]
    for text, ends in corpus.pieces(shard, nobody):
        found[-1] += text
        if ends:
            found.append("")
    assert found.pop() == ""  # the last piece ends its document
    return found


@contextmanager
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "MOST_PIECE_CHARACTERS", 7)
        patch.setattr(corpus_module, "_READ_BYTES", 5)  # cuts letters of several bytes, too
        yield


@given(
    st.lists(st.one_of(TEXT, st.lists(st.one_of(TEXT, st.none()))), max_size=6),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
)
def test_every_document_once_and_in_order(
    files: list[str | list[str | None]], num_shards: int, small: bool, end_of_file: bool
) -> None:
    """A file is a text, or lines that are a text or blank."""
    with TemporaryDirectory() as folder, small_pieces() if small else pytest.MonkeyPatch.context():
        paths, expected = [], []
        for number, file in enumerate(files):
            if isinstance(file, str):
                paths.append(Path(folder, f"{number}.txt"))
                paths[-1].write_bytes(file.encode())
                expected += [file]
            else:
                paths.append(Path(folder, f"{number}.jsonl"))
                lines = ["  " if text is None else json.dumps({"text": text}, ensure_ascii=False) for text in file]
                paths[-1].write_bytes(("\n".join(lines) + "\n" * end_of_file).encode())
                expected += [text for text in file if text is not None]
        corpus = Corpus(paths, "text", num_shards)
        found = [documents(corpus, shard) for shard in range(num_shards)]
        assert [text for shard in found for text in shard] == [text for text in expected if text]
        assert len(corpus.shards) == num_shards


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(1, 9))
def test_shards_are_of_about_equal_input(lengths: list[int], num_shards: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "lines.jsonl")
        lines = [json.dumps({"text": "x" * length}) + "\n" for length in lengths]
        path.write_text("".join(lines))
        corpus = Corpus([path], "text", num_shards)
        taken = [sum(len(json.dumps({"text": text})) + 1 for text in documents(corpus, k)) for k in range(num_shards)]
        assert max(taken) <= corpus.num_bytes / num_shards + max(map(len, lines))


def test_progress_tells_of_all_bytes_of_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ä" * 1000)
    (tmp_path / "b.jsonl").write_text('{"text": "b"}\n\n{"text": "c"}')
    corpus = Corpus([tmp_path / "a.txt", tmp_path / "b.jsonl"], "text", 2)
    told: list[int] = []
    for shard in range(2):
        list(corpus.pieces(shard, told.append))
    assert sum(told) == corpus.num_bytes == 2000 + 28


def test_long_documents_are_cut_before_a_line_break(tmp_path: Path) -> None:
    line = "some words in a line\n"
    text = line * (2 * MOST_PIECE_CHARACTERS // len(line))
    (tmp_path / "a.txt").write_text(text)
    pieces = list(Corpus([tmp_path / "a.txt"], "text", 1).pieces(0, nobody))
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert len(pieces) > 1
    assert all(len(piece.text) <= MOST_PIECE_CHARACTERS for piece in pieces)
    assert all(piece.text.startswith("\n") for piece in pieces[1:])


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfplain")
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "line"}\n')
    (tmp_path / "c.txt").write_bytes(b"\xef\xbb\xbf")
    (tmp_path / "d.jsonl").write_bytes(b"\xef\xbb\xbf")
    corpus = Corpus([tmp_path / name for name in ("a.txt", "b.jsonl", "c.txt", "d.jsonl")], "text", 1)
    assert documents(corpus, 0) == ["plain", "line"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "cut', "is no JSON"),
        (b'{"text": "a"} more', "is no JSON"),
        (b'{"text": "\xff"}', "is no JSON"),
        (b'{"text": "\\ud800"}', "is no JSON"),
        (b"[" * 5000, "is no JSON"),
        (b'["text"]', "is no JSON object"),
        (b'{"text": 7}', "'text' is int, not a string"),
        (b'{"body": "b", "n": 1}', "no key 'text' in this line; --text-key can name 'body'"),
        (b"{}", "no key 'text' in this line"),
    ],
)
@pytest.mark.parametrize("num_shards", [1, 7])
def test_a_malformed_line_is_named(tmp_path: Path, line: bytes, reason: str, num_shards: int) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"text": "good"}\n\n{"text": "fine"}\n' + line + b'\n{"text": "late"}\n')
    corpus = Corpus([path], "text", num_shards)
    with pytest.raises(click.ClickException) as caught:
        [documents(corpus, shard) for shard in range(num_shards)]
    assert caught.value.message.startswith(f"{path}:4: ")
    assert reason in caught.value.message


@pytest.mark.parametrize("data", [b"\xff", b"fine \xc3(", b"x" * (256 * 1024 - 1) + b"\xc3\xa4\xff", b"cut \xe2\x82"])
def test_what_is_no_text_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(UnicodeDecodeError) as oracle:
        data.decode()
    with pytest.raises(click.ClickException) as caught:
        documents(Corpus([path], "text", 1), 0)
    assert str(path) in caught.value.message
    assert caught.value.message.endswith(f"at byte {oracle.value.start}")


def test_folders_are_searched_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b/z.md", "b/a/y.md", "a.md", ".hidden.md", ".git/x.md", "b/n.txt", "c.md"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    os.mkfifo(tmp_path / "in" / "pipe.md")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "first.txt").write_text("x")
    files = find_files([str(tmp_path / "first.txt"), str(tmp_path / "in"), str(tmp_path / "in/a.md")], "*.md")
    names = [file.relative_to(tmp_path).as_posix() for file in files]
    assert names == ["first.txt", "in/a.md", "in/b/a/y.md", "in/b/z.md", "in/c.md", "in/a.md"]


def test_a_pipe_is_no_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(click.BadParameter, match="neither a file nor a folder"):
        find_files([str(tmp_path / "pipe")], "*")
