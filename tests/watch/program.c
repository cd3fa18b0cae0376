/* A program that uses QNN, for tests: `program LIBRARY WHAT`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t word;
typedef struct { word words[10]; } op_config;
typedef struct { uint32_t rank; uint32_t *sizes; char *none; uint32_t type, kind; word fd[2]; } memory;
static void **functions;
static word cells[16];
static const char *what;

#define IS(name) (strcmp(what, name) == 0)
#define CALL(n, types, ...) ((word(*) types)functions[n])(__VA_ARGS__)

/* RTLD_NEXT from the program must give the C library's function, even with preloaded libraries. */
int puts(const char *text) {
    int (*next)(const char *) = (int (*)(const char *))(uintptr_t)dlsym(RTLD_NEXT, "puts");
    return next == puts ? 0 : next(text);
}

static void logged(const char *format, uint32_t level, uint64_t when, va_list list) {
    (void)level, (void)when;
    vprintf(format, list);
    printf("\n");
}

static void arguments(void *library) {
    static const int arity[72] = {1, 3, 2, 1, 1, 4, 3, 0, 1, 4, 2, 2, 4, 7, 2, 4, 3, 2, 0, 3, 3, 7, 9, 2,
                                  2, 0, 2, 1, 3, 2, 3, 3, 2, 2, 1, 4, 2, 2, 2, 1, 3, 2, 2, 1, 3, 2, 1, 1,
                                  2, 2, 1, 3, 3, 2, 5, 8, 5, 3, 3, 4, 7, 6, 2, 2, 4, 3, 2, 1, 9, 9, 0, 2};
    op_config op;
    word code;
    int n, i;
#define C(i) (word)(uintptr_t)&cells[i]
    *(word **)dlsym(library, "expected") = cells;
    for (i = 0; i < 10; i++) op.words[i] = 70u + (word)i;
    for (n = 0; n < 72; n++) {
        if (n == 25 || n == 70) continue;
        /* Extra arguments after the real ones are ignored. */
        if (arity[n] == 0) code = CALL(n, (word, op_config), C(0), op);
        else code = CALL(n, (word, word, word, word, word, word, word, word, word), C(0), C(1), C(2),
                         C(3), C(4), C(5), C(6), C(7), C(8));
        if (code) printf("function %d answers %d\n", n, (int)code), exit(9);
    }
    printf("all right\n");
}

static void *thread(void *backend) {
    word context = 0;
    int i;
    for (i = 0; i < 20; i++) {
        CALL(9, (word, word, word, word *), (word)(uintptr_t)backend, 0, 0, &context);
        CALL(14, (word, word), context, 0);
    }
    return NULL;
}

static void threads(word backend) {
    pthread_t all[4];
    int i;
    for (i = 0; i < 4; i++) pthread_create(&all[i], NULL, thread, (void *)(uintptr_t)backend);
    for (i = 0; i < 4; i++) pthread_join(all[i], NULL);
}

static void *finalizes(void *graph) {
    int i;
    for (i = 0; i < 50; i++) CALL(19, (word, word, word), (word)(uintptr_t)graph, 8, 0);
    return NULL;
}

static void together(word graph) {
    pthread_t other;
    pthread_create(&other, NULL, finalizes, (void *)(uintptr_t)graph);
    finalizes((void *)(uintptr_t)graph);
    pthread_join(other, NULL);
}

