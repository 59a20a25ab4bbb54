"""Documents from text files, JSON Lines and folders of both, shared out over shards by their place in the input."""

from __future__ import annotations

import bisect
import codecs
import fnmatch
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

JSONL_SUFFIX = ".jsonl"

# Longer documents are tokenized in pieces of at most so many characters: so much is in memory, and so long does
# Ctrl-C wait.
MOST_PIECE_CHARACTERS = 256 * 1024

_READ_BYTES = 256 * 1024
_BOM = codecs.BOM_UTF8


class Piece(NamedTuple):
    """A document, or a part of a long one.

    Parameters
    ----------
    text : str
        At least one character.
    ends : bool
        Whether the document ends here.
    """

    text: str
    ends: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """All of a text file, or the lines of a JSONL file that begin in a span of its bytes.

    Parameters
    ----------
    path : Path
        The file.
    start, stop : int
        The span.
    """

    path: Path
    start: int
    stop: int


class Corpus:
    """The documents of some files, each shard a run of them.

    Text files hold a document each, JSONL files one a line. Documents without text, and blank lines, are left out.

    Parameters
    ----------
    files : sequence of Path
        In the order of the stream. Those named ``*.jsonl`` are JSON Lines.
    text_key : str
        The key of the text in a line.
    num_shards : int
        Shards of about equal input.
    """

    def __init__(self, files: Sequence[Path], text_key: str, num_shards: int) -> None:
        sizes = [os.path.getsize(file) for file in files]
        self.num_bytes = sum(sizes)
        self.shards = _share_out(files, sizes, num_shards)
        self._files = files
        self._text_key = text_key
        line = msgspec.defstruct("Line", [("text", str)], rename={"text": text_key})
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(line)

    def facts(self) -> list[object]:
        """Return what tells this corpus from others, in plain types, without reading it."""
        stats = [(os.path.abspath(file), os.stat(file)) for file in self._files]
        return [self._text_key, len(self.shards), [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]]

    def pieces(self, shard: int, advance: Callable[[int], None]) -> Iterator[Piece]:
        """Yield the documents of a shard, the long ones in pieces.

        Parameters
        ----------
        shard : int
            Its number.
        advance : callable
            Told of each number of bytes that has been read.

        Raises
        ------
        click.ClickException
            If something is no text, or no JSON with a text in it; named with its file, and its line or byte.
        """
        for segment in self.shards[shard]:
            if segment.path.suffix == JSONL_SUFFIX:
                for text in self._lines(segment, advance):
                    yield from _cut([text])
            else:
                yield from _cut(_chunks(segment.path, advance))

    def _lines(self, segment: Segment, advance: Callable[[int], None]) -> Iterator[str]:
        with open(segment.path, "rb") as file:
            if segment.start:  # a line belongs to the segment that its first byte lies in
                file.seek(segment.start - 1)
                file.readline()
            while (start := file.tell()) < segment.stop and (line := file.readline()):
                advance(len(line))
                if not start:
                    line = line.removeprefix(_BOM)
                if not line.strip():
                    continue
                try:
                    text: str = self._decoder.decode(line).text
                except (msgspec.DecodeError, RecursionError) as error:
                    place = f"{segment.path}:{_line_number(segment.path, start)}"
                    raise click.ClickException(f"{place}: {self._reason(line, error)}") from error
                yield text

    def _reason(self, line: bytes, error: Exception) -> str:
        try:
            found = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            return f"this line is no JSON: {error}"
        if not isinstance(found, dict):
            return "this line is no JSON object"
        if self._text_key in found:
            return f"the value of {self._text_key!r} is {type(found[self._text_key]).__name__}, not a string"
        texts = [key for key, value in found.items() if isinstance(value, str)]
        hint = f"; --text-key can name {', '.join(map(repr, texts[:8]))}" if texts else ""
        return f"there is no key {self._text_key!r} in this line{hint}"


def find_files(inputs: Iterable[str], pattern: str) -> list[Path]:
    """Return the files that are named, and those in the folders that are named, sorted in each.

    Parameters
    ----------
    inputs : iterable of str
        Files and folders that exist. Hidden files and folders in a folder are left out.
    pattern : str
        Files in folders are taken if their name matches it, as a shell does.

    Raises
    ------
    click.BadParameter
        If an input is something else, such as a pipe.
    """
    files: list[Path] = []
    for path in map(Path, inputs):
        if not path.is_dir() and not path.is_file():
            raise click.BadParameter(
                f"{path} is neither a file nor a folder; input is read twice", param_hint="'INPUTS'"
            )
        files += sorted(_walk(path, pattern)) if path.is_dir() else [path]
    return files


def _walk(folder: Path, pattern: str) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            if not name.startswith(".") and fnmatch.fnmatchcase(name, pattern) and path.is_file():
                yield path


def _raise(error: OSError) -> None:
    raise error


def _share_out(files: Sequence[Path], sizes: Sequence[int], num_shards: int) -> list[list[Segment]]:
    """Cut the input into shards at multiples of its size: a function of the sizes alone, whatever is in the files."""
    total = sum(sizes)
    bounds = [total * k // num_shards for k in range(num_shards + 1)]
    shards: list[list[Segment]] = [[] for _ in range(num_shards)]
    begin = 0
    for path, size in zip(files, sizes, strict=True):
        if size:
            first = bisect.bisect_right(bounds, begin) - 1
            last = bisect.bisect_left(bounds, begin + size) if path.suffix == JSONL_SUFFIX else first + 1
            for k in range(first, last):
                low, high = max(bounds[k] - begin, 0), min(bounds[k + 1] - begin, size)
                shards[k].append(Segment(path, low, high if path.suffix == JSONL_SUFFIX else size))
        begin += size
    return shards


def _chunks(path: Path, advance: Callable[[int], None]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    done = 0
    with open(path, "rb") as file:
        while True:
            data = file.read(_READ_BYTES)
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                place = done - pending + error.start
                raise click.ClickException(f"{path} is no UTF-8 text: {error.reason} at byte {place}") from error
            if text:
                yield text
            if not data:
                return
            done += len(data)
            advance(len(data))


def _cut(parts: Iterable[str]) -> Iterator[Piece]:
    """Join the parts of a document, and cut it before a line break where it is too long."""
    held = ""
    for part in parts:
        held += part
        while len(held) > MOST_PIECE_CHARACTERS:
            line_break = held.rfind("\n", 1, MOST_PIECE_CHARACTERS)
            place = line_break if line_break > 0 else MOST_PIECE_CHARACTERS
            yield Piece(held[:place], ends=False)
            held = held[place:]
    if held:
        yield Piece(held, ends=True)


def _line_number(path: Path, start: int) -> int:
    """Return the number, from 1, of the line that begins at a byte."""
    with open(path, "rb") as file:
        number = 1
        while start and (data := file.read(min(start, 2**20))):
            number += data.count(b"\n")
            start -= len(data)
        return number
