"""Every block of Python in the README and the docs runs as printed.

The blocks of a page are one program, run in order in a folder that holds the small dataset ``data/corpus``. A block
that begins with a file's name (``# write.py``) is a script of its own. What cannot run is not marked as ``python``.
"""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import guideloom as gl

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPT_NAME = re.compile(r"# ([\w-]+\.py)\n")


class Block(NamedTuple):
    line: int
    code: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in BLOCK.finditer(text):
        yield Block(text.count("\n", 0, match.start(1)), match[1])


@pytest.fixture
def one_thread() -> Iterator[None]:
    """So small models lose more than they gain by a second thread, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if any(blocks(page))],
)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = gl.StreamStorage.create(tmp_path / "data/corpus", dtype=[("tokens", "<u2"), ("loss_mask", "u1")])
    for number in range(3):
        with storage.writer(number) as shard:
            tokens = (np.arange(20_000) + number) % 257  # as of bytes
            shard.append({"tokens": tokens, "loss_mask": tokens % 7 > 0})
    storage.commit()
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        script = SCRIPT_NAME.match(block.code)
        if script:
            Path(script[1]).write_text(block.code)
            for _ in range(2 if script[1] == "train.py" else 1):  # which resumes the second time
                runpy.run_path(str(tmp_path / script[1]), run_name="__main__")  # whole, for processes it starts
        else:
            code = "\n" * block.line + block.code  # so that a traceback names the page's own line
            exec(compile(code, str(page), "exec"), namespace)


def test_the_pages_have_blocks() -> None:
    assert {"README.md", "format.md", "shuffle.md", "state.md"} <= {page.name for page in PAGES if any(blocks(page))}
