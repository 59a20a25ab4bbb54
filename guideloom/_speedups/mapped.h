/* Copies out of a memory map that survive a file which is cut short or cannot be read: where the kernel sends SIGBUS,
 * the copy ends and says so. */
#ifndef GUIDELOOM_MAPPED_H
#define GUIDELOOM_MAPPED_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdint.h>
#include <string.h>
#include "pread.h"

#if defined(__linux__)
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

/* Filesystems of this machine alone. Elsewhere a page fault waits for a server, one page after the other. */
static inline int gl_is_local(int fd) {
    struct statfs filesystem;
    if (fstatfs(fd, &filesystem) != 0) return 0;
    switch ((uint32_t)filesystem.f_type) {
    case 0xEF53u:       /* ext2, ext3, ext4 */
    case 0x58465342u:   /* XFS */
    case 0x9123683Eu:   /* btrfs */
    case 0xF2F52010u:   /* F2FS */
    case 0x01021994u:   /* tmpfs */
    case 0x794C7630u:   /* overlayfs, of containers */
        return 1;
    default:
        return 0;
    }
}

/* Map all of a file. Return NULL if it is empty, not on a local disk, or cannot be mapped. */
static inline char *gl_map(int fd, int64_t *size) {
    struct stat status;
    if (fstat(fd, &status) != 0 || status.st_size <= 0 || !gl_is_local(fd)) return NULL;
    void *map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return NULL;
    *size = status.st_size;
    return map;
}

static inline void gl_unmap(char *map, int64_t size) { (void)munmap(map, (size_t)size); }

/* Let go of the pages of a range, so that the page cache can drop them. */
static inline void gl_unmap_pages(char *map, int64_t size, int64_t offset, int64_t length) {
    int64_t page = sysconf(_SC_PAGESIZE), first = offset / page * page;
    if (first < size) (void)madvise(map + first, (size_t)((offset + length < size ? offset + length : size) - first), MADV_DONTNEED);
}

/* Where the copy under way on this thread goes on after a SIGBUS. Initial-exec: a handler must not allocate. */
static __thread sigjmp_buf *volatile gl_landing __attribute__((tls_model("initial-exec")));
static struct sigaction gl_previous_action;

static void gl_on_bus_error(int number, siginfo_t *info, void *context) {
    sigjmp_buf *landing = gl_landing;
    (void)context;
    if (landing != NULL && info->si_code > 0) siglongjmp(*landing, 1);
    (void)sigaction(number, &gl_previous_action, NULL);   /* not ours: whoever was there before sees it again */
    if (info->si_code <= 0) (void)raise(number);
}

/* Return whether copies are guarded. The handler is installed once; whoever replaces it keeps the signal. */
static inline int gl_guard(int install) {
    struct sigaction action;
    if (install) {
        memset(&action, 0, sizeof action);
        action.sa_sigaction = gl_on_bus_error;
        action.sa_flags = SA_SIGINFO | SA_NODEFER;
        (void)sigemptyset(&action.sa_mask);
        if (sigaction(SIGBUS, &action, &gl_previous_action) != 0) return 0;
    }
    return sigaction(SIGBUS, NULL, &action) == 0 && (action.sa_flags & SA_SIGINFO)
        && action.sa_sigaction == gl_on_bus_error;
}

/* Call `body`, which reads memory maps. Return 0 if it ended at what cannot be read. Copies must be guarded. */
typedef void (*gl_body)(void *, void *);
static int __attribute__((noinline)) gl_attempt(gl_body body, void *first, void *second) {
    sigjmp_buf landing;
    if (sigsetjmp(landing, 0)) {
        gl_landing = NULL;
        return 0;
    }
    gl_landing = &landing;
    __asm__ volatile("" ::: "memory");
    body(first, second);
    __asm__ volatile("" ::: "memory");
    gl_landing = NULL;
    return 1;
}

/* Bring the beginning of each page nearer, which the processor does not foresee; it sees to the rest. Never faults. */
static inline void gl_prefetch(const char *at, int64_t length) {
    const int64_t page = 4096, lines = 4 * 64, most = 16 * page;
    int64_t i, j;
    if (length > most) length = most;
    for (i = 0; i < length; i += page)
        for (j = i; j < i + lines && j < length; j += 64) __builtin_prefetch(at + j);
}

static inline int64_t gl_file_bytes(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 ? (int64_t)status.st_size : -1;
}

/* Page faults of this thread that waited for a device. */
static inline int64_t gl_major_faults(void) {
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? (int64_t)usage.ru_majflt : 0;
}

#else
static inline char *gl_map(int fd, int64_t *size) { return NULL; }
static inline void gl_unmap(char *map, int64_t size) {}
static inline void gl_unmap_pages(char *map, int64_t size, int64_t offset, int64_t length) {}
static inline int gl_guard(int install) { return 0; }
typedef void (*gl_body)(void *, void *);
static inline int gl_attempt(gl_body body, void *first, void *second) { return 0; }
static inline void gl_prefetch(const char *at, int64_t length) {}
static inline int64_t gl_file_bytes(int fd) { return -1; }
static inline int64_t gl_major_faults(void) { return 0; }
#endif

#endif
