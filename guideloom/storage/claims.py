"""Who says that he is writing a shard: told to others at once, and never in their way when he is gone.

A claim is advisory. Files have names of their own, so two writers of one shard do not disturb each other, claim or not,
and a commit compares what they wrote. What a claim adds is that the second of two live ones hears of the first before
hours of work are done twice.
"""

import errno
import os
import secrets
import shutil
import socket
import time
from pathlib import Path

import msgspec

from guideloom.errors import GuideLoomError, ShardClaimedError
from guideloom.storage.durable import NEW_FILE, read_file, rename_new, temporary_path, writing
from guideloom.storage.names import CLAIMS_FOLDER

# An owner on another host is alive if it has touched its claim within the lease; a writer does so between appends.
LEASE_SECONDS = 600.0
HEARTBEAT_SECONDS = 60.0
MAX_TASK_LENGTH = 1000

_OWNER_FILE = "owner.json"
_MAX_OWNER_BYTES = 64 * 1024


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who holds a claim.

    Parameters
    ----------
    task : str
        What the caller calls the work; another attempt at the same task may take the claim over.
    host : str
        Name of the host.
    kernel : str
        What is equal for two processes that see each other's numbers: the boot of the host, and the namespace.
    pid, started : int
        The process, and when it started, since numbers are used again.
    token : str
        Of this claim alone.
    """

    task: str
    host: str
    kernel: str
    pid: int
    started: int
    token: str


class Claim:
    """A claim to a shard, held by this process. Made by `take_claim`."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self._path = path
        self._owner = owner
        self._next_beat = time.monotonic() + HEARTBEAT_SECONDS

    def refresh(self) -> None:
        """Show that the owner is alive, once a minute at most."""
        if time.monotonic() < self._next_beat:
            return
        self._next_beat = time.monotonic() + HEARTBEAT_SECONDS
        try:
            os.utime(self._path / _OWNER_FILE)
        except OSError:  # taken over, or pruned: it was advisory
            return

    def release(self) -> None:
        """Give the claim back, unless somebody else holds it by now. May be called again."""
        if _read_owner(self._path) == self._owner:
            _move_away(self._path, self._owner)


def take_claim(root: Path, number: int, task: str) -> Claim:
    """Claim a shard for a task.

    A claim of the same task is taken over, and so is that of an owner that is gone: of a process of this host that has
    ended, or of one on another host that has not touched its claim for ten minutes.

    Parameters
    ----------
    root : Path
        Folder of the dataset.
    number : int
        Number of the shard.
    task : str
        Name of the work, the same for each attempt at it.

    Raises
    ------
    ShardClaimedError
        If another task that is alive holds it.
    TypeError or ValueError
        If `task` is no text of 1 to 1,000 characters.
    WriteError
        If the claim cannot be written.
    """
    if not isinstance(task, str):
        raise TypeError(f"task is the name of the work, a str, not {type(task).__name__}")
    if not 0 < len(task) <= MAX_TASK_LENGTH:
        raise ValueError(f"task has {len(task)} characters; its name has 1 to {MAX_TASK_LENGTH}")
    path = root / CLAIMS_FOLDER / f"{number:08d}"
    owner = Owner(task, socket.gethostname(), _kernel(), os.getpid(), _started(os.getpid()) or 0, secrets.token_hex(16))
    prepared = temporary_path(path)
    try:
        with writing(path):
            os.makedirs(prepared)
            descriptor = os.open(prepared / _OWNER_FILE, NEW_FILE, 0o666)
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(owner))
            now = os.stat(prepared / _OWNER_FILE).st_mtime  # by the clock of the file system, which dates claims
            while not _rename_new(prepared, path):
                other = _read_owner(path)
                if other is not None and other.task != task and _is_alive(other, path, now):
                    raise ShardClaimedError(
                        f"shard {number} is being written by task {other.task!r}, process {other.pid} on {other.host}; "
                        "write another shard, or use the same task to take it over",
                        shards=[number],
                        task=other.task,
                        host=other.host,
                        pid=other.pid,
                    )
                _move_away(path, other)
    finally:
        shutil.rmtree(prepared, ignore_errors=True)
    return Claim(path, owner)


def _rename_new(prepared: Path, path: Path) -> bool:
    """Rename a folder unless its new name is taken; of several that try, one succeeds."""
    try:
        rename_new(prepared, path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False
    return True


def _move_away(path: Path, owner: Owner | None) -> None:
    """Remove the claim of `owner`; if somebody else's is found to have come in its place, put that back."""
    away = temporary_path(path)
    try:
        os.rename(path, away)
        if _read_owner(away) == owner or not _rename_new(away, path):
            shutil.rmtree(away, ignore_errors=True)
    except OSError:  # somebody else was faster
        return


def _read_owner(path: Path) -> Owner | None:
    """Return who holds a claim; None if nobody does, or a power cut left half of it."""
    try:
        return msgspec.json.decode(read_file(path / _OWNER_FILE, max_bytes=_MAX_OWNER_BYTES), type=Owner)
    except (GuideLoomError, ValueError, RecursionError):
        return None


def _is_alive(owner: Owner, path: Path, now: float) -> bool:
    if (owner.host, owner.kernel) == (socket.gethostname(), _kernel()):
        started = _started(owner.pid)
        return started is not None and started == owner.started
    try:
        return now - os.stat(path / _OWNER_FILE).st_mtime <= LEASE_SECONDS
    except OSError:
        return False


def _kernel() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; 0 where the system does not tell; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except FileNotFoundError:
        if os.path.exists("/proc/self/stat"):
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0
