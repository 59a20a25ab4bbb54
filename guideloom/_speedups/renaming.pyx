"""The rename that the standard library lacks."""

import os

cdef extern from "rename.h" nogil:
    int gl_rename_new(const char *old_path, const char *new_path)


def rename_new(bytes old not None, bytes new not None):
    """Rename `old` to `new`, atomically, unless something is called `new`: `renameat2` with ``RENAME_NOREPLACE``.

    Raises ``OSError``: ``EEXIST`` if the name is taken, ``ENOSYS`` or ``EINVAL`` where the kernel or the file system
    cannot do it.
    """
    if b"\0" in old or b"\0" in new:
        raise ValueError("a name holds a null byte")
    cdef const char *old_path = old
    cdef const char *new_path = new
    cdef int code
    with nogil:
        code = gl_rename_new(old_path, new_path)
    if code:
        raise OSError(code, os.strerror(code), os.fsdecode(old), None, os.fsdecode(new))
