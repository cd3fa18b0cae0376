/* An LPAI client in the eight documented steps, with the mistakes that such clients make.
 *
 *     cc -g examples/lpai_client.c -o lpai_client -ldl -lpthread
 *     qnnmem check-client -- ./lpai_client examples/small_lpai.bin
 *     qnnmem check-client -- ./lpai_client examples/small_lpai.bin scratch-misaligned
 *
 * Without a mistake, it executes the first graph of the binary. More arguments: runs=N,
 * graph=NAME, input=FILE, output=FILE (raw bytes of the first tensor), threads=N, async.
 *
 * The declarations are our own; struct members are in QNN's order. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- Declarations --------------------------------------------------------------------------- */

typedef uint64_t code_t;
typedef void *handle;

typedef struct {
    void *data;
    uint32_t size;
} client_buffer;

typedef struct {
    uint32_t id;
    const char *name;
    uint32_t type, data_format, data_type;
    struct {
        uint32_t definition, encoding;
        uint64_t values[4];
    } quantize;
    uint32_t rank;
    uint32_t *dimensions;
    uint32_t mem_type; /* 0 raw, 1 memory handle */
    union {
        client_buffer buffer;
        handle mem_handle;
    } memory;
} tensor_v1;

typedef struct {
    uint32_t version;
    union {
        tensor_v1 v1;
        uint64_t room[17];
    } of;
} tensor;

typedef struct {
    uint32_t option; /* 0 is custom */
    union {
        void *custom;
        uint8_t flag;
    } value;
} option;

typedef struct {
    uint32_t option;
    void *value;
} custom_option;

typedef struct {
    uint32_t mem_type, size; /* 1 is DDR */
    void *address;
} pool_memory;

typedef struct {
    uint32_t version;
    struct {
        const char *name;
        uint32_t input_count;
        tensor *inputs;
        uint32_t output_count;
        tensor *outputs;
    } v1;
    uint64_t more[5];
} graph_info;

typedef struct {
    uint32_t version;
    struct {
        uint32_t backend;
        const char *build;
        uint32_t core[3], api[3];
        const char *soc;
        uint32_t hw[3], blob[3], hw_size;
        void *hw_blob;
        uint64_t blob_size;
        uint32_t tensor_count;
        tensor *tensors;
        uint32_t graph_count;
        graph_info *graphs;
    } v1;
} binary_info;

typedef struct {
    uint32_t rank;
    uint32_t *dimensions;
    void *config;
    uint32_t data_type, mem_type; /* 2 is custom */
    void *custom;
    void *more;
} mem_descriptor;

typedef struct {
    uint32_t id;
    const char *name;
    uint32_t core[3], api[3];
    void *functions[75];
} interface;

typedef struct {
    uint32_t id;
    const char *name;
    uint32_t version[3];
    void *functions[8];
} system_interface;

typedef struct {
    code_t error;
} notify_status;

static const interface *qnn;
static const system_interface *sys;

#define backendCreate ((code_t(*)(handle, const option **, handle *))qnn->functions[1])
#define backendFree ((code_t(*)(handle))qnn->functions[8])
#define contextCreateFromBinary \
    ((code_t(*)(handle, handle, const option **, const void *, uint64_t, handle *, handle))qnn->functions[13])
#define contextFree ((code_t(*)(handle, handle))qnn->functions[14])
#define graphSetConfig ((code_t(*)(handle, const option **))qnn->functions[17])
#define graphFinalize ((code_t(*)(handle, handle, handle))qnn->functions[19])
#define graphRetrieve ((code_t(*)(handle, const char *, handle *))qnn->functions[20])
#define graphExecute \
    ((code_t(*)(handle, const tensor *, uint32_t, tensor *, uint32_t, handle, handle))qnn->functions[21])
#define graphExecuteAsync                                                                    \
    ((code_t(*)(handle, const tensor *, uint32_t, tensor *, uint32_t, handle, handle,        \
                void (*)(void *, notify_status), void *))qnn->functions[22])
#define memRegister ((code_t(*)(handle, const mem_descriptor *, uint32_t, handle *))qnn->functions[35])
#define memDeRegister ((code_t(*)(const handle *, uint32_t))qnn->functions[36])
#define signalCreate ((code_t(*)(handle, const option **, handle *))qnn->functions[44])
#define graphGetProperty ((code_t(*)(handle, option **))qnn->functions[53])
#define backendGetProperty ((code_t(*)(handle, option **))qnn->functions[62])
#define systemContextCreate ((code_t(*)(handle *))sys->functions[0])
#define systemContextGetBinaryInfo \
    ((code_t(*)(handle, void *, uint64_t, const binary_info **, uint64_t *))sys->functions[1])