/* An input prepared raw but executed with a handle, and an output vice versa. */
static void mixed(word graph, word context) {
    static uint32_t size = 1024;
    struct { uint32_t version, none, id, pad; const char *name; uint32_t type, format, data_type, gap;
             word skipped[5]; uint32_t rank, pad2, *sizes, mem_type, pad3; word data[5]; } both[2];
    word handle = 0;
    uint32_t sizes[] = {1024};
    memory one = {1, sizes, NULL, 0x108, 1, {0, 0}};
    int i;
    memset(both, 0, sizeof both);
    for (i = 0; i < 2; i++) {
        both[i].version = 1, both[i].id = 5 + (uint32_t)i, both[i].name = i ? "y" : "x";
        both[i].type = (uint32_t)i, both[i].data_type = 0x108, both[i].rank = 1, both[i].sizes = &size;
        both[i].mem_type = (uint32_t)i;
        CALL(24, (word, void *), graph, &both[i]);
    }
    CALL(35, (word, memory *, uint32_t, word *), context, &one, 1, &handle);
    both[0].mem_type = 1, both[0].data[0] = handle, both[1].mem_type = 0;
    for (i = 0; i < 3; i++) {
        CALL(21, (word, void *, word, void *, word, word, word), graph, &both[0], 1, &both[1], 1, 0, 0);
    }
}

static void registered(word context) {
    uint32_t sizes[] = {1024, 1024};
    memory both[2] = {{2, sizes, NULL, 0x232, 1, {0, 0}}, {2, sizes, NULL, 0x108, 1, {0, 0}}};
    word handles[2] = {0, 0};
    word code = CALL(35, (word, memory *, uint32_t, word *), context, both, 2, handles);
    printf("registered: %d\n", (int)code);
    if (code == 0 && !IS("memory-leaked")) CALL(36, (word *, uint32_t), handles, 2);
}

/* Tells the test that the program hangs from now on. */
static void hangs(void) {
    FILE *file = fopen(getenv("HANGS"), "w");
    if (file) fclose(file);
}

static int steps(void) {
    word log = 0, backend = 0, first = 0, second = 0, graph = 0;
    char binary[100] = {0};
    CALL(25, (void *, uint32_t, word *), (void *)(uintptr_t)logged, 5, &log);
    CALL(1, (word, word, word *), log, 0, &backend);
    if (CALL(13, (word, word, word, void *, word, word *, word), backend, 0, 0, binary, 100, &first, 0)) return 3;
    if (CALL(13, (word, word, word, void *, word, word *, word), backend, 0, 0, binary, 50, &second, 0)) { /* line: second */
        if (IS("crash-on-error")) abort();
        if (IS("hang-on-error")) for (hangs();;) pause();
        if (IS("leak-on-error")) return 4;
        printf("fallback\n");
    }
    CALL(15, (word, const char *, word, word *), first, "net", 0, &graph); /* line: graph */
    registered(first);
    if (IS("finalize-fails")) CALL(19, (word, word, word), graph, 7, 0); /* line: finalize */
    if (IS("threads")) threads(backend);
    if (IS("mixed")) mixed(graph, first);
    if (IS("together")) together(graph);
    if (IS("fork") && fork() == 0) thread((void *)(uintptr_t)backend), _exit(0);
    if (IS("fork")) wait(NULL);
    if (IS("hang")) for (;;) pause();
    if (IS("loop")) for (;;) thread((void *)(uintptr_t)backend);
    if (second && !IS("leak")) CALL(14, (word, word), second, 0);
    CALL(14, (word, word), first, 0);
    CALL(8, (word), backend);
    CALL(27, (word), log);
    return 0;
}

#ifdef LINKED
word QnnInterface_getProviders(const void ***list, uint32_t *count);
#endif

int main(int count, char **words) {
    void *library = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
    word (*providers)(const void ***, uint32_t *);
    const void **list;
    uint32_t number;
    what = count > 2 ? words[2] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (IS("without")) return 0;
#ifdef LINKED
    providers = QnnInterface_getProviders;
#else
    providers = (word(*)(const void ***, uint32_t *))(uintptr_t)dlsym(library, "QnnInterface_getProviders");
#endif
    if (providers == NULL || providers(&list, &number) || number != 1) return 7;
    functions = (void **)((char *)(uintptr_t)list[0] + 40);
    if (IS("arguments")) return arguments(library), 0;
    puts("about to call the C library");
    if (IS("becomes-another")) execl(words[0], words[0], words[1], NULL);
    return steps();
}
