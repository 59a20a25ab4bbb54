/* The yardstick: windows of a stream, or documents, read by pread into one buffer that is used again and again. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

struct job {
    const int *descriptors;     /* one a file */
    const int64_t *starts;      /* first byte of each file in the stream, and the end of the last */
    int num_files;
    const int64_t *offsets;     /* of the windows, in bytes of the stream */
    int64_t num_windows;
    const int64_t *lengths;     /* of the windows, or NULL where all have `window_bytes` */
    int64_t window_bytes;       /* room for the longest */
    int64_t next;               /* first window that no thread has taken */
    int error;                  /* an errno, or 0 */
};

struct worker {
    pthread_t thread;
    struct job *job;
    char *buffer;               /* room for one window */
};

static int read_window(const struct job *job, int64_t i, char *target) {
    int low = 0, high = job->num_files;     /* the file that holds `offset` is in [low, high) */
    int64_t offset = job->offsets[i], left = job->lengths ? job->lengths[i] : job->window_bytes;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (job->starts[middle] <= offset) low = middle;
        else high = middle;
    }
    while (left > 0) {
        int64_t here = job->starts[low + 1] - offset;
        if (here <= 0) {
            if (++low == job->num_files) return ENODATA;
            continue;
        }
        ssize_t n = pread(job->descriptors[low], target, (size_t)(here < left ? here : left), offset - job->starts[low]);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : ENODATA;
        target += n;
        offset += n;
        left -= n;
    }
    return 0;
}

static void *work(void *argument) {
    struct worker *self = argument;
    struct job *job = self->job;
    for (;;) {
        int64_t i = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (i >= job->num_windows || __atomic_load_n(&job->error, __ATOMIC_RELAXED)) return NULL;
        int error = read_window(job, i, self->buffer);
        if (error) __atomic_store_n(&job->error, error, __ATOMIC_RELAXED);
    }
}

/* Read the windows at `offsets` on some threads, one of them the caller's; `buffer` has room for a window a thread.
 * Return 0 or an errno. */
int read_windows(const int *descriptors, const int64_t *starts, int num_files, const int64_t *offsets,
                 const int64_t *lengths, int64_t num_windows, int64_t window_bytes, int num_threads, char *buffer) {
    struct job job = {descriptors, starts, num_files, offsets, num_windows, lengths, window_bytes, 0, 0};
    struct worker workers[num_threads];
    int running;
    for (int i = 0; i < num_threads; i++) workers[i] = (struct worker){.job = &job, .buffer = buffer + i * window_bytes};
    for (running = 1; running < num_threads; running++) {
        int error = pthread_create(&workers[running].thread, NULL, work, &workers[running]);
        if (error) {
            __atomic_store_n(&job.error, error, __ATOMIC_RELAXED);
            break;
        }
    }
    work(&workers[0]);
    while (--running > 0) pthread_join(workers[running].thread, NULL);
    return job.error;
}
