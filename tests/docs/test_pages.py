"""What pages say that code says too."""

import re
from pathlib import Path

import click

from guideloom import errors
from guideloom.cli.app import guideloom
from guideloom.errors import GuideLoomError

DOCS = Path(__file__).parents[2] / "docs"
ERRORS = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, GuideLoomError) and not name.startswith("_")
}


def test_the_command_line_page_has_every_option() -> None:
    page = (DOCS / "reference/cli.md").read_text()
    for name, command in guideloom.commands.items():
        section = page.partition(f"## `guideloom {name}`")[2].partition("\n## ")[0]
        options = [option for option in command.params if isinstance(option, click.Option)]
        spoken_of = set(re.findall(r"^\| `(--[\w-]+)", section, re.MULTILINE))
        assert spoken_of == {option.opts[0] for option in options}


def test_the_errors_page_has_every_error() -> None:
    page = (DOCS / "reference/errors.md").read_text()
    listed = set(re.findall(r"^\.\. autoexception:: (\w+)$", page, re.MULTILINE))
    assert listed == ERRORS


def test_the_tree_in_the_source_names_every_error() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"(\w+)(?: \(\w+\))?(?:$|  )", errors.__doc__.partition("Each takes")[0], re.MULTILINE)
    assert set(drawn) >= ERRORS
