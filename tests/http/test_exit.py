"""The end of a program that reads over HTTP: exit code 0 and a silent stderr, whatever was under way."""

from __future__ import annotations

import time

import pytest

from tests.adversity.programs import run_program
from tests.adversity.test_exit import ENDINGS, PROLOGUE, dedented
from tests.http.misbehaving import MisbehavingServer
from tests.streams import counted, stream_files

# Imports of torch may take long on a busy machine.
IMPORTED = """
    gl.StatefulDataLoader
    print(time.time())
"""
FILES = stream_files(counted([30_000, 0, 1, 20_000], "<i4"))


# aiohttp itself complains of a reader that a program's own loop left open, as it should; and a thread that goes on
# while connections are closed may still be told that its loader is.
OTHERS = {"a custom backend that hangs", "an async reader never closed", "a loader in another thread"}


@pytest.mark.parametrize("ending", sorted(set(ENDINGS) - OTHERS))
def test_a_program_ends_well(ending: str) -> None:
    """P4."""
    with MisbehavingServer(FILES) as server:
        code = PROLOGUE + IMPORTED + dedented(ENDINGS[ending])
        outcome = run_program(code, server.url, environment={"PYTHONDEVMODE": "1"})
        ended = time.time()
    assert (outcome.status, outcome.errors) == (0, "")
    assert ended - float(outcome.output) < 5
