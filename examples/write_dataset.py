"""Write a dataset: real text of this machine, tokenized, as a stream of tokens in several shards.

    python examples/write_dataset.py data/corpus

The text is what every Python has with it: its documentation, its sources, licences, and, if that is not enough, the
sources of the packages that are installed. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import guideloom as gl

END = "<|endoftext|>"

# One row of the stream: a token, and whether training should ask for it.
ROW = np.dtype([("tokens", "<u2"), ("loss_mask", "u1")])


def texts() -> Iterator[str]:
    """Yield documents: prose first, then sources."""
    yield from topics.values()
    library, packages = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    sources = [path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts]
    for path in itertools.chain(sorted(packages.rglob("LICENSE*")), sources, sorted(packages.rglob("*.py"))):
        if path.is_file() and (text := path.read_text(encoding="utf-8", errors="replace")):
            yield text


def train_tokenizer(vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE on a part of the text; it takes a second or two."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(itertools.islice(texts(), 0, 1000, 8), trainer)
    return tokenizer


def tokenize(tokenizer: Tokenizer, num_tokens: int) -> list[npt.NDArray[np.uint16]]:
    """Return the tokens of as many documents as have at least `num_tokens`."""
    documents: list[npt.NDArray[np.uint16]] = []
    end, total, shown = tokenizer.token_to_id(END), 0, 0
    rest = texts()
    while total < num_tokens and (batch := list(itertools.islice(rest, 32))):
        for encoding in tokenizer.encode_batch_fast(batch):  # on all cores
            documents.append(np.array([*encoding.ids, end], np.uint16))
            total += len(documents[-1])
        if total - shown >= 500_000:
            shown = total
            print(f"  {total:,} tokens", flush=True)
    return documents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the dataset goes")
    parser.add_argument("--tokens", type=int, default=3_000_000, help="write at least so many (default: %(default)s)")
    parser.add_argument("--shards", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--vocab-size", type=int, default=4096, help="default: %(default)s")
    args = parser.parse_args()

    start = time.perf_counter()
    tokenizer = train_tokenizer(args.vocab_size)
    print(f"trained a tokenizer of {tokenizer.get_vocab_size():,} tokens in {time.perf_counter() - start:.1f} s")

    start = time.perf_counter()
    documents = tokenize(tokenizer, args.tokens)
    seconds = time.perf_counter() - start
    total = sum(map(len, documents))
    print(f"tokenized {len(documents):,} documents to {total:,} tokens in {seconds:.1f} s")

    # `guideloom inspect` finds the tokenizer by these, and shows the dataset as text.
    model = tokenizer.to_str(pretty=True).encode()
    metadata = {
        "tokenizer": "tokenizer.json",
        "tokenizer_sha256": hashlib.sha256(model).hexdigest(),
        "vocab_size": tokenizer.get_vocab_size(),
        "eos": tokenizer.token_to_id(END),
        "num_documents": len(documents),
    }
    start = time.perf_counter()
    storage = gl.StreamStorage.create(args.folder, dtype=ROW, metadata=metadata)
    for number in range(args.shards):
        # Each shard has one writer, and appears when its block ends without an error. Here they are written one after
        # the other; on a cluster, each task would write its own.
        with storage.writer(shard=number) as shard:
            for tokens in documents[number :: args.shards]:
                # Nothing foretells how a document begins, so its first token is no fair question.
                loss_mask = np.ones(len(tokens), np.uint8)
                loss_mask[0] = 0
                shard.append({"tokens": tokens, "loss_mask": loss_mask})
    # Only now is there a dataset: readers see all of it, or nothing.
    storage.commit(shards=range(args.shards))
    (args.folder / "tokenizer.json").write_bytes(model)
    seconds = time.perf_counter() - start
    print(f"wrote {args.shards} shards, {total * ROW.itemsize / 1e6:.1f} MB, in {seconds:.2f} s")
    print(gl.open_dataset(args.folder, window=129, stride=128))


if __name__ == "__main__":
    main()
