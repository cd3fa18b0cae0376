/* Every known way in which a call can bypass the checker: `escapes WAY [PATH]`.
 * The program keeps every rule; its exit code does not depend on the lost calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "qnn_like.h"

static const char *way;
#define IS(name) (strcmp(way, name) == 0)
static const Functions *q;
static Handle backend;

static const Functions *functions_of(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    const Interface **found;
    uint32_t count;
    GetProviders get = library ? (GetProviders)dlsym(library, "QnnInterface_getProviders") : NULL;
    return get && get(&found, &count) == 0 ? &found[0]->v : NULL;
}

static Error ask(void) {
    const char *text;
    return q->backendGetBuildId(&text);
}

static void *in_thread(void *unused) {
    (void)unused;
    ask();
    return NULL;
}

static void run_thread(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, in_thread, NULL);
    pthread_join(thread, NULL);
}

static pthread_barrier_t together;

static void *with_others(void *unused) {
    in_thread(unused);
    pthread_barrier_wait(&together);
    in_thread(unused);
    pthread_barrier_wait(&together);
    return NULL;
}

static void many_threads(int count) {
    pthread_t *all = calloc((size_t)count, sizeof *all);
    int i;
    pthread_barrier_init(&together, NULL, (unsigned)count);
    for (i = 0; i < count; i++) if (pthread_create(&all[i], NULL, with_others, NULL)) exit(9);
    for (i = 0; i < count; i++) pthread_join(all[i], NULL);
    free(all);
}

static void *closes(void *unused) {
    int i;
    ask();
    for (i = 513; i < 1024; i++) close(i);
    return in_thread(unused);
}

/* Replaces the descriptors of connections by its own sockets, which must receive nothing. */
static void replace_lines(void) {
    int pair[2], i;
    char byte;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) exit(9);
    for (i = 512; i < 520; i++) if (fcntl(i, F_GETFD) >= 0) dup2(pair[0], i);
    ask();
    if (read(pair[1], &byte, 1) > 0) exit(8);
}

static volatile int refused;
static sigjmp_buf before;

static void handler(int unused) {
    (void)unused;
    if (IS("jumps")) siglongjmp(before, 1);
    if (ask() == 1007) refused = 1;
}

static void interrupted(void) {
    struct itimerval each = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    int i;
    signal(SIGALRM, handler);
    sigsetjmp(before, 1);
    setitimer(ITIMER_REAL, &each, NULL);
    for (i = 0; i < 100000 && !refused; i++) if (ask() == 1007) refused = 1;
    setitimer(ITIMER_REAL, &never, NULL);
}

static void child_calls(pid_t child) {
    int status;
    if (child == 0 && IS("forks-makes")) q->backendCreate(NULL, NULL, &backend), q->backendFree(backend);
    if (child == 0) ask(), _exit(0);
    waitpid(child, &status, 0);
}

/* The mapping of the ledger, and the path of its file. */
static void *ledger(size_t *size, char *path) {
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long start, end;
    char line[512];
    while (fgets(line, sizeof line, maps)) {
        if (strstr(line, "/ledger") && sscanf(line, "%lx-%lx %*s %*s %*s %*s %255s", &start, &end, path) == 3) {
            fclose(maps);
            *size = end - start;
            return (void *)start;
        }
    }
    exit(9);
}

static void no_sockets(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {4, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) exit(9);
}

static void started(char **words, char *const *environment) {
    pid_t child = fork();
    int status;
    char *again[] = {words[0], "child", NULL};
    if (child == 0) execve("/proc/self/exe", again, environment), _exit(9);
    waitpid(child, &status, 0);
}

static void without_preload(char **words) {
    unsetenv("LD_PRELOAD");
    started(words, environ);
}

static void damage(char **words) {
    size_t size;
    char path[256];
    void *at = ledger(&size, path);
    if (IS("overwrites")) memset(at, 0, size);
    if (IS("replaces-page")) mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (IS("unmaps")) munmap(at, size);
    if (IS("removes")) unlink(path), started(words, environ);
}

static void outlive(const char *path) {
    if (fork()) return;
    setsid();
    while (access(path, F_OK)) usleep(10000); /* until the test has its report */
    _exit(0);
}

static void at_exit(void) { ask(); }

int main(int count, char **words) {
    static char *none[] = {NULL};
    way = words[1];
    q = functions_of("libQnnLpai.so");
    if (q == NULL) return IS("child") ? 5 : 6;
    if (q->backendCreate(NULL, NULL, &backend)) return 7;
    if (IS("threads")) many_threads(atoi(words[2]));
    if (IS("closes-some")) {
        pthread_t thread;
        pthread_create(&thread, NULL, closes, NULL);
        pthread_join(thread, NULL);
    }
    if (IS("closes-all")) close_range(3, ~0u, 0);
    if (IS("replaces")) replace_lines();
    if (IS("interrupted") || IS("jumps")) interrupted();
    if (IS("clones")) child_calls((pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (IS("forks") || IS("forks-makes")) child_calls(fork());
    if (IS("vforks")) child_calls(vfork());
    if (IS("no-sockets")) no_sockets(), run_thread();
    if (IS("no-preload")) without_preload(words);
    if (IS("no-environment")) started(words, none);
    if (IS("other-library")) {
        const Functions *other = functions_of(words[2]);
        if (other == NULL) return 8;
    }
    if (IS("overwrites") || IS("replaces-page") || IS("unmaps") || IS("removes")) damage(words);
    if (IS("outlived")) outlive(words[2]);
    if (IS("at-exit")) atexit(at_exit);
    if (IS("leaks")) no_sockets(), run_thread(), exit(0);
    ask();
    q->backendFree(backend);
    (void)count;
    return 0;
}
