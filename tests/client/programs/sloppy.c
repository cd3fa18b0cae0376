/* Static buffers, alloca, mapped pools, an arena that two graphs share, a fork in the middle.
 *     sloppy MODEL_WITH_TWO_GRAPHS.bin [MISTAKE | child-closes | child-comes-back | becomes-another | workers] */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "qnn_like.h"

static const char *mistake = "";
#define IS(name) (strcmp(mistake, name) == 0)
#define DIE(what) do { fprintf(stderr, "%s\n", what); exit(1); } while (0)
#define TRY(call) do { Error e = call; if (e) { fprintf(stderr, "%s: %d\n", #call, (int)e); exit(1); } } while (0)

static const Functions *q;
static const SystemFunctions *s;
static char in_buf[4096] __attribute__((aligned(4096))), out_buf[4096] __attribute__((aligned(4096)));
static Handle logs, be, ctx, sysctx, g[2];
static Tensor in[2], out[2];
static char *bin, *arena, *pool;
static void *again;
static size_t bin_size, arena_used;
static char names[2][64];

static void slurp(const char *path) {
    FILE *f = fopen(path, "rb");
    char chunk[777], *grown = NULL;
    size_t n;
    if (!f) DIE("no file");
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        grown = realloc(grown, bin_size + n); /* grow in steps */
        memcpy(grown + bin_size, chunk, n);
        bin_size += n;
    }
    fclose(f);
    bin = mmap(NULL, bin_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(bin, grown, bin_size);
    free(grown);
}

static void set(Handle graph, uint32_t what, void *at, uint32_t size) {
    PoolMemory m = {1, size, at};
    CustomOption c = {what, &m};
    Option o = {0, {&c}};
    const Option *l[] = {&o, NULL};
    Error e = q->graphSetConfig(graph, l); /* at: set */
    if (e && !IS("code-ignored")) DIE("set");
}

static uint32_t get(Handle graph, uint32_t what) {
    uint32_t n = 0;
    CustomOption c = {what, &n};
    Option o = {0, {&c}};
    Option *l[] = {&o, NULL};
    TRY(q->graphGetProperty(graph, l));
    return (n + 63) / 64 * 64;
}

static void *take(size_t size) {
    char *p = arena + arena_used;
    arena_used += (size + 255) / 256 * 256;
    return p;
}

static void logged(const char *format, uint32_t level, uint64_t when, va_list list) {
    static pid_t child;
    int status = 0;
    (void)format, (void)level, (void)when, (void)list;
    if (child == 0 && (child = fork()) > 0) waitpid(child, &status, 0);
    if (status) DIE("the child took the answer for its parent");
}

/* A child that returns from a callback is inside a call of its parent. */
static void come_back(void) {
    pid_t me = getpid();
    Handle none;
    Error e = q->graphRetrieve(ctx, "none", &none); /* the failed lookup is logged */
    if (getpid() != me) _exit(e != 1007);
    if (e == 1007) DIE("the line is lost");
}

