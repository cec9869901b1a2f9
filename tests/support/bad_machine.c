/* LD_PRELOAD: fsyncs that take longer, a wall clock that is off, and a full disk, as a file of three numbers says.

   BAD_MACHINE names a file of three 64-bit integers: microseconds that fsync and fdatasync take longer, nanoseconds
   that are added to CLOCK_REALTIME, and whether files get no room any more. The test changes them while the daemon
   runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t none[3];
static const volatile int64_t *given = none;

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("BAD_MACHINE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED)
        given = mapped;
    close(fd);
}

static void wait_long(void) {
    /* In short steps, so that a daemon ends soon after the test has set the number to 0. */
    for (int64_t waited_us = 0; waited_us < given[0]; waited_us += 10000)
        usleep(10000);
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_long();
    return real(fd);
}

int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_long();
    return real(fd);
}

static int no_room(int fd) {
    struct stat status;
    /* The log of the daemon itself is on another disk. */
    return given[2] && fd > 2 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

ssize_t write(int fd, const void *data, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real)
        real = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (no_room(fd)) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, data, size);
}

int posix_fallocate(int fd, off_t at, off_t size) {
    static int (*real)(int, off_t, off_t);
    if (!real)
        real = (int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate");
    return no_room(fd) ? ENOSPC : real(fd, at, size);
}

int posix_fallocate64(int fd, off64_t at, off64_t size) {
    return posix_fallocate(fd, at, size);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && clock == CLOCK_REALTIME && given[1]) {
        int64_t at = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + given[1];
        now->tv_sec = at / 1000000000;
        now->tv_nsec = at % 1000000000;
    }
    return failed;
}
