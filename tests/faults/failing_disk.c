/* Has what a process does to the files below one folder fail, for LD_PRELOAD: cc -shared -fPIC -o LIB failing_disk.c -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { LET, FAIL, CUT };

static char below[PATH_MAX];
static size_t below_length;
static long first, last; /* the operations that fail, counted from 0; no operation if last < first */
static int code, is_cut; /* the error; whether a write that is the first of them takes half of its bytes instead */
static atomic_long count;

/* From now on the operations from `from` to `to` below `folder` fail with `error`. */
void disk_arm(const char *folder, long from, long to, int error, int cut) {
    snprintf(below, sizeof below, "%s", folder);
    below_length = strlen(below);
    first = from, last = to, code = error, is_cut = cut;
    atomic_store(&count, 0);
}

long disk_count(void) { return atomic_load(&count); }

static int judge(const char *path, int is_write) {
    if (!below_length || strncmp(path, below, below_length) != 0) return LET;
    long number = atomic_fetch_add(&count, 1);
    if (number < first || number > last) return LET;
    if (is_cut && number == first) return is_write ? CUT : LET;
    errno = code;
    return FAIL;
}

static int judge_file(int file, int is_write) {
    char link[64], path[PATH_MAX];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = below_length ? readlink(link, path, sizeof path - 1) : -1;
    errno = before;
    if (size < 0) return LET;
    path[size] = 0;
    return judge(path, is_write);
}

static int judge_path(const char *path) {
    char whole[2 * PATH_MAX], here[PATH_MAX];
    if (!below_length || path[0] == '/') return judge(path, 0);
    if (!getcwd(here, sizeof here)) return LET;
    snprintf(whole, sizeof whole, "%s/%s", here, path);
    return judge(whole, 0);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void *data, size_t size) {
    int verdict = judge_file(file, 1);
    return verdict == FAIL ? -1 : NEXT(write)(file, data, verdict == CUT ? size / 2 : size);
}

int fsync(int file) { return judge_file(file, 0) == FAIL ? -1 : NEXT(fsync)(file); }
int fdatasync(int file) { return judge_file(file, 0) == FAIL ? -1 : NEXT(fdatasync)(file); }
int ftruncate(int file, off_t size) { return judge_file(file, 0) == FAIL ? -1 : NEXT(ftruncate)(file, size); }
int ftruncate64(int file, off64_t size) { return judge_file(file, 0) == FAIL ? -1 : NEXT(ftruncate64)(file, size); }
int rename(const char *from, const char *to) { return judge_path(to) == FAIL ? -1 : NEXT(rename)(from, to); }
int unlink(const char *path) { return judge_path(path) == FAIL ? -1 : NEXT(unlink)(path); }
int rmdir(const char *path) { return judge_path(path) == FAIL ? -1 : NEXT(rmdir)(path); }
int mkdir(const char *path, mode_t mode) { return judge_path(path) == FAIL ? -1 : NEXT(mkdir)(path, mode); }

#define OPENING(name)                                                     \
    int name(const char *path, int flags, ...) {                          \
        va_list more;                                                     \
        va_start(more, flags);                                            \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;         \
        va_end(more);                                                     \
        if (flags & O_CREAT && judge_path(path) == FAIL) return -1;       \
        return NEXT(name)(path, flags, mode);                             \
    }
OPENING(open)
OPENING(open64)
