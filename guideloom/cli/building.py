"""Write the shards of a corpus into a dataset that appears whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
import numpy as np
import numpy.typing as npt

from guideloom import __version__
from guideloom._typing import AnyArray
from guideloom.cli.corpus import Corpus, Piece
from guideloom.cli.tokenizer import TOKENIZER_FILE, Tokenizer
from guideloom.errors import MissingFileError
from guideloom.storage.durable import make_folder, sync_folder, write_file
from guideloom.storage.names import SHARD_SUFFIX, SHARDS_FOLDER
from guideloom.storage.stream import StreamStorage
from guideloom.storage.stream_manifest import StreamManifest

# Characters that are tokenized at a time.
_BATCH_CHARACTERS = 512 * 1024
_PLAN_FILE = "plan"


@dataclass(frozen=True, slots=True)
class Build:
    """What to build, and of what.

    Parameters
    ----------
    corpus : Corpus
        The documents.
    tokenizer : Tokenizer
        What makes ids of them.
    eos : int or None
        The id that follows each document.
    dtype : numpy dtype
        Of the ids, as stored.
    """

    corpus: Corpus
    tokenizer: Tokenizer
    eos: int | None
    dtype: npt.DTypeLike

    def count(self, advance: Callable[[int], None]) -> list[int]:
        """Read all input once, so that what is wrong with it is known before hours of work; count the documents.

        Parameters
        ----------
        advance : callable
            Told of each number of bytes that has been read.

        Returns
        -------
        list of int
            Documents of each shard.
        """
        shards = range(len(self.corpus.shards))
        return [sum(piece.ends for piece in self.corpus.pieces(shard, advance)) for shard in shards]

    def write(self, out: Path, documents: list[int], advance: Callable[[int], None]) -> StreamManifest:
        """Write the dataset.

        Parameters
        ----------
        out : Path
            Its folder, which is missing or empty.
        documents : list of int
            Documents of each shard, as `count` found them.
        advance : callable
            Told of each number of bytes that has been read.

        Raises
        ------
        click.ClickException
            If the input has changed since it was counted.
        WriteError
            If the system refused to write.
        """
        shards = range(len(documents))
        with _building_folder(out, self._plan(documents)) as folder:
            storage = self._storage(folder, sum(documents))
            missing = set(storage.missing(shards))
            for shard in shards:
                if shard in missing:
                    self._write_shard(storage, shard, documents[shard], advance)
                else:
                    advance(sum(segment.stop - segment.start for segment in self.corpus.shards[shard]))
            storage.commit(shards=shards)
            if self.tokenizer.file is not None:
                write_file(folder / TOKENIZER_FILE, self.tokenizer.file, replace=True)
        return storage.manifest

    def _storage(self, folder: Path, num_documents: int) -> StreamStorage:
        with contextlib.suppress(MissingFileError):
            return StreamStorage.open(folder)
        sha256 = {} if self.tokenizer.sha256 is None else {"tokenizer_sha256": self.tokenizer.sha256}
        metadata = {
            "tokenizer": self.tokenizer.name,
            **sha256,
            "vocab_size": self.tokenizer.num_ids,
            "eos": self.eos,
            "num_documents": num_documents,
            "guideloom": __version__,
        }
        return StreamStorage.create(folder, dtype=self.dtype, metadata=metadata)

    def _write_shard(
        self, storage: StreamStorage, shard: int, num_documents: int, advance: Callable[[int], None]
    ) -> None:
        found = 0
        with storage.writer(shard) as writer:
            for batch in _batches(self.corpus.pieces(shard, advance)):
                found += sum(piece.ends for piece in batch)
                writer.append(self._ids(batch))
            if found != num_documents:
                raise click.ClickException("the input changed while it was read; nothing was written")

    def _ids(self, batch: list[Piece]) -> AnyArray:
        """Return the ids of some pieces in a row, with the end-of-text id wherever a document ends."""
        end = np.array([] if self.eos is None else [self.eos], np.uint32)
        parts: list[AnyArray] = []
        for piece, ids in zip(batch, self.tokenizer.encode([piece.text for piece in batch]), strict=True):
            parts += [ids, end] if piece.ends else [ids]
        return np.concatenate(parts)

    def _plan(self, documents: list[int]) -> bytes:
        """Return a hash of what decides the content of every shard."""
        tokenizer = self.tokenizer
        parts = [
            __version__,
            tokenizer.name,
            tokenizer.sha256,
            self.eos,
            str(self.dtype),
            documents,
            self.corpus.facts(),
        ]
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest().encode()


@contextlib.contextmanager
def _building_folder(out: Path, plan: bytes) -> Iterator[Path]:
    """Give a hidden folder beside `out`, which becomes `out` at the end.

    An error or Ctrl-C removes it. A kill leaves it, and the next build of the same plan continues in it.
    """
    folder = out.with_name(f".{out.name}.building")
    plan_file = folder / _PLAN_FILE
    if plan_file.is_file() and plan_file.read_bytes() == plan:
        click.echo(f"continuing the build of {out.name} that was interrupted", err=True)
        _remove_unfinished(folder / SHARDS_FOLDER)
    elif folder.exists():
        shutil.rmtree(folder)
    try:
        make_folder(folder)
        write_file(plan_file, plan, replace=True)
        yield folder
        plan_file.unlink()
        os.rename(folder, out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    sync_folder(out.parent)


def _remove_unfinished(shards: Path) -> None:
    """Remove the files of shards that a killed build did not finish."""
    paths = list(shards.glob("*"))
    finished = {path.stem for path in paths if path.suffix == SHARD_SUFFIX and not path.name.startswith(".")}
    for path in paths:
        if path.stem not in finished:
            path.unlink()


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Gather pieces into batches of about equal length."""
    batch: list[Piece] = []
    held = 0
    for piece in pieces:
        batch.append(piece)
        held += len(piece.text)
        if held >= _BATCH_CHARACTERS:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
