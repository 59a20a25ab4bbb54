"""``guideloom build``: text to a token stream."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from guideloom.cli.progress import advancing

# A shard for so much input, unless --shards says otherwise.
_SHARD_BYTES = 256 * 2**20

_EXAMPLE = """\b
Example:
  guideloom build corpus/ more.jsonl --out data/corpus --tokenizer tokenizer.json
  guideloom build docs/ --glob '*.md' --out data/docs --tokenizer bytes --shards 4
"""


@click.command(no_args_is_help=True, epilog=_EXAMPLE)
@click.argument("inputs", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--out", required=True, type=click.Path(), help="Folder of the new dataset.")
@click.option(
    "--tokenizer", required=True, metavar="FILE|bytes", help="A tokenizer.json, or 'bytes' for UTF-8 bytes as ids."
)
@click.option("--text-key", default="text", show_default=True, metavar="KEY", help="Key of the text in a JSONL line.")
@click.option(
    "--eos", metavar="TOKEN|ID|none", help="What follows each document; by default the tokenizer's usual one."
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "uint16", "uint32"]),
    default="auto",
    show_default=True,
    help="Type of the ids; auto takes the smaller one that holds them.",
)
@click.option(
    "--shards", type=click.IntRange(1, 1_000_000), help="Number of shards; by default one per 256 MiB of input."
)
@click.option("--glob", "pattern", default="*", metavar="PATTERN", help="Files to take from folders, such as '*.md'.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def build(
    inputs: tuple[str, ...],
    out: str,
    tokenizer: str,
    text_key: str,
    eos: str | None,
    dtype: str,
    shards: int | None,
    pattern: str,
    as_json: bool,
) -> None:
    """Build a token stream from text.

    INPUTS are text files, a document each; JSON Lines (.jsonl), a document a line; or folders, searched for both in
    sorted order. The stream keeps the order of the documents. The dataset appears when it is whole: Ctrl-C leaves
    nothing, and after a kill the same command continues.
    """
    from guideloom.cli.building import Build
    from guideloom.cli.corpus import Corpus, find_files
    from guideloom.cli.tokenizer import load_tokenizer, token_dtype

    started = time.perf_counter()
    folder = Path(os.path.abspath(out))
    _check_free(folder, out)
    loaded = load_tokenizer(tokenizer)
    files = find_files(inputs, pattern)
    num_shards = shards or -(-sum(map(os.path.getsize, files)) // _SHARD_BYTES) or 1
    corpus = Corpus(files, text_key, num_shards)
    task = Build(corpus, loaded, loaded.eos(eos), token_dtype(dtype, loaded.num_ids))
    with advancing("checking", corpus.num_bytes) as advance:
        documents = task.count(advance)
    if not sum(documents):
        raise click.ClickException(f"there is no text in {' '.join(inputs)}; nothing was written")
    with advancing("tokenizing", corpus.num_bytes) as advance:
        manifest = task.write(folder, documents, advance)

    seconds = time.perf_counter() - started
    if as_json:
        import msgspec

        outcome = {
            "dataset": out,
            "documents": sum(documents),
            "tokens": manifest.num_rows,
            "shards": len(manifest.shards),
            "bytes": manifest.num_bytes,
            "dtype": str(task.dtype),
            "fingerprint": manifest.fingerprint,
            "seconds": round(seconds, 3),
        }
        click.echo(msgspec.json.encode(outcome))
        return
    click.echo(
        f"{out}: {manifest.num_rows:,} tokens ({task.dtype}) of {sum(documents):,} documents in "
        f"{len(manifest.shards):,} shards, {manifest.num_bytes / 1e6:,.1f} MB, in {seconds:.1f} s\n"
        f"next: guideloom inspect {out}"
    )


def _check_free(folder: Path, out: str) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    from guideloom.storage.manifest import MANIFEST_NAME

    holds = "holds a dataset" if (folder / MANIFEST_NAME).exists() else "is there already"
    raise click.BadParameter(f"{out} {holds}; name another folder, or remove it first", param_hint="'--out'")
