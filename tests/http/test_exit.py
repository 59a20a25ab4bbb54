"""The end of a program that reads over HTTP: exit code 0 and a silent stderr, whatever was under way."""

from __future__ import annotations

import pytest

from tests.adversity.programs import run_program
from tests.adversity.test_exit import ENDINGS, PROLOGUE, dedented
from tests.http.misbehaving import MisbehavingServer
from tests.streams import counted, stream_files

FILES = stream_files(counted([30_000, 0, 1, 20_000], "<i4"))


# aiohttp itself complains of a reader that a program's own loop left open, as it should; and a thread that goes on
# while connections are closed may still be told that its loader is.
OTHERS = {"a custom backend that hangs", "an async reader never closed", "a loader in another thread"}


@pytest.mark.parametrize("ending", sorted(set(ENDINGS) - OTHERS))
def test_a_program_ends_well(ending: str) -> None:
    """P4."""
    with MisbehavingServer(FILES) as server:
        outcome = run_program(PROLOGUE + dedented(ENDINGS[ending]), server.url, environment={"PYTHONDEVMODE": "1"})
    assert (outcome.status, outcome.errors) == (0, "")
    assert outcome.seconds < 10
