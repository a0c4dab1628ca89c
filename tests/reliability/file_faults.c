/* Faults in file operations and in the clock, for the tests of reliability.
 *
 * Loaded with LD_PRELOAD, it counts the operations of this process that change files under a folder,
 * whoever calls them (Python, Arrow, safetensors), and kills the process inside the n-th of them, or
 * makes it fail with an error number. Python arms it with ctypes (see children.py).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { NOTHING, KILL, FAIL_ONCE, FAIL_ALL };

static char prefix[PATH_MAX];
static size_t prefix_length;
static atomic_long seen, clock_calls;
static long at_operation, clock_jump;
static int action, fault, log_file = -1, armed;

/* Arm the faults: act on the n-th operation under `folder`; log each operation if log >= 0. */
void faults_arm(const char *folder, long n, int what, int number, int log) {
    strncpy(prefix, folder, sizeof prefix - 1);
    prefix_length = strlen(prefix);
    at_operation = n, action = what, fault = number, log_file = log;
    atomic_store(&seen, 0);
    armed = 1;
}

void faults_disarm(void) { armed = 0; }

/* The real-time clock goes forward and back by so many seconds, every few calls. */
void faults_clock(long seconds) { clock_jump = seconds; }

static int is_deleting(const char *kind) { return !strcmp(kind, "unlink") || !strcmp(kind, "rmdir"); }

/* What to do with an operation on this absolute path: NOTHING, KILL or FAIL_ONCE (fail now). */
static int decide(const char *kind, const char *path) {
    if (!armed || strncmp(path, prefix, prefix_length)) return NOTHING;
    if (path[prefix_length] && path[prefix_length] != '/') return NOTHING;
    if (action >= FAIL_ONCE && fault == ENOSPC && is_deleting(kind)) return NOTHING;
    long n = atomic_fetch_add(&seen, 1) + 1;
    int acts = action != NOTHING && (n == at_operation || (action == FAIL_ALL && n > at_operation));
    if (log_file >= 0 && (action == NOTHING || n == at_operation)) {
        char line[PATH_MAX + 64];
        int length = snprintf(line, sizeof line, "%ld\t%s\t%s\n", n, kind, path);
        syscall(SYS_write, log_file, line, length);
    }
    if (!acts) return NOTHING;
    return action == KILL ? KILL : FAIL_ONCE;
}

static void die(void) {
    syscall(SYS_kill, (long)getpid(), SIGKILL);
    for (;;) pause();
}

static int decide_descriptor(const char *kind, int descriptor) {
    if (!armed) return NOTHING;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return NOTHING;
    path[length] = 0;
    return decide(kind, path);
}

static int decide_at(const char *kind, int folder, const char *path) {
    if (!armed || path == NULL) return NOTHING;
    if (path[0] == '/') return decide(kind, path);
    char link[64], whole[2 * PATH_MAX];
    if (folder == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, whole, PATH_MAX - 1);
    if (length < 0) return NOTHING;
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    return decide(kind, whole);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define ACT(decision) do { int acts = (decision); if (acts == KILL) die(); \
    if (acts) { errno = fault; return -1; } } while (0)

static int writes(int flags) { return (flags & (O_CREAT | O_TRUNC)) || (flags & O_ACCMODE) != O_RDONLY; }

#define OPEN(name, parameters, folder, arguments) \
    int name parameters { \
        REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \
        if (writes(flags)) ACT(decide_at("open", folder, path)); \
        return real arguments; \
    }
OPEN(open, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(openat, (int folder, const char *path, int flags, ...), folder, (folder, path, flags, mode))
OPEN(openat64, (int folder, const char *path, int flags, ...), folder, (folder, path, flags, mode))

/* A process that is killed inside a write has written half of it. */
#define WRITE(name, parameters, half, whole) \
    ssize_t name parameters { \
        REAL(name); \
        int acts = decide_descriptor("write", descriptor); \
        if (acts == KILL) { real half; die(); } \
        if (acts) { errno = fault; return -1; } \
        return real whole; \
    }
WRITE(write, (int descriptor, const void *buffer, size_t count),
      (descriptor, buffer, count / 2), (descriptor, buffer, count))
WRITE(pwrite64, (int descriptor, const void *buffer, size_t count, off64_t offset),
      (descriptor, buffer, count / 2, offset), (descriptor, buffer, count, offset))
WRITE(pwrite, (int descriptor, const void *buffer, size_t count, off_t offset),
      (descriptor, buffer, count / 2, offset), (descriptor, buffer, count, offset))
WRITE(writev, (int descriptor, const struct iovec *parts, int count),
      (descriptor, parts, count / 2), (descriptor, parts, count))

#define SIMPLE(name, parameters, decision, arguments) \
    int name parameters { REAL(name); ACT(decision); return real arguments; }
SIMPLE(fsync, (int descriptor), decide_descriptor("fsync", descriptor), (descriptor))
SIMPLE(fdatasync, (int descriptor), decide_descriptor("fsync", descriptor), (descriptor))
SIMPLE(ftruncate, (int descriptor, off_t size), decide_descriptor("truncate", descriptor), (descriptor, size))
SIMPLE(ftruncate64, (int descriptor, off64_t size), decide_descriptor("truncate", descriptor), (descriptor, size))
SIMPLE(truncate, (const char *path, off_t size), decide_at("truncate", AT_FDCWD, path), (path, size))
SIMPLE(truncate64, (const char *path, off64_t size), decide_at("truncate", AT_FDCWD, path), (path, size))
SIMPLE(rename, (const char *old, const char *path), decide_at("rename", AT_FDCWD, path), (old, path))
SIMPLE(renameat, (int from, const char *old, int to, const char *path), decide_at("rename", to, path), (from, old, to, path))
SIMPLE(renameat2, (int from, const char *old, int to, const char *path, unsigned flags), decide_at("rename", to, path), (from, old, to, path, flags))
SIMPLE(unlink, (const char *path), decide_at("unlink", AT_FDCWD, path), (path))
SIMPLE(unlinkat, (int folder, const char *path, int flags),
       decide_at(flags & AT_REMOVEDIR ? "rmdir" : "unlink", folder, path), (folder, path, flags))
SIMPLE(rmdir, (const char *path), decide_at("rmdir", AT_FDCWD, path), (path))
SIMPLE(mkdir, (const char *path, mode_t mode), decide_at("mkdir", AT_FDCWD, path), (path, mode))
SIMPLE(mkdirat, (int folder, const char *path, mode_t mode), decide_at("mkdir", folder, path), (folder, path, mode))
SIMPLE(chmod, (const char *path, mode_t mode), decide_at("chmod", AT_FDCWD, path), (path, mode))
SIMPLE(fchmodat, (int folder, const char *path, mode_t mode, int flags), decide_at("chmod", folder, path), (folder, path, mode, flags))

int clock_gettime(clockid_t id, struct timespec *now) {
    REAL(clock_gettime);
    int result = real(id, now);
    if (clock_jump && id == CLOCK_REALTIME && result == 0)
        now->tv_sec += atomic_fetch_add(&clock_calls, 1) / 5 % 2 ? clock_jump : -clock_jump;
    return result;
}
