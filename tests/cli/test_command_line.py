"""The command line as a whole: help, exit codes, failures, and what it loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import guideloom as gl
from guideloom.cli.app import guideloom
from tests.cli.conftest import Run

ROOT = Path(gl.__file__).parents[1]


def python(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_python_m(prose: Path, tmp_path: Path) -> None:
    built = python("-m", "guideloom", "build", prose, "--out", tmp_path / "out", "--tokenizer", "bytes")
    assert (built.returncode, built.stderr) == (0, "")
    shown = python("-m", "guideloom", "inspect", tmp_path / "out", "--window", 8)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "'Call me '" in shown.stdout
    assert python("-m", "guideloom", "inspect", tmp_path / "none").returncode == 1
    assert python("-m", "guideloom", "inspect").returncode == 2


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"guideloom, version {gl.__version__}\n"


@pytest.mark.parametrize("command", [[], *([name] for name in guideloom.commands)])
def test_help_has_an_example(run: Run, command: list[str]) -> None:
    shown = run(*command, "--help").stdout
    assert shown == run(*command, "-h").stdout
    assert "Example:\n    guideloom " in shown
    example = shown[shown.index("Example:") :]
    for line in example.splitlines()[1:]:
        name = line.split()[1]
        assert name in guideloom.commands
        options = [word for word in line.split() if word.startswith("--")]
        known = [option for parameter in guideloom.commands[name].params for option in parameter.opts]
        assert set(options) <= set(known)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["inspct", "x"], "inspect"),
        (["biuld"], "build"),
        (["inspect", "x", "--windows", "3"], "--window"),
        (["build", "x", "--tokeniser", "bytes"], "--tokenizer"),
    ],
)
def test_what_is_misspelt_gets_a_hint(run: Run, arguments: list[str], hint: str, tmp_path: Path) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Did you mean" in result.stderr
    assert hint in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "x", "--window", "0"],
        ["inspect", "x", "--samples", "-1"],
        ["build", "missing.txt", "--out", "out", "--tokenizer", "bytes"],
        ["build", __file__, "--out", "out", "--tokenizer", "missing.json"],
        ["build", __file__, "--out", "out", "--tokenizer", "bytes", "--dtype", "int8"],
        ["build", __file__, "--out", "out", "--tokenizer", "bytes", "--shards", "0"],
        ["build", __file__, "--out", "out", "--tokenizer", "bytes", "--eos", "END"],
        ["build", __file__, "--tokenizer", "bytes"],
        ["build", "--out", "out", "--tokenizer", "bytes"],
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")
    assert not list(tmp_path.iterdir())


def test_errors_of_the_library_are_one_block(run: Run, tmp_path: Path) -> None:
    result = run("inspect", tmp_path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"Error: there is no dataset at {tmp_path}: it has no guideloom.json\n"


def test_errors_of_writing_name_the_file(run: Run, prose: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("build", prose, "--out", tmp_path / "file" / "out", "--tokenizer", "bytes")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {tmp_path / 'file'} cannot be written: ")


def test_errors_of_the_system_name_the_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "corpus/secret.txt")

    monkeypatch.setattr("guideloom.datasets.opening.find_dataset", fail)
    result = run("inspect", "corpus")
    assert (result.exit_code, result.stderr) == (1, "Error: corpus/secret.txt: Permission denied\n")


def test_errors_of_ours_keep_their_traceback(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("guideloom.datasets.opening.find_dataset", fail)
    with pytest.raises(ZeroDivisionError):
        run("inspect", tmp_path)


def test_an_interrupt_ends_with_130(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("guideloom.datasets.opening.find_dataset", interrupt)
    result = run("inspect", tmp_path)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "\ninterrupted\n")


@pytest.mark.parametrize("missing", [["click"], ["rich"], ["click", "rich"]])
def test_without_the_extra_one_line_says_so(missing: list[str]) -> None:
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in missing)
    result = python("-c", f"import sys; {hide}from guideloom.__main__ import main; main()", "--help")
    assert result.returncode == 2
    assert result.stdout == ""
    names = " and ".join(missing)
    assert result.stderr == f'The command line needs {names}: pip install "guideloom[cli]"\n'


def test_a_tokenizer_file_without_its_package(
    run: Run, prose: Path, tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    result = run("build", prose, "--out", tmp_path / "out", "--tokenizer", tokenizer_file)
    assert result.exit_code == 2
    assert 'pip install "guideloom[cli]"' in result.stderr
    assert run("build", prose, "--out", tmp_path / "out", "--tokenizer", "bytes").exit_code == 0


def test_help_loads_nothing_heavy() -> None:
    code = "import sys\nfrom guideloom.__main__ import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    result = python("-c", code, "--help")
    assert result.returncode == 0
    loaded = set(result.stderr.split())
    assert "guideloom.cli.build" in loaded
    assert not loaded & {"rich", "tokenizers", "torch", "aiohttp", "guideloom.cli.building", "guideloom.cli.contents"}


def test_every_command_takes_json() -> None:
    for command in guideloom.commands.values():
        assert any("--json" in parameter.opts for parameter in command.params)
        assert isinstance(command, click.Command)
