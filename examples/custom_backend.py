"""A backend of one's own: a dataset in a SQLite database, in under 30 lines.

    python examples/custom_backend.py

Puts it through the suite that the library's own backends pass, then writes a dataset into a database and reads its
windows from there.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import guideloom as gl
from guideloom.testing import FILES, check_backend


class SQLiteBackend(gl.RangeBackend):
    """Reads files from the table ``files (name, content)`` of a database."""

    def __init__(self, database: Path) -> None:
        super().__init__(max_concurrency=4)
        self.database = database

    async def read_range(self, path: str, offset: int, length: int) -> bytes:
        return await asyncio.to_thread(self._read, path, offset, length)

    def _read(self, path: str, offset: int, length: int) -> bytes:
        connection = sqlite3.connect(self.database)
        try:
            query = "SELECT substr(content, ?, ?) FROM files WHERE name = ?"
            row = connection.execute(query, (offset + 1, length, path)).fetchone()
        finally:
            connection.close()
        if row is None:
            raise FileNotFoundError(path)
        return row[0] or b""  # SQLite says NULL for no bytes


def store(files: Mapping[str, bytes], database: Path) -> None:
    """Put files into a database."""
    connection = sqlite3.connect(database)
    with connection:
        connection.execute("CREATE TABLE files (name TEXT PRIMARY KEY, content BLOB)")
        connection.executemany("INSERT INTO files VALUES (?, ?)", files.items())
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", type=int, default=128, help="tokens of a window (default: %(default)s)")
    window = parser.parse_args().window
    with tempfile.TemporaryDirectory() as folder:
        tested, database, corpus = (Path(folder) / name for name in ("tested.db", "corpus.db", "corpus"))

        store(FILES, tested)
        check_backend(lambda: SQLiteBackend(tested))
        print("the backend conforms")

        storage = gl.StreamStorage.create(corpus, dtype=np.uint32)
        with storage.writer(shard=0) as shard:
            shard.append(np.arange(100 * window, dtype=np.uint32))
        storage.commit()
        files = {str(path.relative_to(corpus)): path.read_bytes() for path in corpus.rglob("*.*")}
        store(files, database)

        dataset = gl.open_dataset(SQLiteBackend(database), window=window)
        with gl.Loader(dataset, batch_size=8, shuffle=True, seed=17) as loader:
            firsts = [int(tokens[0]) // window for batch in loader for tokens in batch["tokens"]]
        assert sorted(firsts) == list(range(100))
        print(f"read {len(firsts)} windows from {database.name}, each once")


if __name__ == "__main__":
    main()
