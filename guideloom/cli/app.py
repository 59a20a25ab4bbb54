"""The command line: its commands, and how their failures look."""

from __future__ import annotations

import errno
from typing import Any

import click

from guideloom import __version__
from guideloom.cli.build import build
from guideloom.cli.inspect import inspect
from guideloom.cli.snapshots import prune, snapshots
from guideloom.cli.verify import verify

INTERRUPTED = 130

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_EXAMPLE = """\b
Example:
  guideloom build corpus/ --out data/corpus --tokenizer tokenizer.json
  guideloom inspect data/corpus
  guideloom verify data/corpus
"""


class CommandLine(click.Group):
    """A group whose commands fail with one readable message: of the library, of the system, or for Ctrl-C."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("\ninterrupted", err=True)
            ctx.exit(INTERRUPTED)
        except click.ClickException:
            raise
        except Exception as error:
            message = _message(error)
            if message is None:
                raise
            raise click.ClickException(message) from error


def _message(error: Exception) -> str | None:
    """Return what to tell of an error; None if it is nobody's but ours, and worth a traceback."""
    from guideloom.errors import GuideLoomError

    if isinstance(error, GuideLoomError):
        return str(error)
    if isinstance(error, OSError) and error.errno != errno.EPIPE:  # click ends quietly when its reader has gone
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return None


@click.group(cls=CommandLine, context_settings=_SETTINGS, epilog=_EXAMPLE)
@click.version_option(__version__, prog_name="guideloom")
def guideloom() -> None:
    """Make training data for random access, and look at it."""


guideloom.add_command(build)
guideloom.add_command(inspect)
guideloom.add_command(prune)
guideloom.add_command(snapshots)
guideloom.add_command(verify)
