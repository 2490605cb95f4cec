/* Preloaded into a process: counts what is read of files under a folder, and flips a bit of one reading, once.
 *
 * flip_arm(prefix, number) begins to count anew and names the reading that is to be wrong, -1 for none; flip_count()
 * returns how many there were. Mapped files count as one reading each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static char prefix[PATH_MAX];
static long target = -1;
static atomic_long count;

void flip_arm(const char *folder, long number) {
    strncpy(prefix, folder, PATH_MAX - 1);
    target = number;
    atomic_store(&count, 0);
}

long flip_count(void) { return atomic_load(&count); }

static int is_watched(int fd) {
    char link[64], path[PATH_MAX];
    if (!prefix[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strncmp(path, prefix, strlen(prefix)) == 0;
}

static int is_hit(int fd, ssize_t length) {
    return length > 0 && is_watched(fd) && atomic_fetch_add(&count, 1) == target;
}

static ssize_t flip(int fd, void *data, ssize_t length) {
    if (is_hit(fd, length)) ((unsigned char *)data)[length / 2] ^= 4;
    return length;
}

static ssize_t flip_first(int fd, const struct iovec *parts, ssize_t length) {
    if (is_hit(fd, length)) {
        size_t read = (size_t)length < parts[0].iov_len ? (size_t)length : parts[0].iov_len;
        ((unsigned char *)parts[0].iov_base)[read / 2] ^= 4;
    }
    return length;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t read(int fd, void *data, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t);
    return flip(fd, data, real(fd, data, size));
}

ssize_t pread(int fd, void *data, size_t size, off_t offset) {
    REAL(ssize_t, "pread", int, void *, size_t, off_t);
    return flip(fd, data, real(fd, data, size, offset));
}

ssize_t pread64(int fd, void *data, size_t size, off64_t offset) {
    REAL(ssize_t, "pread64", int, void *, size_t, off64_t);
    return flip(fd, data, real(fd, data, size, offset));
}

ssize_t readv(int fd, const struct iovec *parts, int number) {
    REAL(ssize_t, "readv", int, const struct iovec *, int);
    return flip_first(fd, parts, real(fd, parts, number));
}

ssize_t preadv(int fd, const struct iovec *parts, int number, off_t offset) {
    REAL(ssize_t, "preadv", int, const struct iovec *, int, off_t);
    return flip_first(fd, parts, real(fd, parts, number, offset));
}

ssize_t preadv64(int fd, const struct iovec *parts, int number, off64_t offset) {
    REAL(ssize_t, "preadv64", int, const struct iovec *, int, off64_t);
    return flip_first(fd, parts, real(fd, parts, number, offset));
}

ssize_t preadv2(int fd, const struct iovec *parts, int number, off_t offset, int flags) {
    REAL(ssize_t, "preadv2", int, const struct iovec *, int, off_t, int);
    return flip_first(fd, parts, real(fd, parts, number, offset, flags));
}

ssize_t preadv64v2(int fd, const struct iovec *parts, int number, off64_t offset, int flags) {
    REAL(ssize_t, "preadv64v2", int, const struct iovec *, int, off64_t, int);
    return flip_first(fd, parts, real(fd, parts, number, offset, flags));
}

void *mmap64(void *address, size_t size, int protection, int flags, int fd, off64_t offset) {
    REAL(void *, "mmap64", void *, size_t, int, int, int, off64_t);
    if (fd < 0 || !size || !is_hit(fd, 1)) return real(address, size, protection, flags, fd, offset);
    unsigned char *data = real(address, size, protection | PROT_WRITE, MAP_PRIVATE, fd, offset);
    if (data != MAP_FAILED) data[size / 2] ^= 4;
    return data;
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    return mmap64(address, size, protection, flags, fd, offset);
}