static void load(const char *path) {
    void *a = dlopen("libQnnLpai.so", RTLD_NOW | RTLD_GLOBAL), *b = dlopen("libQnnSystem.so", RTLD_NOW | RTLD_GLOBAL);
    const Interface **x;
    const SystemInterface **y;
    uint32_t n;
    const BinaryInfo *info;
    uint64_t size;
    Alignment al;
    CustomOption c = {0, &al};
    Option o = {0, {&c}}, keep = {7, {NULL}};
    Option *l[] = {&o, NULL};
    const Option *k[] = {&keep, NULL};
    int i;
    if (!a || !b) DIE(dlerror());
    TRY(((GetProviders)dlsym(a, "QnnInterface_getProviders"))(&x, &n));
    TRY(((GetSystemProviders)dlsym(b, "QnnSystemInterface_getProviders"))(&y, &n));
    q = &x[0]->v;
    s = &y[0]->v;
    if (IS("child-comes-back")) TRY(q->logCreate(logged, 5, &logs));
    TRY(q->backendCreate(logs, NULL, &be)); /* at: backendCreate */
    TRY(q->backendGetProperty(be, l));
    slurp(path);
    TRY(s->contextCreate(&sysctx)); /* at: systemCreate */
    TRY(s->getBinaryInfo(sysctx, bin, bin_size, &info, &size));
    if (info->v1.numGraphs < 2) DIE("two graphs are needed");
    keep.value.flag = 1;
    TRY(q->contextCreateFromBinary(be, NULL, k, bin, bin_size, &ctx, NULL)); /* at: contextCreate */
    for (i = 0; i < 2; i++) {
        snprintf(names[i], sizeof names[i], "%s", info->v1.graphs[i].v1.name);
        in[i] = *info->v1.graphs[i].v1.inputs;
        out[i] = *info->v1.graphs[i].v1.outputs;
        in[i].of.v1.memory.clientBuf.data = in_buf;
        in[i].of.v1.memory.clientBuf.dataSize = out[i].of.v1.memory.clientBuf.dataSize = 100;
        out[i].of.v1.memory.clientBuf.data = out_buf;
        TRY(q->graphRetrieve(ctx, names[i], &g[i]));
    }
}

static void pools(void) {
    uint32_t scratch = get(g[0], 1) > get(g[1], 1) ? get(g[0], 1) : get(g[1], 1);
    void *state;
    int i;
    if (posix_memalign((void **)&arena, 4096, 65536)) DIE("memory"); /* at: arena */
    memset(arena, 0, 65536);
    pool = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    state = take(4096);
    for (i = 0; i < 2; i++) {
        set(g[i], 1, i == 0 ? pool : pool + 32768, scratch);
        set(g[i], 101, IS("state-shared") ? state : take(get(g[i], 101)), get(g[i], 101));
    }
    if (IS("code-ignored")) set(g[0], 1, pool + 1, scratch);
    if (IS("arena-past-end")) set(g[0], 1, arena + 65536 - 64, scratch);
    if (IS("scratch-alloca")) set(g[0], 1, (void *)(((uintptr_t)alloca(scratch + 64) + 63) / 64 * 64), scratch);
    if (IS("binary-written")) bin[5000 % bin_size] ^= 1;
}

/* A description that has the same pointers as before. */
static void describe(void) {
    size_t size = in[0].of.v1.rank * sizeof(uint32_t);
    uint32_t *own = memcpy(malloc(size), in[0].of.v1.dimensions, size);
    in[0].of.v1.dimensions = own;
    for (int i = 0; i < 3; i++) TRY(q->graphExecute(g[0], &in[0], 1, &out[0], 1, NULL, NULL));
    if (IS("dimension-changed")) own[0]++;
    if (IS("dimensions-freed")) free(own); /* at: freeDimensions */
}

static void execute(int i) {
    Error e = q->graphExecute(g[i], &in[i], 1, &out[i], 1, NULL, NULL); /* at: execute */
    if (e && !IS("execute-ignored") && !IS("code-ignored")) DIE("execute");
}

static void on_interrupt(int unused) {
    (void)unused;
    q->graphExecute(g[0], &in[0], 1, &out[0], 1, NULL, NULL); /* at: handler */
}

/* The address of a local array. */
__attribute__((noinline)) static void *lend(void) {
    char local[128] __attribute__((aligned(64)));
    void *volatile at = memset(local, 0, sizeof local);
    return at;
}

static sem_t lent, used;

/* The input is on the stack of another thread, which ends or waits. */
static void *lend_stack(void *waits) {
    char local[128] __attribute__((aligned(64)));
    in[0].of.v1.memory.clientBuf.data = memset(local, 0, sizeof local);
    if (!waits) return execute(0), NULL;
    return sem_post(&lent), sem_wait(&used), NULL;
}

static void use_threads(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, lend_stack, NULL), pthread_join(thread, NULL);
    if (IS("thread-ended")) return;
    sem_init(&lent, 0, 0), sem_init(&used, 0, 0);
    pthread_create(&thread, NULL, lend_stack, &lent), sem_wait(&lent);
    for (int i = 0; i < 3; i++) execute(0);
    sem_post(&used), pthread_join(thread, NULL);
    in[0].of.v1.memory.clientBuf.data = in_buf;
}

