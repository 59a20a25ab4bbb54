"""The end of a program: exit code 0, a silent stderr, within five seconds, whatever was under way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adversity.programs import run_program
from tests.streams import counted, store, stream_files

PROLOGUE = """
    import asyncio, atexit, sys, threading, time
    import guideloom as gl
    dataset = gl.open_dataset(sys.argv[1], window=50)
"""
ENDINGS = {
    "a loader in mid-prefetch": """
        loader = gl.Loader(dataset, 4, shuffle=True)
        batches = iter(loader)
        next(batches)
    """,
    "a tensor loader in mid-prefetch": """
        loader = gl.StatefulDataLoader(dataset, 4, shuffle=True)
        for batch in loader:
            break
    """,
    "an iterator alone": """
        batches = iter(gl.Loader(dataset, 4))
        next(batches)
    """,
    "a loader that was closed": """
        with gl.Loader(dataset, 4) as loader:
            next(iter(loader))
    """,
    "close registered at exit": """
        loader = gl.Loader(dataset, 4)
        atexit.register(loader.close)
        next(iter(loader))
    """,
    "close registered before the import": """
        loader = None
        atexit.register(lambda: loader.close())
        loader = gl.Loader(dataset, 4)
        next(iter(loader))
    """,
    "an open reader": """
        reader = dataset.sync_reader()
        reader.open()
        reader[3]
        batches = reader.batches(2)
        next(batches)
    """,
    "a cycle of garbage": """
        class Node: pass
        node = Node()
        node.itself, node.loader = node, gl.Loader(dataset, 4)
        node.batches = iter(node.loader)
        next(node.batches)
        del node
    """,
    "a loader in another thread": """
        def work():
            for batch in gl.Loader(dataset, 1):
                time.sleep(0.001)
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.1)
    """,
    "asyncio.run left in the middle": """
        async def main():
            async with dataset.async_reader() as reader:
                async for batch in reader.batches(2, prefetch=32):
                    return
        asyncio.run(main())
    """,
    "an async reader never closed": """
        async def main():
            reader = dataset.async_reader()
            await reader.open()
            await reader.read(2)
        asyncio.run(main())
    """,
    "a custom backend that hangs": """
        class Hangs(gl.RangeBackend):
            async def read_range(self, path, offset, length):
                if path.endswith("json"):
                    with open(sys.argv[1] + "/" + path, "rb") as file:
                        return file.read()
                await asyncio.Event().wait()
        loader = gl.Loader(gl.open_dataset(Hangs(), window=50), 4)
        batches = iter(loader)
        time.sleep(0.05)
    """,
    "sys.exit(0) within the loop": """
        for batch in gl.Loader(dataset, 4):
            sys.exit(0)
    """,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(stream_files(counted([30_000, 0, 1, 20_000], "<i4")), tmp_path_factory.mktemp("data"))


def dedented(text: str) -> str:
    return "\n".join(line[4:] if line.startswith("        ") else line for line in text.splitlines())


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_well(root: Path, ending: str) -> None:
    """C52, P4, promise 6."""
    outcome = run_program(PROLOGUE + dedented(ENDINGS[ending]), root, environment={"PYTHONDEVMODE": "1"})
    assert (outcome.status, outcome.errors) == (0, "")
    assert outcome.seconds < 5


def test_an_error_of_the_program_is_all_that_is_told(root: Path) -> None:
    """C52: only the user's traceback."""
    code = """
        for batch in gl.Loader(dataset, 4):
            raise ZeroDivisionError("of the user")
    """
    outcome = run_program(PROLOGUE + dedented(code), root)
    assert outcome.status == 1
    assert outcome.errors.count("Traceback") == 1
    assert outcome.errors.rstrip().endswith("ZeroDivisionError: of the user")
    assert outcome.seconds < 5


def test_a_loop_that_is_blocked_for_good_does_not_hold_up_the_end(root: Path) -> None:
    """T10: a custom backend that blocks the loop's thread; the program ends all the same, a few seconds later."""
    code = """
        class Blocks(gl.RangeBackend):
            async def read_range(self, path, offset, length):
                if path.endswith("json"):
                    with open(sys.argv[1] + "/" + path, "rb") as file:
                        return file.read()
                time.sleep(60)
        loader = gl.Loader(gl.open_dataset(Blocks(), window=50), 4)
        batches = iter(loader)
        time.sleep(0.05)
        begin = time.monotonic()
        loader.close()
        assert time.monotonic() - begin < 6
    """
    outcome = run_program(PROLOGUE + dedented(code), root)
    assert (outcome.status, outcome.errors) == (0, "")
    assert outcome.seconds < 15
