/* Positioned vector reads that finish what the kernel cut short, and a way to read only what is already cached. */
#ifndef GUIDELOOM_PREAD_H
#define GUIDELOOM_PREAD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#if defined(_WIN32)
#define GUIDELOOM_HAVE_PREADV 0
struct iovec { void *iov_base; size_t iov_len; };
static inline ssize_t preadv(int fd, const struct iovec *v, int n, int64_t at) { errno = ENOSYS; return -1; }
#else
#define GUIDELOOM_HAVE_PREADV 1
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>
#endif

/* The kernel moves at most 2**31 - 4096 bytes a call; asking for less keeps every platform within its own limit. */
#define GUIDELOOM_MOST_BYTES (1 << 30)

/* Read all of `parts` from `offset`. Return the bytes read: fewer than asked only at the end of the file.
 * Return -errno for an error, after EINTR and short reads were taken up again. `parts` is consumed. */
static inline int64_t gl_read_all(int fd, struct iovec *parts, int num_parts, int64_t offset) {
    int64_t done = 0;
    while (num_parts > 0) {
        if (parts->iov_len == 0) { parts++; num_parts--; continue; }
        struct iovec part = *parts;
        int several = num_parts > 1;
        if (part.iov_len > GUIDELOOM_MOST_BYTES) { part.iov_len = GUIDELOOM_MOST_BYTES; several = 0; }
        ssize_t n = several ? preadv(fd, parts, num_parts, offset + done) : preadv(fd, &part, 1, offset + done);
        if (n < 0) {
            if (errno == EINTR) continue;
            return -(int64_t)errno;
        }
        if (n == 0) break;
        done += n;
        while (n > 0) {
            size_t step = (size_t)n < parts->iov_len ? (size_t)n : parts->iov_len;
            parts->iov_base = (char *)parts->iov_base + step;
            parts->iov_len -= step;
            n -= (ssize_t)step;
            if (parts->iov_len == 0) { parts++; num_parts--; }
        }
    }
    return done;
}

/* Read `parts` only if all of it is in the page cache. Return 1 if so, 0 if it must be read the ordinary way,
 * -1 if this filesystem cannot tell. */
static inline int gl_read_cached(int fd, const struct iovec *parts, int num_parts, int64_t offset, int64_t length) {
#if defined(RWF_NOWAIT)
    ssize_t n = preadv2(fd, parts, num_parts, offset, RWF_NOWAIT);
    if (n == (ssize_t)length) return 1;
    return n < 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) ? -1 : 0;
#else
    return -1;
#endif
}

/* Ask the kernel to start reading a range, without waiting for it. */
static inline void gl_will_need(int fd, int64_t offset, int64_t length) {
#if defined(POSIX_FADV_WILLNEED)
    (void)posix_fadvise(fd, offset, length, POSIX_FADV_WILLNEED);
#endif
}

/* Forget cached pages of a range, so that the next read comes from the device. */
static inline void gl_dont_need(int fd, int64_t offset, int64_t length) {
#if defined(POSIX_FADV_DONTNEED)
    (void)posix_fadvise(fd, offset, length, POSIX_FADV_DONTNEED);
#endif
}

#endif
