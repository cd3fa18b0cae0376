/* Two streams feed one graph with state through the queue; its pools are a mapped file; workers are
 * started with fork and exec, and use QNN independently.
 *     pipeline MODEL_WITH_TWO_GRAPHS.bin [MISTAKE [worker]] */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "qnn_like.h"

enum { STREAMS = 2, EACH = 20, VALUES = 25, PAGE = 4096 };

static const char *mistake = "";
#define IS(name) (strcmp(mistake, name) == 0)
#define TRY(call) do { Error e = call; if (e) { fprintf(stderr, "%s: %d\n", #call, (int)e); exit(1); } } while (0)

typedef struct { Tensor in, out; int left; } Stream;

static const Functions *q;
static const SystemFunctions *s;
static Handle be, ctx, sysctx, graph, logger;
static void *lib, *system_lib;
static Stream streams[STREAMS];
static __thread int io[STREAMS][2][PAGE / sizeof(int)] __attribute__((aligned(PAGE)));
static char *bin, *pools;
static int pools_file, first, last;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Stream *ready[STREAMS];

static void read_file(const char *path, uint64_t *size) {
    FILE *f = fopen(path, "rb");
    bin = aligned_alloc(PAGE, 1 << 20);
    *size = fread(bin, 1, 1 << 20, f);
    fclose(f);
}

static void hand_over(uint32_t what, char *at) {
    uint32_t size = 0;
    PoolMemory m = {1, 0, at};
    CustomOption c = {what, &size};
    Option o = {0, {&c}}, *l[] = {&o, NULL};
    TRY(q->graphGetProperty(graph, l));
    m.size = (size + 63) / 64 * 64;
    c.value = &m;
    TRY(q->graphSetConfig(graph, (const Option **)l));
}

static void start(const char *path) {
    const Interface **x;
    const SystemInterface **y;
    const BinaryInfo *info;
    Alignment al;
    CustomOption c = {0, &al};
    Option o = {0, {&c}}, *l[] = {&o, NULL};
    uint32_t n;
    uint64_t length, size;
    lib = dlopen("libQnnLpai.so", RTLD_NOW);
    system_lib = dlopen("libQnnSystem.so", RTLD_NOW);
    TRY(((GetProviders)dlsym(lib, "QnnInterface_getProviders"))(&x, &n));
    TRY(((GetSystemProviders)dlsym(system_lib, "QnnSystemInterface_getProviders"))(&y, &n));
    q = &x[0]->v, s = &y[0]->v;
    TRY(q->logCreate(NULL, 1, &logger)); /* at: logCreate */
    if (IS("no-place")) q->backendCreate(logger, NULL, NULL); /* at: noPlace */
    TRY(q->backendCreate(logger, NULL, &be));
    TRY(q->backendGetProperty(be, l));
    read_file(path, &size);
    TRY(q->contextCreateFromBinary(be, NULL, NULL, bin, size, &ctx, NULL));
    TRY(s->contextCreate(&sysctx));
    TRY(s->getBinaryInfo(sysctx, bin, size, &info, &length));
    TRY(q->graphRetrieve(ctx, info->v1.graphs[0].v1.name, &graph));
    pools_file = memfd_create("pools", 0);
    if (ftruncate(pools_file, 4 * PAGE)) exit(1);
    pools = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, pools_file, 0);
    hand_over(1, pools);
    hand_over(101, pools + 2 * PAGE);
    TRY(q->graphFinalize(graph, NULL, NULL));
    for (int i = 0; i < STREAMS; i++) {
        Stream *one = &streams[i];
        one->in = *info->v1.graphs[0].v1.inputs, one->out = *info->v1.graphs[0].v1.outputs, one->left = EACH;
        one->in.of.v1.memory.clientBuf = (ClientBuffer){io[i][0], VALUES * sizeof(int)};
        one->out.of.v1.memory.clientBuf = (ClientBuffer){io[i][1], VALUES * sizeof(int)};
        for (int k = 0; k < VALUES; k++) io[i][0][k] = 1;
    }
}

static void done(void *stream, NotifyStatus status) {
    if (status.error) exit(4);
    pthread_mutex_lock(&lock);
    ready[last++ % STREAMS] = stream;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

static void submit(Stream *one) {
    one->left--;
    TRY(q->graphExecuteAsync(graph, &one->in, 1, &one->out, 1, NULL, NULL, done, one)); /* at: async */
}

static void execute(Stream *one) {
    TRY(q->graphExecute(graph, &one->in, 1, &one->out, 1, NULL, NULL)); /* at: execute */
}

static void feed(void) {
    for (int i = 0; i < STREAMS; i++) submit(&streams[i]);
    for (int i = 0; i < STREAMS * EACH; i++) {
        pthread_mutex_lock(&lock);
        while (first == last) pthread_cond_wait(&changed, &lock);
        Stream *one = ready[first++ % STREAMS];
        pthread_mutex_unlock(&lock);
        if (one->left) submit(one);
    }
}

static void work_elsewhere(char **argv) {
    int status, worker = fork();
    if (worker == 0) execl("/proc/self/exe", argv[0], argv[1], mistake, "worker", NULL), _exit(9);
    waitpid(worker, &status, 0);
}

static void *run(void *words) {
    char **argv = words;
    int is_worker = argv[2] && argv[3];
    if (argv[2]) mistake = argv[2];
    start(argv[1]);
    if (is_worker && IS("worker-fails")) streams[0].in.of.v1.memory.clientBuf.dataSize--, execute(&streams[0]);
    feed();
    if (!is_worker) work_elsewhere(argv);
    if (IS("pool-moved")) mremap(pools, 2 * PAGE, 1 << 24, MREMAP_MAYMOVE); /* at: moved */
    if (IS("file-shorter") && ftruncate(pools_file, PAGE)) exit(1);
    execute(&streams[0]);
    if (io[0][1][0] != 2 * (STREAMS * EACH + 1)) exit(5); /* each execution got the state of the previous one */
    TRY(q->contextFree(ctx, NULL));
    if (IS("log-first")) TRY(q->logFree(logger)); /* at: logFirst */
    TRY(q->backendFree(be));
    if (!IS("log-first")) TRY(q->logFree(logger));
    TRY(s->contextFree(sysctx) || dlclose(system_lib) || dlclose(lib));
    return munmap(pools, 4 * PAGE), free(bin), NULL;
}

int main(int argc, char **argv) {
    pthread_t thread; /* its thread-local buffers are not on its stack */
    return argc < 2 || pthread_create(&thread, NULL, run, argv) || pthread_join(thread, NULL);
}
