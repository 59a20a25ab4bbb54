"""Documents to measure with, written by the library and kept between runs.

Element ``j`` of every document is ``j`` more than the first, which is the document's number, so that what was read can
be checked without the file.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks import work_folder
from guideloom import DocumentStorage, Jagged
from guideloom.formats import NumpyArray

MEAN_TOKENS = 600
SEED = 11


def lengths(num_documents: int) -> npt.NDArray[np.int64]:
    """Return the lengths of documents, in tokens: lognormal, of mean 600."""
    drawn = np.random.default_rng(SEED).lognormal(np.log(MEAN_TOKENS) - 0.5, 1, num_documents)
    return np.maximum(drawn.astype(np.int64), 1)


def documents(num_shards: int, num_documents: int) -> Path:
    """Return the folder of documents of int32 tokens, after writing what is missing of it.

    Parameters
    ----------
    num_shards : int
        Shards.
    num_documents : int
        Documents in all of them.
    """
    path = work_folder() / f"documents-{num_shards}x{num_documents}"
    try:
        storage = DocumentStorage.create(path, encoding=NumpyArray("<i4"))
    except FileExistsError:
        storage = DocumentStorage.open(path)
    if len(storage.manifest.shards) == num_shards:
        return path
    parts = np.array_split(np.arange(num_documents), num_shards)
    sizes = lengths(num_documents)
    for shard in storage.missing(range(num_shards)):
        size = sizes[parts[shard]]
        offsets = np.concatenate([[0], np.cumsum(size)])
        tokens = np.arange(offsets[-1]) + np.repeat(parts[shard] - offsets[:-1], size)
        with storage.writer(shard=shard) as writer:
            writer.extend(Jagged(tokens.astype("<i4"), offsets))
    storage.commit(shards=range(num_shards))
    return path


def raw_file(path: Path) -> Path:
    """Return one file of all documents of a dataset, back to back, for those that cannot read shards."""
    raw = path.with_suffix(".bin")
    storage = DocumentStorage.open(path)
    if not raw.exists():
        fresh = path.with_suffix(".tmp")
        with fresh.open("wb") as file:
            for shard in storage.manifest.shards:
                file.write((path / shard.data.file).read_bytes())
        fresh.replace(raw)
    return raw
