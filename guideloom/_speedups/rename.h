/* A rename that does not replace what has the new name already. */

#ifndef GUIDELOOM_RENAME_H
#define GUIDELOOM_RENAME_H

#include <errno.h>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE (1 << 0)
#endif
#endif

/* 0, or an error number; ENOSYS where the system has no such call. */
static int gl_rename_new(const char *old_path, const char *new_path) {
#if defined(SYS_renameat2)
    return syscall(SYS_renameat2, AT_FDCWD, old_path, AT_FDCWD, new_path, RENAME_NOREPLACE) ? errno : 0;
#else
    return ENOSYS;
#endif
}

#endif