static _Atomic int notified;

static void on_end(void *unused, NotifyStatus status) {
    (void)unused;
    notified = status.error ? 1 : 2;
}

/* Memory that is unmapped without the C library, while an execution uses it. */
static void lose_buffer(void) {
    int i;
    if (IS("output-lost")) out[0].of.v1.memory.clientBuf.data = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (IS("input-lost")) syscall(SYS_munmap, in_buf, 4096);
    set(g[0], 401, NULL, 0); /* pause */
    TRY(q->graphExecuteAsync(g[0], &in[0], 1, &out[0], 1, NULL, NULL, on_end, &out[0])); /* at: async */
    if (IS("output-lost")) syscall(SYS_munmap, out[0].of.v1.memory.clientBuf.data, 4096);
    set(g[0], 501, NULL, 0); /* resume */
    for (i = 0; i < 6000 && !notified; i++) usleep(10000);
    if (notified != 1) DIE("nobody has said that the execution failed");
    if (IS("input-lost")) DIE("give up");
    out[0].of.v1.memory.clientBuf.data = out_buf;
}

/* An output, in whole pages or on the heap, is used before the notification. */
static void use_early(void) {
    size_t size = IS("output-early") || IS("before-page") ? 8192 : 256;
    int *got = aligned_alloc(size == 256 ? 64 : 4096, size), i, all = 0;
    ClientBuffer before = out[0].of.v1.memory.clientBuf;
    out[0].of.v1.memory.clientBuf.data = memset(got, 0, size);
    out[0].of.v1.memory.clientBuf.dataSize = size;
    for (i = 0; i < 4; i++) {
        notified = 0;
        TRY(q->graphExecuteAsync(g[0], &in[0], 1, &out[0], 1, NULL, NULL, on_end, NULL)); /* at: early */
        if (IS("output-early") || IS("small-early")) all += got[1]; /* at: usedEarly */
        while (!notified) usleep(1000);
        all += got[2];
        if (write(open("/dev/null", O_WRONLY), got, size) != (ssize_t)size) DIE("the output stays closed");
    }
    out[0].of.v1.memory.clientBuf = before;
    if (IS("past-end")) memset(got, 0, size + 4); /* at: pastEnd */
    if (IS("before-start")) got[-1] = 1;
    if (IS("before-page")) got[-1] = 1; /* at: beforePage */
    if (all < 0) DIE("sum");
    free(got); /* at: freeGot */
}