#define systemContextFree ((code_t(*)(handle))sys->functions[3])

/* --- Memory and handles ------------------------------------------------------------------------------------------------- */

typedef struct {
    void *raw; /* what is freed */
    unsigned char *at;
    size_t size;
} block;

static const char *mistake = "";
static const char *graph_name, *input_file, *output_file;
static unsigned long runs = 1, threads = 1;
static bool asynchronous;

static handle libraries[2], backend, context, system_context, graph;
static size_t start_alignment = 64, size_alignment = 64;
static block binary, scratch, persistent;
static size_t binary_size;
static tensor inputs[16], outputs[16];
static block input_memory[16], output_memory[16];
static uint32_t input_count, output_count;
static char name_of_graph[256];

static bool makes(const char *name) {
    return strcmp(mistake, name) == 0;
}

static void check(const char *call, code_t code) {
    if (code == 0) return;
    fprintf(stderr, "%s failed with %lu\n", call, (unsigned long)(code & 0xffff));
    exit(3);
}

static block allocate(size_t size, size_t shift, size_t missing) {
    block made;
    made.size = (size + size_alignment - 1) / size_alignment * size_alignment;
    made.raw = calloc(1, made.size + start_alignment - 1 + shift - missing);
    if (made.raw == NULL) exit(4);
    made.at = (unsigned char *)made.raw + (start_alignment - (uintptr_t)made.raw % start_alignment) % start_alignment + shift;
    return made;
}

static void release(block *one) {
    free(one->raw); /* line: free */
    one->raw = NULL;
}

/* --- 1: the interfaces ---------------------------------------------------------------------- */

static void find_interfaces(void) {
    const interface **found = NULL;
    const system_interface **systems = NULL;
    uint32_t count = 0;
    void *symbol;
    libraries[0] = dlopen("libQnnLpai.so", RTLD_NOW | RTLD_LOCAL);
    libraries[1] = dlopen("libQnnSystem.so", RTLD_NOW | RTLD_LOCAL);
    if (libraries[0] == NULL || libraries[1] == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(5);
    }
    symbol = dlsym(libraries[0], "QnnInterface_getProviders");
    check("QnnInterface_getProviders", ((code_t(*)(const interface ***, uint32_t *))symbol)(&found, &count));
    qnn = found[0];
    symbol = dlsym(libraries[1], "QnnSystemInterface_getProviders");
    check("QnnSystemInterface_getProviders", ((code_t(*)(const system_interface ***, uint32_t *))symbol)(&systems, &count));
    sys = systems[0];
}

/* --- 2, 3: backend, and what it asks of memory ---------------------------------------------- */

static void open_backend(void) {
    uint32_t asked[2] = {1, 1};
    custom_option custom = {0, asked};
    option property = {0, {&custom}};
    option *list[] = {&property, NULL};
    check("QnnBackend_create", backendCreate(NULL, NULL, &backend)); /* line: backendCreate */
    if (makes("alignment-not-asked")) return;
    check("QnnBackend_getProperty", backendGetProperty(backend, list)); /* line: backendGetProperty */
    start_alignment = asked[0];
    size_alignment = asked[1];
}

/* --- 4: binary and context ------------------------------------------------------------------ */

static void read_binary(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) exit(6);
    binary_size = (size_t)ftell(file);
    binary = allocate(binary_size, 0, 0);
    rewind(file);
    if (fread(binary.at, 1, binary_size, file) != binary_size) exit(6);
    fclose(file);
}

static void open_context(void) {
    option keep = {7, {NULL}};
    const option *list[] = {&keep, NULL};
    size_t size = binary_size;
    code_t code;
    keep.value.flag = 1;
    if (makes("binary-truncated") || makes("context-code-ignored")) size /= 2;
    code = contextCreateFromBinary(backend, NULL, list, binary.at, size, &context, NULL); /* line: contextCreate */
    if (!makes("context-code-ignored")) check("QnnContext_createFromBinary", code);
}

/* --- 5: what the binary holds --------------------------------------------------------------- */

static uint32_t bytes_of(const tensor *one) {
    static const uint32_t sizes[] = {1, 2, 4, 8};
    uint32_t bits = one->of.v1.data_type & 0xff, i, size;
    size = bits == 0x08 ? sizes[0] : bits == 0x16 ? sizes[1] : bits == 0x32 ? sizes[2] : sizes[3];
    for (i = 0; i < one->of.v1.rank; i++) size *= one->of.v1.dimensions[i];
    return size;
}

