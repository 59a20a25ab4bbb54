"""For those who write backends: a suite that any backend can be put through."""

from guideloom.testing.conformance import CHECKS, check_backend
from guideloom.testing.files import FILES, LARGE_BYTES, LARGE_FILE, write_files

__all__ = ["CHECKS", "FILES", "LARGE_BYTES", "LARGE_FILE", "check_backend", "write_files"]
