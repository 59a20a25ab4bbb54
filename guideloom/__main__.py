"""``python -m guideloom`` and the ``guideloom`` command."""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    """Run the command line; exit with 0, 1 for a problem with data, 2 for wrong usage, or 130 after Ctrl-C."""
    missing = [name for name in ("click", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        print(f'The command line needs {" and ".join(missing)}: pip install "guideloom[cli]"', file=sys.stderr)
        sys.exit(2)
    try:
        from guideloom.cli.app import guideloom

        guideloom(prog_name="guideloom")
    except KeyboardInterrupt:  # while modules were loading; later ones are the command line's own
        sys.exit(130)


if __name__ == "__main__":
    main()
