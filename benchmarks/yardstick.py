"""The C loop that others are measured against, compiled when it is first needed."""

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks import work_folder

PathLike: TypeAlias = str | os.PathLike[str]

_SOURCE = Path(__file__).with_suffix(".c")


class Yardstick:
    """Reads windows of a stream by ``pread``, in C; a context manager.

    Parameters
    ----------
    library : path
        What `compile_yardstick` returned.
    files : sequence of path
        The files that the stream lies in, one behind the other.
    window_bytes : int
        Bytes of a window.
    num_threads : int
        Threads that read at the same time.

    Attributes
    ----------
    buffers : uint8 array of shape (num_threads, window_bytes)
        What each thread read last; 255 where one has read nothing.
    """

    def __init__(self, library: PathLike, files: Sequence[PathLike], window_bytes: int, num_threads: int = 1) -> None:
        self._read = ctypes.CDLL(os.fspath(library)).read_windows
        self._descriptors = np.array([os.open(path, os.O_RDONLY) for path in files], np.int32)
        self._starts = np.zeros(len(files) + 1, np.int64)
        np.cumsum([os.path.getsize(path) for path in files], out=self._starts[1:])
        self.buffers = np.full((num_threads, window_bytes), 255, np.uint8)

    def read(self, offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64] | None = None) -> None:
        """Read the windows at some offsets, each thread into its own buffer.

        Parameters
        ----------
        offsets : int64 array of shape (n,)
            First byte of each window in the stream; contiguous.
        lengths : int64 array of shape (n,), optional
            Bytes of each, at most `window_bytes`; all of them by default. Contiguous.

        Raises
        ------
        OSError
            If one could not be read.
        """
        num_threads, window_bytes = self.buffers.shape
        error = self._read(
            ctypes.c_void_p(self._descriptors.ctypes.data),
            ctypes.c_void_p(self._starts.ctypes.data),
            len(self._descriptors),
            ctypes.c_void_p(offsets.ctypes.data),
            ctypes.c_void_p(None if lengths is None else lengths.ctypes.data),
            ctypes.c_int64(len(offsets)),
            ctypes.c_int64(window_bytes),
            num_threads,
            ctypes.c_void_p(self.buffers.ctypes.data),
        )
        if error:
            raise OSError(error, os.strerror(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in self._descriptors.tolist():
            os.close(descriptor)


def compile_yardstick() -> Path:
    """Compile the C loop unless it is there already, and return the path of the shared library.

    Raises
    ------
    RuntimeError
        If there is no C compiler, or it fails.
    """
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise RuntimeError(f"the yardstick needs a C compiler, and there is no {compiler!r}; name one in CC")
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    library = work_folder() / f"yardstick-{digest}.so"
    if not library.exists():
        fresh = library.with_suffix(f".{os.getpid()}.tmp")
        command = [compiler, "-O2", "-shared", "-fPIC", "-pthread", "-o", str(fresh), str(_SOURCE)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr}")
        fresh.replace(library)
    return library
