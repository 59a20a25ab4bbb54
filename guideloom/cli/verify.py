"""``guideloom verify``: whether a dataset is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from guideloom.cli.progress import progress
from guideloom.cli.text import printable

if TYPE_CHECKING:
    from guideloom.storage.verification import Verification

_MOST_EXTRA_FILES = 5

_EXAMPLE = """\b
Example:
  guideloom verify data/corpus
  guideloom verify data/corpus --quick --json
  guideloom verify data/corpus --expect sha256:2cf24dba…
"""


@click.command(no_args_is_help=True, epilog=_EXAMPLE)
@click.argument("dataset")
@click.option("--full", "mode", flag_value="full", default=True, help="Read and check every byte: the default.")
@click.option("--quick", "mode", flag_value="quick", help="Look at manifests and at the sizes of files only.")
@click.option("--snapshot", type=click.IntRange(0), metavar="N", help="An earlier snapshot; by default the newest.")
@click.option("--expect", metavar="FINGERPRINT", help="What the fingerprint must be: sha256:…")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def verify(dataset: str, mode: str, snapshot: int | None, expect: str | None, as_json: bool) -> None:
    """Check that DATASET is whole, and list what is damaged: shard, layer, file and offset.

    Ends with status 1 if anything is damaged.
    """
    from guideloom.datasets.verifying import verify as verify_dataset
    from guideloom.storage.pinning import check_expected

    try:
        check_expected(expect)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--expect'") from None
    with progress("verifying", in_bytes=mode == "full") as update:
        found = verify_dataset(
            dataset,
            mode="quick" if mode == "quick" else "full",
            snapshot=snapshot,
            expect=expect,
            progress=update,
        )
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"dataset": dataset, "ok": found.ok, **msgspec.to_builtins(found)}))
    else:
        _print(dataset, found)
    if not found.ok:
        click.get_current_context().exit(1)


def _print(dataset: str, found: Verification) -> None:
    for damage in found.damages:
        click.echo(printable(str(damage)))
    if found.num_damages > len(found.damages):
        click.echo(f"… and {found.num_damages - len(found.damages):,} more")
    if found.extra_files:
        shown = ", ".join(found.extra_files[:_MOST_EXTRA_FILES])
        more = f" and {len(found.extra_files) - _MOST_EXTRA_FILES:,} more" * (
            len(found.extra_files) > _MOST_EXTRA_FILES
        )
        click.echo(printable(f"not of any snapshot: {shown}{more}"))
    looked = f"{found.num_bytes:,} bytes in" if found.mode == "full" else "the sizes of"
    verdict = "whole" if found.ok else f"DAMAGED in {found.num_damages:,} places"
    click.echo(f"{dataset}: {verdict}; checked {looked} {found.num_files:,} files, {found.fingerprint}")
