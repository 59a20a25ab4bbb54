"""Text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

_PIPE_WIDTH = 120  # columns, where no terminal says


def printable(text: str) -> str:
    """Return `text` with its control characters escaped: what comes from a dataset may hold anything."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def print_table(title: str, rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table of text that may hold anything: neither markup nor control characters take effect."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    table = Table(title=printable(title), box=SIMPLE, show_header=False, title_justify="left", title_style="bold")
    for row in rows:
        table.add_row(*(Text(printable(cell), overflow="fold") for cell in row))
    console.print(table)