static void copy_tensors(tensor *to, block *memory, const tensor *from, uint32_t count) {
    uint32_t i;
    for (i = 0; i < count; i++) {
        to[i] = from[i];
        memory[i] = allocate(bytes_of(&from[i]), 0, 0);
        to[i].of.v1.mem_type = 0;
        to[i].of.v1.memory.buffer.data = memory[i].at;
        to[i].of.v1.memory.buffer.size = bytes_of(&from[i]);
    }
}

static void read_info(void) {
    const binary_info *info = NULL;
    uint64_t size = 0;
    uint32_t i = 0;
    check("QnnSystemContext_create", systemContextCreate(&system_context)); /* line: systemCreate */
    check("QnnSystemContext_getBinaryInfo", systemContextGetBinaryInfo(system_context, binary.at, binary_size, &info, &size)); /* line: getBinaryInfo */
    while (graph_name != NULL && i + 1 < info->v1.graph_count && strcmp(graph_name, info->v1.graphs[i].v1.name) != 0) i++;
    input_count = info->v1.graphs[i].v1.input_count;
    output_count = info->v1.graphs[i].v1.output_count;
    if (input_count > 16 || output_count > 16) exit(7);
    copy_tensors(inputs, input_memory, info->v1.graphs[i].v1.inputs, input_count);
    copy_tensors(outputs, output_memory, info->v1.graphs[i].v1.outputs, output_count);
    snprintf(name_of_graph, sizeof name_of_graph, "%s", info->v1.graphs[i].v1.name);
}

/* --- 6: the graph and its pools ------------------------------------------------------------- */

static void hand_over(uint32_t which, void *address, size_t size) {
    pool_memory memory = {1, (uint32_t)size, address};
    custom_option custom = {which, &memory};
    option config = {0, {&custom}};
    const option *list[] = {&config, NULL};
    code_t code;
    code = graphSetConfig(graph, list); /* line: setConfig */
    if (!makes("config-code-ignored")) check("QnnGraph_setConfig", code);
}

static uint32_t ask_size(uint32_t which) {
    uint32_t size = 0;
    custom_option custom = {which, &size};
    option property = {0, {&custom}};
    option *list[] = {&property, NULL};
    check("QnnGraph_getProperty", graphGetProperty(graph, list)); /* line: graphGetProperty */
    return size;
}

static void open_graph(void) {
    const char *name = makes("graph-unknown") ? "nobody" : name_of_graph;
    check("QnnGraph_retrieve", graphRetrieve(context, name, &graph)); /* line: graphRetrieve */
}

static void give_pools(void) {
    static unsigned char arena[1 << 20] __attribute__((aligned(4096)));
    uint32_t need = ask_size(1), state = ask_size(101);
    bool shifted = makes("scratch-misaligned") || makes("config-code-ignored");
    scratch = allocate(need, shifted ? 4 : 0, makes("scratch-block-too-small") ? start_alignment : 0);
    if (state > 0) persistent = allocate(state, 0, 0);
    if (makes("scratch-null")) hand_over(1, NULL, need);
    if (makes("scratch-freed-before")) release(&scratch);
    if (makes("scratch-too-small")) hand_over(1, scratch.at, scratch.size - size_alignment);
    else if (makes("scratch-odd-size")) hand_over(1, scratch.at, scratch.size + 4);
    else if (makes("pools-overlap")) hand_over(1, arena, need);
    else if (!makes("scratch-missing") && !makes("finalize-code-ignored")) hand_over(1, scratch.at, scratch.size);
    if (makes("pools-overlap")) hand_over(101, arena, state);
    else if (state > 0) hand_over(101, persistent.at, persistent.size);
    if (makes("option-unknown")) hand_over(77, scratch.at, scratch.size);
    if (makes("pointer-wild")) check("QnnGraph_setConfig", graphSetConfig(graph, (const option **)(uintptr_t)0x1230)); /* line: wild */
}

/* --- 7, 8: finalize and execute ------------------------------------------------------------- */

static void finalize(void) {
    code_t code;
    if (makes("finalize-missing")) return;
    code = graphFinalize(graph, NULL, NULL); /* line: finalize */
    if (!makes("finalize-code-ignored")) check("QnnGraph_finalize", code);
    if (makes("persistent-after-finalize")) hand_over(101, persistent.at, persistent.size);
}

