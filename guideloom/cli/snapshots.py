"""``guideloom snapshots`` and ``guideloom prune``: the history of a dataset, and the end of it."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from guideloom.cli.text import print_table

_SNAPSHOTS_EXAMPLE = """\b
Example:
  guideloom snapshots data/corpus
  guideloom snapshots data/corpus --json
"""
_PRUNE_EXAMPLE = """\b
Example:
  guideloom prune data/corpus
  guideloom prune data/corpus --keep 3 --yes
"""


@click.command(no_args_is_help=True, epilog=_SNAPSHOTS_EXAMPLE)
@click.argument("dataset")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def snapshots(dataset: str, as_json: bool) -> None:
    """List the snapshots of DATASET, the oldest first."""
    from guideloom.storage.history import list_snapshots

    found = list_snapshots(dataset)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"dataset": dataset, "snapshots": found}))
        return
    rows = [("", "committed", "shards", "layers", "bytes", "fingerprint", "")]
    for each in found:
        committed = "" if each.committed is None else f"{datetime.fromtimestamp(each.committed, UTC):%F %T}Z"
        fingerprint = each.fingerprint or "its manifest cannot be read"
        current = "current" if each.is_current else ""
        counts = (f"{each.shards:,}", f"{len(each.layers):,}", f"{each.num_bytes:,}")
        rows.append((str(each.number), committed, *counts, fingerprint, current))
    print_table(dataset, rows)


@click.command(no_args_is_help=True, epilog=_PRUNE_EXAMPLE)
@click.argument("dataset")
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Snapshots to keep, the newest; by default all.")
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="What is younger stays: a writer may still be at it.",
)
@click.option("--yes", is_flag=True, help="Remove it; without this option it is only listed.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def prune(dataset: str, keep: int | None, older_than: float, yes: bool, as_json: bool) -> None:
    """Remove from DATASET what no snapshot needs: remains of killed writers, what was not committed, old snapshots.

    Lists it; add --yes to remove it. Shards and layers that were written but not committed go too once they are old
    enough: commit them first if they are wanted.
    """
    from guideloom.storage.prune import prune as prune_dataset

    found = prune_dataset(dataset, keep=keep, min_age_seconds=3600 * older_than, dry_run=not yes)
    num_bytes = sum(each.num_bytes for each in found)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"dataset": dataset, "removed": yes, "bytes": num_bytes, "remains": found}))
        return
    if found:
        print_table(dataset, [(each.reason, each.path, f"{each.num_bytes:,}") for each in found])
    if yes:
        click.echo(f"removed {len(found):,} files and folders, {num_bytes:,} bytes")
    elif found:
        click.echo(f"would remove {len(found):,} files and folders, {num_bytes:,} bytes; add --yes to do it")
    else:
        click.echo("nothing to remove")
