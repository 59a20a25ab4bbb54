"""What the library is measured by: ``python -m benchmarks.stream``."""

import os
import tempfile
from pathlib import Path


def work_folder() -> Path:
    """Return the folder for data and compiled helpers: ``GUIDELOOM_BENCH_DIR``, or one below the temporary folder."""
    named = os.environ.get("GUIDELOOM_BENCH_DIR")
    folder = Path(named) if named else Path(tempfile.gettempdir()) / "guideloom-benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()