static void execute(void) {
    code_t code;
    code = graphExecute(graph, inputs, input_count, outputs, output_count, NULL, NULL); /* line: execute */
    if (!makes("execute-code-ignored")) check("QnnGraph_execute", code);
}

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t done;
    code_t code;
    bool over, hold;
} waiting;

static void notified(void *argument, notify_status status) {
    waiting *one = (waiting *)argument;
    pthread_mutex_lock(&one->lock);
    one->code = status.error;
    one->over = true;
    pthread_cond_signal(&one->done);
    while (one->hold) pthread_cond_wait(&one->done, &one->lock);
    pthread_mutex_unlock(&one->lock);
}

static void wait_for(waiting *one) {
    pthread_mutex_lock(&one->lock);
    while (!one->over) pthread_cond_wait(&one->done, &one->lock);
    pthread_mutex_unlock(&one->lock);
}

static void execute_async(void) {
    waiting first = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false, makes("async-freed")};
    waiting second = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false, false};
    check("QnnGraph_executeAsync", graphExecuteAsync(graph, inputs, input_count, outputs, output_count, NULL, NULL, notified, &first)); /* line: async1 */
    wait_for(&first);
    if (!makes("async-freed")) {
        check("the execution", first.code);
        return;
    }
    /* The first notification is held, so that the second execution is still in the queue. */
    check("QnnGraph_executeAsync", graphExecuteAsync(graph, inputs, input_count, outputs, output_count, NULL, NULL, notified, &second)); /* line: async */
    release(&input_memory[0]);
    pthread_mutex_lock(&first.lock);
    first.hold = false;
    pthread_cond_signal(&first.done);
    pthread_mutex_unlock(&first.lock);
    wait_for(&second);
}

/* One graph has one scratch, and these threads have one input and one output. */
static void *execute_many(void *unused) {
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    unsigned long run;
    (void)unused;
    for (run = 0; run < runs; run++) {
        if (!makes("turn-missing")) pthread_mutex_lock(&turn);
        if (asynchronous) execute_async();
        else execute();
        if (!makes("turn-missing")) pthread_mutex_unlock(&turn);
    }
    return NULL;
}

/* --- Mistakes around an execution ----------------------------------------------------------- */

