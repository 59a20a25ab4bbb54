"""Open files, kept for reuse and bounded for the whole process."""

from __future__ import annotations

import errno
import os
import resource
import stat
import threading
from collections import OrderedDict

from guideloom._speedups.reading import Mapping
from guideloom.errors import BackendError

# A quarter of the soft limit at most, so that user code and other libraries have room for theirs.
MOST_OPEN_FILES = 256


def _capacity() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN_FILES if soft == resource.RLIM_INFINITY else max(8, min(MOST_OPEN_FILES, soft // 4))


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a file for reading, and refuse anything that is not a regular one."""
    # O_NONBLOCK: a FIFO put in place of a shard must not hang the open.
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BackendError(f"{path} is not a regular file", path=path, errno=errno.EINVAL)
    return descriptor


class _Entry:
    __slots__ = ("descriptor", "doomed", "lock", "mapped", "mapping", "pins")

    def __init__(self) -> None:
        self.descriptor = -1
        self.mapping: Mapping | None = None
        self.mapped = False  # or tried to
        self.pins = 0
        self.doomed = False  # closed by its owner: goes with its last pin
        self.lock = threading.Lock()


class DescriptorCache:
    """Descriptors of read-only files, the least recently used closed first, and with them their memory maps.

    A file in use is pinned, and never closed under its reader. Opening happens outside the common lock, once a file.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._num_pinned = 0
        self._capacity = _capacity()
        self._lock = threading.RLock()  # a garbage collection in here may drop a backend, which closes its files

    def pin(self, path: str) -> int:
        """Return a descriptor of a file, opening it if need be; `unpin` it after use."""
        with self._lock:
            entry = self._entries.get(path) or _Entry()
            self._pin(entry)  # before it can be found: a garbage collection closes what is not in use
            entry.doomed = False
            self._entries[path] = entry
            self._entries.move_to_end(path)
            if entry.descriptor < 0:
                self._capacity = _capacity()  # the limit may have been changed
                self._evict(len(self._entries) - self._capacity)
        try:
            if entry.descriptor < 0:
                with entry.lock:
                    if entry.descriptor < 0:
                        entry.descriptor = self._open(path)
        except BaseException:
            self.unpin(path, entry_failed=entry)
            raise
        return entry.descriptor

    def pin_if_open(self, path: str) -> int:
        """Return a descriptor of a file that is open already, pinned, or -1."""
        with self._lock:
            entry = self._entries.get(path)
            if entry is None:
                return -1
            self._pin(entry)
            if entry.descriptor < 0:
                self.unpin(path, entry_failed=entry)
                return -1
            self._entries.move_to_end(path)
            return entry.descriptor

    def mapping(self, path: str, *, make: bool = True) -> Mapping | None:
        """Return the memory map of a file that is pinned, if it has one, or can have one and may be given one now."""
        entry = self._entries[path]
        if make and not entry.mapped:
            with entry.lock:
                if not entry.mapped:
                    entry.mapping = Mapping.of(entry.descriptor)
                    entry.mapped = True
        return entry.mapping

    def unpin(self, path: str, *, entry_failed: _Entry | None = None) -> None:
        """Give back a file that was pinned."""
        with self._lock:
            entry = entry_failed or self._entries.get(path)
            if entry is None:  # forgotten in a forked child
                return
            entry.pins -= 1
            self._num_pinned -= entry.pins == 0
            surplus = entry.doomed or entry.descriptor < 0 or len(self._entries) > self._capacity
            if entry.pins == 0 and surplus:
                self._close(path, entry)

    def close_below(self, root: str) -> None:
        """Close every file under a root; those in use are closed when they are unpinned."""
        prefix = os.path.join(root, "")
        with self._lock:
            for path in self._paths():
                entry = self._entries.get(path)
                if entry is not None and path.startswith(prefix):
                    if entry.pins:
                        entry.doomed = True
                    else:
                        self._close(path, entry)

    def forget_after_fork(self) -> None:
        """In a forked child: the parent's threads and their pins are not here, and its lock may be held for ever."""
        for entry in self._entries.values():
            if entry.descriptor >= 0:
                os.close(entry.descriptor)
        self._entries.clear()
        self._num_pinned = 0
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        """Whether as many files are in use as may be open: let go of yours before asking for more."""
        return self._num_pinned >= self._capacity

    def _pin(self, entry: _Entry) -> None:
        self._num_pinned += entry.pins == 0
        entry.pins += 1

    def _open(self, path: str) -> int:
        try:
            return open_regular(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        with self._lock:
            self._evict(len(self._entries))
        return open_regular(path)

    def _evict(self, count: int) -> None:
        for path in self._paths() if count > 0 else ():
            entry = self._entries.get(path)
            if entry is not None and not entry.pins and entry.descriptor >= 0:
                self._close(path, entry)
                count -= 1
                if not count:
                    return

    def _paths(self) -> list[str]:
        """Return all paths, the oldest first, as a copy: a garbage collection may close files while it is walked."""
        return list(self._entries)

    def _close(self, path: str, entry: _Entry) -> None:
        if self._entries.get(path) is entry:
            del self._entries[path]
        entry.mapping = None
        entry.mapped = False
        if entry.descriptor >= 0:
            os.close(entry.descriptor)
            entry.descriptor = -1


descriptors = DescriptorCache()
os.register_at_fork(after_in_child=descriptors.forget_after_fork)
