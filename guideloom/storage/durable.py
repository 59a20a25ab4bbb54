"""Files and folders that are there whole and durably, or not at all.

The order is always the same: write under a temporary name in the same folder, sync, rename, sync the folder. What fails
on the way is final: a sync that failed once says nothing when it is repeated.

References
----------
Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014; Rebello et al., "Can Applications Recover from fsync
Failures?", USENIX ATC 2020.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from guideloom._speedups.renaming import rename_new as _speedups_rename_new
from guideloom.errors import ClosedError, ManifestError, MissingFileError, ReadError, WriteError

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp", re.ASCII | re.DOTALL)
_NO_SUCH_RENAME = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EISDIR}
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class NewFile:
    """A file that takes its name only when it is whole.

    Parameters
    ----------
    path : Path
        The name to take.

    Raises
    ------
    WriteError
        If the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = temporary_path(path)
        self._pid = os.getpid()
        self._has_name = False
        self._descriptor = -1
        with self._final():
            self._descriptor = os.open(self._temporary, NEW_FILE, 0o666)

    def check_process(self) -> None:
        """Raise `ClosedError` in a child of the process that made it."""
        if self._pid != os.getpid():
            raise ClosedError(f"{self.path} is written by the parent of this process; make a writer here")

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes.

        Raises
        ------
        WriteError
            If not all could be written; the file is gone.
        ClosedError
            In a child of the process that made it.
        """
        view = memoryview(data)
        with self._final():
            while len(view):
                view = view[os.write(self._descriptor, view) :]

    def publish(self, *, replace: bool = False) -> None:
        """Sync the file, close it, and let it take its name. The name is durable once its folder is synced.

        Parameters
        ----------
        replace : bool, default False
            Whether something else may have the name, which it then loses; else that is an error.

        Raises
        ------
        WriteError
            If a step failed; the file is gone.
        ClosedError
            In a child of the process that made it.
        """
        with self._final():
            os.fsync(self._descriptor)
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            self._has_name = True  # as far as an interrupt can tell
            try:
                (os.rename if replace else rename_new)(self._temporary, self.path)
            except FileExistsError:
                self._has_name = False
                raise

    def remove(self) -> None:
        """Remove the file, under whichever name it has. In a child of the process that made it, only close it."""
        self._discard()
        if self._pid == os.getpid() and self._has_name:
            remove(self.path)

    def _discard(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if self._pid == os.getpid():
            remove(self._temporary)

    @contextlib.contextmanager
    def _final(self) -> Iterator[None]:
        try:
            self.check_process()
            with writing(self.path):
                yield
        except BaseException:
            self._discard()
            raise


def write_file(path: Path, data: bytes, *, replace: bool = False) -> None:
    """Make `path` a file of `data`, durably.

    Parameters
    ----------
    path : Path
        Its name.
    data : bytes
        Its content.
    replace : bool, default False
        Whether it takes the place of what `path` named before; else that is an error.

    Raises
    ------
    WriteError
        If a step failed; `path` names what it did, or, if only the last sync of the folder failed, perhaps `data`.
    """
    file = NewFile(path)
    file.write(data)
    file.publish(replace=replace)
    sync_folder(path.parent)


class NewFolder:
    """A folder that takes its name only when it is whole, and only if nobody else was first. A context manager.

    Parameters
    ----------
    path : Path
        The name to take.

    Raises
    ------
    WriteError
        If the folder cannot be made under its temporary name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._prepared = temporary_path(path)
        with writing(path):
            os.mkdir(self._prepared)

    def write(self, name: str, data: bytes) -> None:
        """Put a file into it, durably. There must be one at least, since a rename can replace an empty folder.

        Raises
        ------
        WriteError
            If a step failed.
        """
        write_file(self._prepared / name, data)

    def publish(self) -> bool:
        """Let it take its name, durably. Of several that try, one succeeds.

        Returns
        -------
        bool
            Whether it did; else there is such a folder.

        Raises
        ------
        WriteError
            If a step failed; there is no such folder, or, if only the last sync of its parent failed, perhaps it is
            whole.
        """
        with writing(self.path):
            try:
                rename_new(self._prepared, self.path)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                return False
        sync_folder(self.path.parent)
        return True

    def __enter__(self) -> "NewFolder":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._prepared, ignore_errors=True)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, durably.

    Raises
    ------
    WriteError
        If one cannot be made, or is something else than a folder.
    """
    if path.is_dir():
        return
    if path != path.parent:
        make_folder(path.parent)
    with writing(path):
        try:
            os.mkdir(path)
        except FileExistsError:
            if not path.is_dir():
                raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable.

    Raises
    ------
    WriteError
        If the sync failed; this is final.
    """
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def rename_new(old: Path, new: Path) -> None:
    """Rename a file or folder within its folder, unless something has the new name.

    Where the kernel or the file system lacks such a rename, a file gets its new name as a link, which replaces nothing
    either, and loses the old one. Where there are no links, and for folders, a plain rename is left: new names of files
    hold 128 random bits, and onto a folder that is not empty a folder cannot be renamed.

    Raises
    ------
    OSError
        If the name is taken, or the system refused.
    """
    try:
        return _speedups_rename_new(os.fsencode(old), os.fsencode(new))
    except OSError as error:
        if error.errno not in _NO_SUCH_RENAME:
            raise
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return os.rename(old, new)
    return os.unlink(old)


def remove(path: Path) -> None:
    """Remove a file, if it is there and can be removed: for what is invisible anyway."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def read_file(path: Path, *, max_bytes: int) -> bytes:
    """Return a small regular file.

    Raises
    ------
    MissingFileError
        If it is not there.
    ManifestError
        If it is a link, a folder or a device, or longer than `max_bytes`.
    ReadError
        If it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
                raise ManifestError(f"{path} is no regular file of at most {max_bytes} bytes", path=str(path))
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(max_bytes)
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} is not there", path=str(path)) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ManifestError(f"{path} is a link, not a file of the dataset", path=str(path)) from error
        raise ReadError(f"{path} cannot be read: {error.strerror}", path=str(path), errno=error.errno) from error


def list_folder(path: Path) -> list[str]:
    """Return the names in a folder, in order; none if there is no such folder.

    Raises
    ------
    ReadError
        If it cannot be listed.
    """
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ReadError(f"{path} cannot be listed: {error.strerror}", path=str(path), errno=error.errno) from error


def is_temporary(name: str) -> bool:
    """Whether a name is one that `temporary_path` made."""
    return _TEMPORARY.fullmatch(name) is not None


def temporary_path(path: Path) -> Path:
    """Return a name beside `path` that nobody else has, and that no reader looks for."""
    return path.with_name(f".{path.name}.{secrets.token_hex(16)}.tmp")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise `WriteError`, which names `path`, for an error of the system."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}"
        raise WriteError(message, path=str(path), errno=error.errno) from error
