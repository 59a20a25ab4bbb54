"""What importing the package does, and what its parts may import."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import guideloom
import guideloom.backends

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "guideloom"

SOURCES = sorted(path for path in (PACKAGE / "_speedups").iterdir() if path.suffix in (".pyx", ".pxd", ".pyi"))

AUDITED_IMPORT = """
import sys, threading

events = []
watched = ("socket.", "subprocess.", "os.fork")
sys.addaudithook(lambda event, args: event.startswith(watched) and events.append(event))
start = threading.Thread.start
threading.Thread.start = lambda self: events.append("thread") or start(self)

import asyncio
for name in ("new_event_loop", "SelectorEventLoop"):
    setattr(asyncio, name, lambda *args: events.append("loop"))

import guideloom  # or what it is replaced by

print(events, threading.active_count())
print(sorted({"torch", "aiohttp", "uvloop", "aiofiles", "click", "rich", "tokenizers", "pyarrow"} & set(sys.modules)))
"""


def test_import_starts_nothing_and_loads_nothing_heavy() -> None:
    result = subprocess.run(
        [sys.executable, "-c", AUDITED_IMPORT], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.splitlines() == ["[] 1", "[]"]


def test_the_audit_sees_a_loop_and_a_thread() -> None:
    code = AUDITED_IMPORT.replace(
        "import guideloom ", "threading.Thread(target=int).start(); asyncio.new_event_loop() "
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.startswith("['thread', 'loop']")


def test_import_contracts() -> None:
    # In a process of its own: it switches existing loggers off.
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout


# The contracts read .py files only, and take a compiled module for the root package: hence the next two.


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_speedups_import_nothing_of_ours(path: Path) -> None:
    pattern = r"^\s*(?:from|import|cimport)\s+(guideloom[\w.]*)"
    found = set(re.findall(pattern, path.read_text(), re.MULTILINE))
    allowed = "guideloom._typing" if path.suffix == ".pyi" else "guideloom._speedups"
    assert all(name.startswith(allowed) for name in found), found


def test_only_the_command_line_imports_the_root() -> None:
    parts = {path.stem for path in PACKAGE.iterdir()}
    found = []
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] in ("__init__.py", "__main__.py", "cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = {alias.name for alias in node.names} if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
            if isinstance(node, ast.ImportFrom):
                names = names - parts if node.module == "guideloom" else set()
            else:
                names &= {"guideloom"}
            if names:
                found.append((path.name, names))
    assert not found


@pytest.mark.parametrize("name", guideloom.__all__)
def test_public_names_are_there_and_documented(name: str) -> None:
    value = getattr(guideloom, name)
    if name == "__version__":
        assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", value)
        return
    assert value.__doc__
    assert value.__name__.rpartition(".")[2] == name
    if inspect.isclass(value):
        methods = [member for key, member in vars(value).items() if not key.startswith("_") and callable(member)]
        assert all(inspect.getdoc(method) for method in methods)


@pytest.mark.parametrize("name", guideloom.backends.__all__)
def test_names_of_the_backends_are_there_and_documented(name: str) -> None:
    assert getattr(guideloom.backends, name).__doc__


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'DataLoader'"):
        _ = guideloom.DataLoader


def test_version_is_that_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{guideloom.__version__}"\n' in project