static void execute_in_child(void) {
    pid_t child = fork();
    if (child == 0) {
        graphExecute(graph, inputs, input_count, outputs, output_count, NULL, NULL); /* line: child */
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

static void register_memory(unsigned times) {
    static int32_t place[2];
    mem_descriptor one = {inputs[0].of.v1.rank, inputs[0].of.v1.dimensions, NULL, inputs[0].of.v1.data_type, 2, place, NULL};
    handle made = NULL;
    place[0] = memfd_create("shared", 0);
    if (place[0] < 0 || ftruncate(place[0], 1 << 16) != 0) exit(8);
    for (; times > 0; times--) check("QnnMem_register", memRegister(context, &one, 1, &made)); /* line: memRegister */
    if (makes("memory-used-after")) {
        check("QnnMem_deRegister", memDeRegister(&made, 1)); /* line: memDeRegister */
        inputs[0].of.v1.mem_type = 1;
        inputs[0].of.v1.memory.mem_handle = made;
    }
}

static void spoil_io(void) {
    client_buffer *in = &inputs[0].of.v1.memory.buffer, *out = &outputs[0].of.v1.memory.buffer;
    if (makes("input-misaligned") || makes("execute-code-ignored")) in->data = input_memory[0].at + 4;
    if (makes("output-too-small")) out->size -= 4;
    if (makes("output-on-scratch")) out->data = scratch.at;
    if (makes("output-on-persistent")) out->data = persistent.at;
    if (makes("output-wild")) out->data = (void *)(uintptr_t)0x40;
    if (makes("input-missing")) input_count--;
    if (makes("input-freed")) release(&input_memory[0]);
    if (makes("memtype-unknown")) inputs[0].of.v1.mem_type = 9;
}

static void spoil_memory(void) {
    if (makes("scratch-freed-early")) release(&scratch);
    if (makes("persistent-freed-early")) release(&persistent);
    if (makes("persistent-reallocated")) persistent.raw = realloc(persistent.raw, 1 << 20); /* line: realloc */
    if (makes("persistent-overwritten")) persistent.at[0] ^= 1;
    if (makes("binary-freed-early")) release(&binary);
    if (makes("binary-changed")) binary.at[100] ^= 1;
    if (makes("memory-not-deregistered")) register_memory(1);
    if (makes("memory-registered-twice")) register_memory(2);
    if (makes("memory-used-after")) register_memory(1);
    if (makes("forked-child")) execute_in_child();
    if (makes("crash")) *(volatile int *)persistent.raw = *(volatile int *)(uintptr_t)0x40; /* line: crash */
}

static void execute_on_stack(void) {
    unsigned char room[8192] __attribute__((aligned(64)));
    if (makes("scratch-on-stack")) hand_over(1, room, scratch.size < sizeof room ? scratch.size : sizeof room);
    execute();
}

/* --- From beginning to end ------------------------------------------------------------------ */

static void load_input(void) {
    FILE *file = fopen(input_file, "rb");
    if (file == NULL || fread(input_memory[0].at, 1, bytes_of(&inputs[0]), file) != bytes_of(&inputs[0])) exit(9);
    fclose(file);
}

static void save_output(void) {
    FILE *file = fopen(output_file, "wb");
    if (file == NULL || fwrite(output_memory[0].at, 1, bytes_of(&outputs[0]), file) != bytes_of(&outputs[0])) exit(9);
    fclose(file);
}

static void run(void) {
    pthread_t others[16];
    unsigned long i;
    if (input_file != NULL) load_input();
    if (makes("scratch-on-stack")) {
        execute_on_stack();
        return;
    }
    if (makes("persistent-overwritten") || makes("scratch-freed-early")) execute();
    spoil_memory();
    spoil_io();
    for (i = 1; i < threads; i++) pthread_create(&others[i], NULL, execute_many, NULL);
    execute_many(NULL);
    for (i = 1; i < threads; i++) pthread_join(others[i], NULL);
    if (output_file != NULL) save_output();
}

static void finish(void) {
    uint32_t i;
    handle signal_handle;
    if (makes("signal-leaked")) check("QnnSignal_create", signalCreate(backend, NULL, &signal_handle)); /* line: signalCreate */
    if (makes("closed-early")) dlclose(libraries[0]); /* line: dlclose */
    if (makes("backend-freed-first")) check("QnnBackend_free", backendFree(backend)); /* line: backendFirst */
    if (makes("context-handle-wrong")) check("QnnContext_free", contextFree(graph, NULL)); /* line: wrongHandle */
    if (!makes("context-leaked") && !makes("backend-freed-first")) check("QnnContext_free", contextFree(context, NULL)); /* line: contextFree */
    if (makes("context-freed-twice")) check("QnnContext_free", contextFree(context, NULL)); /* line: contextAgain */
    if (makes("executed-after-free")) execute();
    if (!makes("backend-leaked") && !makes("backend-freed-first")) check("QnnBackend_free", backendFree(backend)); /* line: backendFree */
    if (!makes("system-leaked")) check("QnnSystemContext_free", systemContextFree(system_context)); /* line: systemFree */
    if (!makes("closed-early") && !makes("backend-leaked")) dlclose(libraries[0]);
    if (!makes("system-leaked")) dlclose(libraries[1]);
    release(&scratch);
    release(&persistent);
    for (i = 0; i < input_count; i++) release(&input_memory[i]);
    for (i = 0; i < output_count; i++) release(&output_memory[i]);
    release(&binary);
}

static void read_words(int count, char **words) {
    int i;
    for (i = 2; i < count; i++) {
        if (strncmp(words[i], "runs=", 5) == 0) runs = strtoul(words[i] + 5, NULL, 10);
        else if (strncmp(words[i], "threads=", 8) == 0) threads = strtoul(words[i] + 8, NULL, 10) % 16;
        else if (strncmp(words[i], "graph=", 6) == 0) graph_name = words[i] + 6;
        else if (strncmp(words[i], "input=", 6) == 0) input_file = words[i] + 6;
        else if (strncmp(words[i], "output=", 7) == 0) output_file = words[i] + 7;
        else if (strcmp(words[i], "async") == 0) asynchronous = true;
        else mistake = words[i];
    }
    if (makes("async-freed")) asynchronous = true;
    if (makes("turn-missing") && threads < 2) threads = 2;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.bin [MISTAKE] [runs=N] [graph=NAME] [async]\n", argv[0]);
        return 2;
    }
    read_words(argc, argv);
    find_interfaces();
    open_backend();
    read_binary(argv[1]);
    open_context();
    read_info();
    open_graph();
    give_pools();
    finalize();
    run();
    finish();
    return 0;
}
