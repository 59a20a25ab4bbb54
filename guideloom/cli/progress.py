"""Progress bars, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(what: str, *, in_bytes: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show a bar, and give what moves it: a function of what is done, and of all there is to do."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amount = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn(f"{what:10}"), BarColumn(), *amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def advancing(what: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a bar over a known number of bytes, and give what moves it on by some."""
    done = 0
    with progress(what) as update:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            update(done, num_bytes)

        yield advance
