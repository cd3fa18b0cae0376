/* Preloaded into `tools/fail_calls.py`: makes one call of the C library fail, by its number.
 *
 * It counts the calls of one process group, including forks without exec, but not the calls of
 * programs that the group starts. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct { _Atomic int group; _Atomic long seen, fail_at; char name[32]; } *state;

/* Starts to count in the caller's process group; 0 lets no call fail. */
void fail_calls_arm(long fail_at) {
    atomic_store(&state->seen, 0);
    atomic_store(&state->fail_at, fail_at);
    memset(state->name, 0, sizeof state->name);
    atomic_store(&state->group, (int)syscall(SYS_getpgid, 0));
}
void fail_calls_disarm(void) { atomic_store(&state->group, 0); }
long fail_calls_seen(void) { return atomic_load(&state->seen); }
const char *fail_calls_name(void) { return state->name; }

__attribute__((constructor)) static void begin(void) {
    void *made = (void *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made != MAP_FAILED) state = made;
}

static int is_due(const char *name) {
    int group = state ? atomic_load(&state->group) : 0;
    if (group == 0 || (int)syscall(SYS_getpgid, 0) != group) return 0;
    if (atomic_fetch_add(&state->seen, 1) + 1 != atomic_load(&state->fail_at)) return 0;
    strncpy(state->name, name, sizeof state->name - 1);
    return 1;
}

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

/* Return type, name, parameters, arguments, errno and return value of the failure. */
#define WRAP(type, name, takes, gives, code, failed)              \
    type name takes {                                             \
        static type(*next) takes;                                 \
        if (next == NULL) *(void **)&next = real(#name);          \
        if (is_due(#name)) return errno = code, failed;           \
        return next gives;                                        \
    }
#define OPENS(name, takes, gives)                                 \
    int name takes {                                              \
        static int (*next)();                                     \
        va_list list;                                             \
        mode_t mode;                                              \
        va_start(list, flags);                                    \
        mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
        va_end(list);                                             \
        if (next == NULL) *(void **)&next = real(#name);          \
        if (is_due(#name)) return errno = EMFILE, -1;             \
        return next gives;                                        \
    }
OPENS(open, (const char *path, int flags, ...), (path, flags, mode))
OPENS(open64, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))
OPENS(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))
WRAP(DIR *, opendir, (const char *path), (path), EMFILE, NULL)
WRAP(DIR *, fdopendir, (int fd), (fd), ENOMEM, NULL)
WRAP(int, socket, (int a, int b, int c), (a, b, c), EMFILE, -1)
WRAP(int, socketpair, (int a, int b, int c, int *d), (a, b, c, d), EMFILE, -1)
WRAP(int, bind, (int a, const struct sockaddr *b, socklen_t c), (a, b, c), EADDRINUSE, -1)
WRAP(int, listen, (int a, int b), (a, b), EADDRINUSE, -1)
WRAP(int, accept4, (int a, struct sockaddr *b, socklen_t *c, int d), (a, b, c, d), EMFILE, -1)
WRAP(int, connect, (int a, const struct sockaddr *b, socklen_t c), (a, b, c), ECONNREFUSED, -1)
WRAP(int, getsockopt, (int a, int b, int c, void *d, socklen_t *e), (a, b, c, d, e), ENOBUFS, -1)
WRAP(int, epoll_create1, (int a), (a), EMFILE, -1)
WRAP(int, eventfd, (unsigned a, int b), (a, b), EMFILE, -1)
WRAP(int, pipe, (int *a), (a), EMFILE, -1)
WRAP(int, pipe2, (int *a, int b), (a, b), EMFILE, -1)
WRAP(int, dup, (int a), (a), EMFILE, -1)
WRAP(int, dup2, (int a, int b), (a, b), EMFILE, -1)
WRAP(pid_t, fork, (void), (), EAGAIN, -1)
WRAP(pid_t, vfork, (void), (), EAGAIN, -1)
WRAP(int, pthread_create, (pthread_t *a, const pthread_attr_t *b, void *(*c)(void *), void *d), (a, b, c, d), EAGAIN, EAGAIN)
/* Only mappings of files fail; anonymous memory belongs to the interpreter. */
#define MAPS(name)                                                              \
    void *name(void *a, size_t b, int c, int d, int e, off_t f) {               \
        static void *(*next)(void *, size_t, int, int, int, off_t);             \
        if (next == NULL) *(void **)&next = real(#name);                        \
        if (!(d & MAP_ANONYMOUS) && is_due(#name)) return errno = ENOMEM, MAP_FAILED; \
        return next(a, b, c, d, e, f);                                          \
    }
MAPS(mmap)
MAPS(mmap64)
WRAP(int, memfd_create, (const char *a, unsigned b), (a, b), EMFILE, -1)
WRAP(ssize_t, read, (int a, void *b, size_t c), (a, b, c), EIO, -1)
WRAP(ssize_t, pread64, (int a, void *b, size_t c, off_t d), (a, b, c, d), EIO, -1)
WRAP(ssize_t, write, (int a, const void *b, size_t c), (a, b, c), ENOSPC, -1)
WRAP(ssize_t, pwrite64, (int a, const void *b, size_t c, off_t d), (a, b, c, d), ENOSPC, -1)
WRAP(ssize_t, writev, (int a, const struct iovec *b, int c), (a, b, c), ENOSPC, -1)
WRAP(ssize_t, send, (int a, const void *b, size_t c, int d), (a, b, c, d), ENOBUFS, -1)
WRAP(ssize_t, recv, (int a, void *b, size_t c, int d), (a, b, c, d), ECONNRESET, -1)
WRAP(int, ftruncate64, (int a, off_t b), (a, b), ENOSPC, -1)
WRAP(int, posix_fallocate64, (int a, off_t b, off_t c), (a, b, c), ENOSPC, ENOSPC)
WRAP(int, fsync, (int a), (a), EIO, -1)
WRAP(int, fdatasync, (int a), (a), EIO, -1)
WRAP(int, flock, (int a, int b), (a, b), ENOLCK, -1)
WRAP(int, mkdir, (const char *a, mode_t b), (a, b), ENOSPC, -1)
WRAP(int, rmdir, (const char *a), (a), EACCES, -1)
WRAP(int, unlink, (const char *a), (a), EACCES, -1)
WRAP(int, unlinkat, (int a, const char *b, int c), (a, b, c), EACCES, -1)
WRAP(int, rename, (const char *a, const char *b), (a, b), EACCES, -1)
WRAP(int, link, (const char *a, const char *b), (a, b), EACCES, -1)
WRAP(int, linkat, (int a, const char *b, int c, const char *d, int e), (a, b, c, d, e), EACCES, -1)
WRAP(int, chmod, (const char *a, mode_t b), (a, b), EPERM, -1)
WRAP(int, fchmod, (int a, mode_t b), (a, b), EPERM, -1)