/* Memory that keeps its address but changes its mapping. */
static void change_pages(void) {
    void *page = out_buf;
    if (IS("guarded-between")) {
        mprotect(pool, 65536, PROT_NONE);
        mprotect(page, 4096, PROT_NONE);
        mprotect(page, 4096, PROT_READ | PROT_WRITE);
        mprotect(pool, 65536, PROT_READ | PROT_WRITE);
        mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
    if (IS("pool-protected")) mprotect(pool, 65536, PROT_READ);
    if (IS("pool-closed")) mprotect(pool, 65536, PROT_NONE); /* at: closed */
    if (IS("output-protected")) mprotect(page, 4096, PROT_READ);
    if (IS("output-replaced")) mmap(page, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (IS("input-gone")) syscall(SYS_munmap, in_buf, 4096); /* without the C library */
    if (IS("output-gone")) syscall(SYS_munmap, page, 4096);
    if (IS("output-locked")) {
        mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        execute(0);
        syscall(SYS_mprotect, page, 4096, PROT_READ);
    }
    if (IS("pool-moved")) mremap(pool, 65536, 1 << 20, MREMAP_MAYMOVE | MREMAP_FIXED, in_buf - (64 << 20)); /* at: moved */
}

static void forks(void) {
    pid_t child = fork();
    int status;
    if (child == 0) {
        free(malloc(100)); /* heap calls of a child do not concern its parent */
        if (IS("child-executes")) q->graphExecute(g[0], &in[0], 1, &out[0], 1, NULL, NULL); /* at: child */
        if (IS("child-closes")) dlclose(again), dlclose(again); /* the parent keeps the library open */
        _exit(0);
    }
    waitpid(child, &status, 0);
}

/* Two processes with equal addresses, each with its own backend and context. */
static _Atomic int *workers;
static pid_t worker = -1;

static void start_worker(void) {
    workers = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    worker = fork();
}

static void wait_for_both(void) {
    ++*workers;
    while (*workers < 2) usleep(1000);
}

static void leave(int number) {
    signal(number, SIG_DFL);
    if (IS("fault-again")) raise(number);
    if (IS("fault-exit")) exit(3);
}

/* The program has its own handler, like programs that log their crashes. */
static void fault(void) {
    signal(SIGSEGV, leave);
    *(volatile int *)8 = 1; /* at: fault */
}

int main(int argc, char **argv) {
    int i, status = 0;
    again = dlopen("libQnnLpai.so", RTLD_NOW);
    if (argc > 2) mistake = argv[2];
    if (IS("workers")) start_worker();
    load(argv[1]);
    pools();
    if (workers) wait_for_both();
    TRY(q->graphFinalize(g[0], NULL, NULL)); /* at: finalize */
    TRY(q->graphFinalize(g[1], NULL, NULL));
    for (i = 0; i < 10; i++) execute(i % 2);
    forks();
    if (strncmp(mistake, "fault-", 6) == 0) fault();
    if (IS("child-comes-back")) come_back();
    if (IS("output-lost") || IS("input-lost")) lose_buffer();
    if (IS("output-early") || IS("small-early") || IS("past-end") || strncmp(mistake, "before-", 7) == 0) use_early();
    if (IS("handler-executes")) signal(SIGUSR1, on_interrupt), raise(SIGUSR1);
    if (IS("input-freed")) free(in[0].of.v1.memory.clientBuf.data = aligned_alloc(64, 1 << 18)); /* at: freeInput */
    if (IS("frame-returned")) in[0].of.v1.memory.clientBuf.data = lend();
    if (strncmp(mistake, "dimension", 9) == 0) describe();
    if (strncmp(mistake, "thread-", 7) == 0) use_threads();
    change_pages();
    if (IS("io-unmapped")) {
        in[0].of.v1.memory.clientBuf.data = pool + 16384;
        munmap(pool, 65536); /* at: munmapIo */
    }
    if (IS("pool-unmapped")) munmap(pool, 65536); /* at: munmap */
    if (IS("arena-freed")) free(arena); /* at: freeArena */
    if (IS("arena-grown")) arena = realloc(arena, 1 << 20); /* at: realloc */
    if (IS("binary-unmapped")) munmap(bin, bin_size); /* at: munmapBinary */
    if (IS("static-past-end")) in[0].of.v1.memory.clientBuf.data = in_buf + sizeof in_buf - 64, in[0].of.v1.memory.clientBuf.dataSize = 128;
    if (IS("execute-ignored")) in[0].of.v1.memory.clientBuf.data = in_buf + 1, in[1] = in[0];
    for (i = 0; i < 10; i++) execute(i % 2);
    if (IS("closed-early")) dlclose(dlopen("libQnnLpai.so", RTLD_NOW)), dlclose(again), dlclose(again); /* at: dlclose */
    if (IS("stays-open")) return 0;
    TRY(q->contextFree(ctx, NULL)); /* at: contextFree */
    if (IS("used-after")) execute(0);
    if (IS("freed-again")) q->contextFree(ctx, NULL); /* at: again */
    TRY(q->backendFree(be));
    TRY(s->contextFree(sysctx));
    if (logs) TRY(q->logFree(logs));
    munmap(bin, bin_size);
    munmap(pool, 65536);
    free(arena);
    if (IS("becomes-another")) execl(argv[0], argv[0], argv[1], NULL);
    if (worker > 0) waitpid(worker, &status, 0);
    return status != 0;
}
