/* Stands in front of the two system calls that the library reads files with, and makes them misbehave.
 *
 * GUIDELOOM_FAULT names how:
 *   short    at most 7 bytes a call, and EINTR at every third
 *   eio      EIO for every read that touches byte 9000 of a file
 *   once     EIO for the first such read alone
 *   silent   a read that touches byte 9000 says that all went well, and brings nothing
 *   flip     the first read that brings byte 9000 brings it with a bit changed
 *   flips    each such read does
 *   hang     a read that touches byte 9000 takes a minute
 * GUIDELOOM_COLD=1 makes nothing look cached.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define BAD_BYTE 9000

typedef ssize_t (*readv_call)(int, const struct iovec *, int, off64_t);

static int calls, faults;

static const char *fault(void) {
    const char *name = getenv("GUIDELOOM_FAULT");
    return name ? name : "";
}

static ssize_t real(int fd, const struct iovec *parts, int num_parts, off64_t offset) {
    static readv_call call;
    if (!call) call = (readv_call)dlsym(RTLD_NEXT, "preadv64");
    return call(fd, parts, num_parts, offset);
}

static char *bad_byte(const struct iovec *parts, int num_parts, off64_t offset) {
    for (int i = 0; i < num_parts; i++) {
        if (offset <= BAD_BYTE && BAD_BYTE < offset + (off64_t)parts[i].iov_len)
            return (char *)parts[i].iov_base + (BAD_BYTE - offset);
        offset += (off64_t)parts[i].iov_len;
    }
    return NULL;
}

ssize_t preadv64(int fd, const struct iovec *parts, int num_parts, off64_t offset) {
    const char *name = fault();
    char *bad = bad_byte(parts, num_parts, offset);
    if (!strcmp(name, "short")) {
        if (__sync_add_and_fetch(&calls, 1) % 3 == 0) { errno = EINTR; return -1; }
        struct iovec part = parts[0];
        if (part.iov_len > 7) part.iov_len = 7;
        return real(fd, &part, 1, offset);
    }
    if (bad && (!strcmp(name, "eio") || (!strcmp(name, "once") && __sync_add_and_fetch(&faults, 1) == 1))) {
        errno = EIO;
        return -1;
    }
    if (bad && !strcmp(name, "silent")) {
        ssize_t total = 0;
        for (int i = 0; i < num_parts; i++) total += (ssize_t)parts[i].iov_len;
        return total;
    }
    if (bad && !strcmp(name, "hang")) sleep(60);
    ssize_t n = real(fd, parts, num_parts, offset);
    if (bad && n > 0 && (!strcmp(name, "flips") || (!strcmp(name, "flip") && __sync_add_and_fetch(&faults, 1) == 1)))
        *bad ^= 16;
    return n;
}

ssize_t preadv64v2(int fd, const struct iovec *parts, int num_parts, off64_t offset, int flags) {
    if (getenv("GUIDELOOM_COLD")) { errno = EAGAIN; return -1; }
    return preadv64(fd, parts, num_parts, offset);
}
