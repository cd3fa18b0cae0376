/* @ABOUT@
 *
 * Build it with the headers of your QNN SDK:
 *     cc -std=c11 -Wall -Wextra -I"$QNN_SDK_ROOT/include/QNN" client.c -lQnnLpai -lQnnSystem -o client
 * To load both libraries by name at run time, add -DCLIENT_DLOPEN (and -ldl if dlopen is in a
 * separate library). Run it with the context binary:
 *     ./client MODEL.bin
 *
 * The client asks the backend for all sizes, and only compares the planned sizes with them.
 * Fill in the functions below the heading YOURS.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "LPAI/QnnLpaiBackend.h"
#include "LPAI/QnnLpaiCommon.h"
#include "LPAI/QnnLpaiGraph.h"
#include "QnnInterface.h"
#include "System/QnnSystemInterface.h"

#ifdef CLIENT_DLOPEN
#include <dlfcn.h>
#endif

/* --- Settings: change them with -DNAME=value ---------------------------------------------- */

#ifndef CLIENT_RUNS
#define CLIENT_RUNS 1u /* number of results to compute with each graph */
#endif
#ifndef CLIENT_MAX_FRAMES
#define CLIENT_MAX_FRAMES 1000u /* most executions without a result, as a window fills */
#endif
#ifndef CLIENT_FPS
#define CLIENT_FPS 1u
#endif
#ifndef CLIENT_FTRT_RATIO
#define CLIENT_FTRT_RATIO 10u /* in tenths: 10 is real time */
#endif
#ifndef CLIENT_PERF_TYPE
#define CLIENT_PERF_TYPE QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_REAL_TIME
#endif
#ifndef CLIENT_AFFINITY
#define CLIENT_AFFINITY QNN_LPAI_GRAPH_CORE_AFFINITY_SOFT
#endif
#ifndef CLIENT_CORES
#define CLIENT_CORES 0u /* bit i selects core i; 0: any core */
#endif
#ifndef CLIENT_STRICT
#define CLIENT_STRICT 0 /* 1: stop if a size differs from the plan */
#endif
#ifndef CLIENT_BACKEND_LIBRARY
#define CLIENT_BACKEND_LIBRARY "libQnnLpai.so"
#endif
#ifndef CLIENT_SYSTEM_LIBRARY
#define CLIENT_SYSTEM_LIBRARY "libQnnSystem.so"
#endif

/* --- The plan ------------------------------------------------------------------------------ */

typedef struct {
    const char *name;
    uint32_t bytes; /* size of the tensor; 0 if unknown */
    uint32_t at;    /* offset in scratch; only for IO_IN_SCRATCH */
} planned_tensor;

typedef struct {
    const char *name;
    uint32_t scratch, persistent; /* bytes */
    uint32_t scratch_at;          /* offset in the common scratch; only for ONE_SCRATCH */
    uint32_t first_input, inputs; /* index in TENSORS, and number */
    uint32_t first_output, outputs;
    bool has_io; /* whether TENSORS has the inputs and outputs */
} planned_graph;

@PLAN@

/* --- State of the client ------------------------------------------------------------------- */

/* Memory of the application, aligned as the backend requires. */
typedef struct {
    void *raw; /* pointer to free; NULL if another block holds the memory */
    unsigned char *at;
    size_t size;
} block;

typedef struct {
    Qnn_GraphHandle_t handle;
    uint32_t scratch_size, persistent_size; /* sizes that the backend requires */
    block scratch, persistent;
    Qnn_Tensor_t *tensors; /* copies of inputs, then outputs; the system context holds the names */
    block *memory;         /* memory of each tensor */
    uint32_t inputs, outputs;
} client_graph;

typedef struct {
    QNN_INTERFACE_VER_TYPE qnn;
    QNN_SYSTEM_INTERFACE_VER_TYPE system;
    void *backend_library, *system_library; /* only for CLIENT_DLOPEN */
    Qnn_BackendHandle_t backend;
    Qnn_ContextHandle_t context;
    QnnSystemContext_Handle_t system_context;
    size_t start_alignment, size_alignment;
    bool binary_must_stay;
    block binary;
    size_t binary_size;
    block scratch; /* common scratch; only for ONE_SCRATCH */
    client_graph graphs[GRAPH_COUNT];
} client;

/* --- YOURS: inputs and outputs -------------------------------------------------------------- */

/* Write the next frame of an input; return false to stop the client. */
static bool write_input(const planned_graph *graph, uint32_t input, void *data, size_t size) {
    (void)graph;
    (void)input;
    memset(data, 0, size);
    return true;
}

/* Use an output. */
static void read_output(const planned_graph *graph, uint32_t output, const void *data, size_t size) {
    const unsigned char *bytes = (const unsigned char *)data;
    uint32_t sum = 0;
    size_t at;
    for (at = 0; at < size; at++) {
        sum = sum * 31u + bytes[at];
    }
    printf("%s: output %lu, %lu bytes, checksum %08lx\n", graph->name, (unsigned long)output,
           (unsigned long)size, (unsigned long)sum);
}

/* --- Failures ------------------------------------------------------------------------------- */

static bool worked(const char *call, Qnn_ErrorHandle_t code) {
    if (code == QNN_SUCCESS) {
        return true;
    }
    fprintf(stderr, "%s failed with %lu\n", call, (unsigned long)(code & 0xffffu));
    return false;
}

/* Check a call that makes a handle; after a failure, clear the handle so that it is not freed. */
static bool made(const char *call, Qnn_ErrorHandle_t code, void **handle) {
    if (worked(call, code)) {
        return true;
    }
    *handle = NULL;
    return false;
}

static bool fails(const char *what) {
    fprintf(stderr, "%s\n", what);
    return false;
}

/* Report a size that differs from the plan; return false for it if CLIENT_STRICT is set. */
static bool as_planned(const char *graph, const char *what, size_t asked, size_t planned) {
    if (asked == planned) {
        return true;
    }
    fprintf(stderr, "%s: %s has %lu bytes, %lu were planned\n", graph, what, (unsigned long)asked,
            (unsigned long)planned);
    return !CLIENT_STRICT;
}

/* --- Memory --------------------------------------------------------------------------------- */

/* Allocate zeroed memory in DDR; start and size are multiples that the backend requires.
 * To use other memory, change this function and `release`. */
static bool allocate(const client *c, block *to, size_t size) {
    size_t align = c->start_alignment, unit = c->size_alignment, rounded;
    if (size > SIZE_MAX - align - unit) {
        return fails("a size is larger than the memory of this machine");
    }
    rounded = (size + unit - 1) / unit * unit;
    to->raw = calloc(1, rounded + align - 1);
    if (to->raw == NULL) {
        return fails("out of memory");
    }
    to->at = (unsigned char *)to->raw + (align - (uintptr_t)to->raw % align) % align;
    to->size = rounded;
    return true;
}

static void release(block *one) {
    free(one->raw);
    one->raw = NULL;
    one->at = NULL;
    one->size = 0;
}

/* --- Libraries ------------------------------------------------------------------------------ */

typedef Qnn_ErrorHandle_t (*backend_providers)(const QnnInterface_t ***, uint32_t *);
typedef Qnn_ErrorHandle_t (*system_providers)(const QnnSystemInterface_t ***, uint32_t *);

#ifdef CLIENT_DLOPEN
static void *loaded(const char *library, const char *symbol, void **handle) {
    void *found;
    *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    found = *handle == NULL ? NULL : dlsym(*handle, symbol);
    if (found == NULL) {
        fprintf(stderr, "%s: %s\n", library, dlerror());
    }
    return found;
}

static bool load_libraries(client *c, backend_providers *backend, system_providers *system) {
    void *found = loaded(CLIENT_BACKEND_LIBRARY, "QnnInterface_getProviders", &c->backend_library);
    if (found == NULL) {
        return false;
    }
    memcpy(backend, &found, sizeof *backend);
    found = loaded(CLIENT_SYSTEM_LIBRARY, "QnnSystemInterface_getProviders", &c->system_library);
    if (found == NULL) {
        return false;
    }
    memcpy(system, &found, sizeof *system);
    return true;
}

static bool unload_libraries(client *c) {
    bool good = true;
    if (c->backend_library != NULL && dlclose(c->backend_library) != 0) {
        good = fails("dlclose of the backend library failed");
    }
    if (c->system_library != NULL && dlclose(c->system_library) != 0) {
        good = fails("dlclose of the system library failed");
    }
    c->backend_library = c->system_library = NULL;
    return good;
}
#else
static bool load_libraries(client *c, backend_providers *backend, system_providers *system) {
    (void)c;
    *backend = QnnInterface_getProviders;
    *system = QnnSystemInterface_getProviders;
    return true;
}

static bool unload_libraries(client *c) {
    (void)c;
    return true;
}
#endif

/* Find function tables for LPAI that are not older than the headers and have all functions used. */
static bool find_interfaces(client *c) {
    const QnnInterface_t **found = NULL;
    const QnnSystemInterface_t **system = NULL;
    backend_providers get_backends = NULL;
    system_providers get_systems = NULL;
    uint32_t count = 0, i;
    bool known = false;

    if (!load_libraries(c, &get_backends, &get_systems) ||
        !worked("QnnInterface_getProviders", get_backends(&found, &count))) {
        return false;
    }
    for (i = 0; found != NULL && i < count && !known; i++) {
        known = found[i]->backendId == QNN_BACKEND_ID_LPAI &&
                found[i]->apiVersion.coreApiVersion.major == QNN_API_VERSION_MAJOR &&
                found[i]->apiVersion.coreApiVersion.minor >= QNN_API_VERSION_MINOR;
        if (known) {
            c->qnn = found[i]->QNN_INTERFACE_VER_NAME;
        }
    }
    if (!known) {
        return fails("no provider is LPAI in the version of the headers");
    }
    count = 0;
    if (!worked("QnnSystemInterface_getProviders", get_systems(&system, &count))) {
        return false;
    }
    for (i = 0, known = false; system != NULL && i < count && !known; i++) {
        known = system[i]->systemApiVersion.major == QNN_SYSTEM_API_VERSION_MAJOR &&
                system[i]->systemApiVersion.minor >= QNN_SYSTEM_API_VERSION_MINOR;
        if (known) {
            c->system = system[i]->QNN_SYSTEM_INTERFACE_VER_NAME;
        }
    }
    if (!known) {
        return fails("no system provider has the version of the headers");
    }
    if (c->qnn.backendCreate == NULL || c->qnn.backendGetProperty == NULL ||
        c->qnn.backendFree == NULL || c->qnn.contextCreateFromBinary == NULL ||
        c->qnn.contextFree == NULL || c->qnn.graphRetrieve == NULL ||
        c->qnn.graphGetProperty == NULL || c->qnn.graphSetConfig == NULL ||
        c->qnn.graphFinalize == NULL || c->qnn.graphExecute == NULL ||
        c->system.systemContextCreate == NULL || c->system.systemContextGetBinaryInfo == NULL ||
        c->system.systemContextFree == NULL) {
        return fails("a function that LPAI needs is missing in the tables");
    }
    return true;
}

/* --- Backend, binary, context --------------------------------------------------------------- */

/* Ask for the alignment of memory, and whether the binary must stay in memory with the context. */
static bool ask_backend(client *c) {
    QnnLpaiBackend_BufferAlignmentReq_t alignment;
    bool must_stay = false;
    QnnLpaiBackend_CustomProperty_t custom[2];
    QnnBackend_Property_t asked[2];
    QnnBackend_Property_t *list[3];

    alignment.startAddrAlignment = 0;
    alignment.sizeAlignment = 0;
    custom[0].option = QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ;
    custom[0].property = &alignment;
    custom[1].option = QNN_LPAI_BACKEND_GET_PROP_REQUIRE_PERSISTENT_BINARY;
    custom[1].property = &must_stay;
    asked[0].option = QNN_BACKEND_PROPERTY_OPTION_CUSTOM;
    asked[0].customProperty = &custom[0];
    asked[1].option = QNN_BACKEND_PROPERTY_OPTION_CUSTOM;
    asked[1].customProperty = &custom[1];
    list[0] = &asked[0];
    list[1] = &asked[1];
    list[2] = NULL;
    if (!worked("QnnBackend_getProperty", c->qnn.backendGetProperty(c->backend, list))) {
        return false;
    }
    c->start_alignment = alignment.startAddrAlignment > 0 ? alignment.startAddrAlignment : 1;
    c->size_alignment = alignment.sizeAlignment > 0 ? alignment.sizeAlignment : 1;
    c->binary_must_stay = must_stay;
    return true;
}

static bool read_binary(client *c, const char *path) {
    FILE *file = fopen(path, "rb");
    long size = -1;
    bool good;

    if (file == NULL) {
        fprintf(stderr, "%s cannot be opened\n", path);
        return false;
    }
    if (fseek(file, 0, SEEK_END) == 0) {
        size = ftell(file);
    }
    good = size > 0 && fseek(file, 0, SEEK_SET) == 0;
    if (good) {
        c->binary_size = (size_t)size;
        good = allocate(c, &c->binary, c->binary_size) &&
               fread(c->binary.at, 1, c->binary_size, file) == c->binary_size;
    }
    if (fclose(file) != 0 || !good) {
        fprintf(stderr, "%s cannot be read\n", path);
        return false;
    }
    return true;
}

static bool create_context(client *c) {
    QnnContext_Config_t persistent;
    const QnnContext_Config_t *list[2];

    persistent.option = QNN_CONTEXT_CONFIG_PERSISTENT_BINARY;
    persistent.isPersistentBinary = 1;
    list[0] = &persistent;
    list[1] = NULL;
    return made("QnnContext_createFromBinary",
                c->qnn.contextCreateFromBinary(c->backend, NULL, c->binary_must_stay ? list : NULL,
                                               c->binary.at, c->binary_size, &c->context, NULL),
                &c->context);
}

/* --- Contents of the binary ----------------------------------------------------------------- */

static bool list_graphs(const QnnSystemContext_BinaryInfo_t *info,
                        const QnnSystemContext_GraphInfo_t **graphs, uint32_t *count) {
    switch (info->version) {
    case QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_1:
        *graphs = info->contextBinaryInfoV1.graphs;
        *count = info->contextBinaryInfoV1.numGraphs;
        return true;
    case QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_2:
        *graphs = info->contextBinaryInfoV2.graphs;
        *count = info->contextBinaryInfoV2.numGraphs;
        return true;
    case QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_3:
        *graphs = info->contextBinaryInfoV3.graphs;
        *count = info->contextBinaryInfoV3.numGraphs;
        return true;
    default:
        return fails("the binary info has a version that this client does not know");
    }
}

/* Read the members that all versions have; only the union member of the version may be read. */
static bool read_graph(const QnnSystemContext_GraphInfo_t *info, const char **name,
                       const Qnn_Tensor_t **inputs, uint32_t *input_count,
                       const Qnn_Tensor_t **outputs, uint32_t *output_count) {
#define CLIENT_TAKE(of)                    \
    do {                                   \
        *name = (of).graphName;            \
        *inputs = (of).graphInputs;        \
        *input_count = (of).numGraphInputs; \
        *outputs = (of).graphOutputs;      \
        *output_count = (of).numGraphOutputs; \
    } while (0)
    switch (info->version) {
    case QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_1:
        CLIENT_TAKE(info->graphInfoV1);
        return true;
    case QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_2:
        CLIENT_TAKE(info->graphInfoV2);
        return true;
    case QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_3:
        CLIENT_TAKE(info->graphInfoV3);
        return true;
    default:
        return fails("a graph info has a version that this client does not know");
    }
#undef CLIENT_TAKE
}

/* Bytes of a tensor; 0 if its version or type is unknown, or if it is too large. */
static uint32_t tensor_bytes(const Qnn_Tensor_t *tensor) {
    uint64_t bits;
    uint32_t rank, i;
    const uint32_t *dimensions;
    uint32_t type;

    if (tensor->version == QNN_TENSOR_VERSION_1) {
        type = (uint32_t)tensor->v1.dataType;
        rank = tensor->v1.rank;
        dimensions = tensor->v1.dimensions;
    } else if (tensor->version == QNN_TENSOR_VERSION_2) {
        type = (uint32_t)tensor->v2.dataType;
        rank = tensor->v2.rank;
        dimensions = tensor->v2.dimensions;
    } else {
        return 0;
    }
    switch (type & 0xffu) { /* the last two hexadecimal digits are the number of bits */
    case 0x04: bits = 4; break;
    case 0x08: bits = 8; break;
    case 0x16: bits = 16; break;
    case 0x32: bits = 32; break;
    case 0x64: bits = 64; break;
    default: return 0;
    }
    for (i = 0; i < rank; i++) {
        if (dimensions[i] != 0 && bits > (uint64_t)UINT32_MAX * 8 / dimensions[i]) {
            return 0;
        }
        bits *= dimensions[i];
    }
    return (uint32_t)((bits + 7) / 8);
}

static const char *tensor_name(const Qnn_Tensor_t *tensor) {
    const char *name =
        tensor->version == QNN_TENSOR_VERSION_1 ? tensor->v1.name : tensor->v2.name;
    return name == NULL ? "" : name;
}

/* Set the memory of a tensor for the next executions; NULL: its planned place in scratch. */
static void hand_over(Qnn_Tensor_t *tensor, void *data, uint32_t size) {
    if (tensor->version == QNN_TENSOR_VERSION_1) {
        tensor->v1.memType = QNN_TENSORMEMTYPE_RAW;
        tensor->v1.clientBuf.data = data;
        tensor->v1.clientBuf.dataSize = size;
    } else {
        tensor->v2.memType = QNN_TENSORMEMTYPE_RAW;
        tensor->v2.clientBuf.data = data;
        tensor->v2.clientBuf.dataSize = size;
    }
}

/* --- A graph -------------------------------------------------------------------------------- */

static bool is_planned_io(const planned_graph *plan, const client_graph *graph) {
    uint32_t i, from, bytes;
    if (!plan->has_io) {
        return true;
    }
    if (plan->inputs != graph->inputs || plan->outputs != graph->outputs) {
        fprintf(stderr, "%s has other inputs or outputs than planned\n", plan->name);
        return false;
    }
    for (i = 0; i < graph->inputs + graph->outputs; i++) {
        from = i < graph->inputs ? plan->first_input + i : plan->first_output + i - graph->inputs;
        if (strcmp(TENSORS[from].name, tensor_name(&graph->tensors[i])) != 0) {
            fprintf(stderr, "%s has tensor %s where %s was planned\n", plan->name,
                    tensor_name(&graph->tensors[i]), TENSORS[from].name);
            return false;
        }
        bytes = tensor_bytes(&graph->tensors[i]);
        if (TENSORS[from].bytes == 0 ||
            ((uint64_t)bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN == TENSORS[from].bytes) {
            continue; /* no planned size, or a size with padding */
        }
        if (!as_planned(plan->name, TENSORS[from].name, bytes, TENSORS[from].bytes)) {
            return false;
        }
    }
    return true;
}

/* Copy the descriptors of inputs and outputs; `place_io` fills in `clientBuf` of the copies. */
static bool copy_tensors(client_graph *graph, const planned_graph *plan,
                         const QnnSystemContext_GraphInfo_t *infos, uint32_t count) {
    const Qnn_Tensor_t *inputs = NULL, *outputs = NULL;
    const char *name = NULL;
    uint32_t i, input_count = 0, output_count = 0;
    size_t all;

    for (i = 0; i < count; i++) {
        if (!read_graph(&infos[i], &name, &inputs, &input_count, &outputs, &output_count)) {
            return false;
        }
        if (name != NULL && strcmp(name, plan->name) == 0) {
            break;
        }
    }
    if (i == count) {
        fprintf(stderr, "the binary has no graph %s\n", plan->name);
        return false;
    }
    all = (size_t)input_count + output_count;
    graph->tensors = (Qnn_Tensor_t *)calloc(all + 1, sizeof *graph->tensors);
    graph->memory = (block *)calloc(all + 1, sizeof *graph->memory);
    if (graph->tensors == NULL || graph->memory == NULL) {
        return fails("out of memory");
    }
    if (input_count > 0) {
        memcpy(graph->tensors, inputs, input_count * sizeof *inputs);
    }
    if (output_count > 0) {
        memcpy(graph->tensors + input_count, outputs, output_count * sizeof *outputs);
    }
    graph->inputs = input_count;
    graph->outputs = output_count;
    return is_planned_io(plan, graph);
}

static bool ask_sizes(client *c, const planned_graph *plan, client_graph *graph) {
    QnnLpaiGraph_CustomProperty_t custom[2];
    QnnGraph_Property_t asked[2];
    QnnGraph_Property_t *list[3];

    custom[0].option = QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE;
    custom[0].property = &graph->scratch_size;
    custom[1].option = QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE;
    custom[1].property = &graph->persistent_size;
    asked[0].option = QNN_GRAPH_PROPERTY_OPTION_CUSTOM;
    asked[0].customProperty = &custom[0];
    asked[1].option = QNN_GRAPH_PROPERTY_OPTION_CUSTOM;
    asked[1].customProperty = &custom[1];
    list[0] = &asked[0];
    list[1] = &asked[1];
    list[2] = NULL;
    if (!worked("QnnGraph_getProperty", c->qnn.graphGetProperty(graph->handle, list))) {
        return false;
    }
    if (IO_IN_SCRATCH && graph->scratch_size != plan->scratch) {
        return fails("scratch is not as planned, so the offsets of inputs and outputs are unknown");
    }
    if (ONE_SCRATCH && graph->scratch_size > plan->scratch) {
        return fails("scratch is larger than planned, so it may lie on that of another graph");
    }
    return as_planned(plan->name, "scratch", graph->scratch_size, plan->scratch) &&
           as_planned(plan->name, "persistent", graph->persistent_size, plan->persistent);
}

static bool configure(client *c, client_graph *graph) {
    QnnLpaiGraph_Mem_t pools[2];
    QnnLpaiGraph_PerfCfg_t perf;
    QnnLpaiGraph_CoreAffinity_t affinity;
    QnnLpaiGraph_CustomConfig_t custom[4];
    QnnGraph_Config_t configs[4];
    const QnnGraph_Config_t *list[5];
    const block *blocks[2];
    size_t count = 0, i;

    blocks[0] = &graph->scratch;
    blocks[1] = &graph->persistent;
    for (i = 0; i < 2; i++) {
        if (blocks[i]->size == 0) {
            continue; /* not needed, such as persistent memory without state */
        }
        pools[i].memType = QNN_LPAI_MEM_TYPE_DDR;
        pools[i].size = (uint32_t)blocks[i]->size;
        pools[i].addr = blocks[i]->at;
        custom[count].option = i == 0 ? (uint32_t)QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM
                                      : (uint32_t)QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM;
        custom[count++].config = &pools[i];
    }
    perf.fps = CLIENT_FPS;
    perf.ftrtRatio = CLIENT_FTRT_RATIO;
    perf.clientType = CLIENT_PERF_TYPE;
    custom[count].option = QNN_LPAI_GRAPH_SET_CFG_PERF_CFG;
    custom[count++].config = &perf;
    affinity.affinity = CLIENT_AFFINITY;
    affinity.coreSelection = CLIENT_CORES;
    custom[count].option = QNN_LPAI_GRAPH_SET_CFG_CORE_AFFINITY;
    custom[count++].config = &affinity;
    for (i = 0; i < count; i++) {
        configs[i].option = QNN_GRAPH_CONFIG_OPTION_CUSTOM;
        configs[i].customConfig = &custom[i];
        list[i] = &configs[i];
    }
    list[count] = NULL;
    return worked("QnnGraph_setConfig", c->qnn.graphSetConfig(graph->handle, list));
}

/* Give each input and output a buffer, or its planned place in scratch. */
static bool place_io(client *c, const planned_graph *plan, client_graph *graph) {
    uint32_t i, bytes;
    for (i = 0; i < graph->inputs + graph->outputs; i++) {
        bytes = tensor_bytes(&graph->tensors[i]);
        if (bytes == 0) {
            fprintf(stderr, "%s: tensor %s has no size\n", plan->name,
                    tensor_name(&graph->tensors[i]));
            return false;
        }
#if IO_IN_SCRATCH
        {
            uint32_t from =
                i < graph->inputs ? plan->first_input + i : plan->first_output + i - graph->inputs;
            if ((size_t)TENSORS[from].at + bytes > graph->scratch.size) {
                return fails("a tensor does not fit in scratch at its planned place");
            }
            graph->memory[i].at = graph->scratch.at + TENSORS[from].at; /* `raw` stays NULL */
            graph->memory[i].size = bytes;
        }
        hand_over(&graph->tensors[i], NULL, 0);
        (void)c;
#else
        if (!allocate(c, &graph->memory[i], bytes)) {
            return false;
        }
        graph->memory[i].size = bytes;
        hand_over(&graph->tensors[i], graph->memory[i].at, bytes);
#endif
    }
    return true;
}

static bool find_graph(client *c, const planned_graph *plan, client_graph *graph,
                       const QnnSystemContext_GraphInfo_t *infos, uint32_t count) {
    return copy_tensors(graph, plan, infos, count) &&
           worked("QnnGraph_retrieve",
                  c->qnn.graphRetrieve(c->context, plan->name, &graph->handle)) &&
           ask_sizes(c, plan, graph);
}

/* Give the graph its own scratch, or its place in the scratch that all graphs share. */
static bool take_scratch(client *c, const planned_graph *plan, client_graph *graph) {
    if (graph->scratch_size == 0) {
        return true;
    }
    if (!ONE_SCRATCH) {
        return allocate(c, &graph->scratch, graph->scratch_size);
    }
    if (c->scratch.raw == NULL && !allocate(c, &c->scratch, SCRATCH_BYTES)) {
        return false;
    }
    graph->scratch.at = c->scratch.at + plan->scratch_at; /* `raw` stays NULL */
    graph->scratch.size = (graph->scratch_size + c->size_alignment - 1) / c->size_alignment *
                          c->size_alignment;
    if (plan->scratch_at % c->start_alignment != 0 ||
        plan->scratch_at + graph->scratch.size > c->scratch.size) {
        return fails("a graph's place in the common scratch is too small or badly aligned");
    }
    return true;
}

static bool open_graph(client *c, const planned_graph *plan, client_graph *graph) {
    if (!take_scratch(c, plan, graph) ||
        (graph->persistent_size > 0 &&
         !allocate(c, &graph->persistent, graph->persistent_size))) {
        return false;
    }
    if ((uint32_t)graph->scratch.size != graph->scratch.size ||
        (uint32_t)graph->persistent.size != graph->persistent.size) {
        return fails("a pool is too large: its size must fit in 32 bits");
    }
    return configure(c, graph) &&
           worked("QnnGraph_finalize", c->qnn.graphFinalize(graph->handle, NULL, NULL)) &&
           place_io(c, plan, graph);
}

/* Compute one result: write inputs and execute until the graph has enough inputs for a result. */
static bool run_once(client *c, const planned_graph *plan, client_graph *graph) {
    Qnn_ErrorHandle_t code = QNN_SUCCESS;
    uint32_t frame, i;

    for (frame = 0; frame < CLIENT_MAX_FRAMES; frame++) {
        for (i = 0; i < graph->inputs; i++) {
            if (!write_input(plan, i, graph->memory[i].at, graph->memory[i].size)) {
                return false;
            }
        }
        code = c->qnn.graphExecute(graph->handle, graph->tensors, graph->inputs,
                                   graph->tensors + graph->inputs, graph->outputs, NULL, NULL);
        if ((code & 0xffffu) != QNN_GRAPH_ERROR_EARLY_TERMINATION) {
            break;
        }
    }
    if (!worked("QnnGraph_execute", code)) {
        return false;
    }
    for (i = graph->inputs; i < graph->inputs + graph->outputs; i++) {
        read_output(plan, i - graph->inputs, graph->memory[i].at, graph->memory[i].size);
    }
    return true;
}

/* --- Start and end -------------------------------------------------------------------------- */

static bool open_client(client *c, const char *path) {
    const QnnSystemContext_BinaryInfo_t *info = NULL;
    const QnnSystemContext_GraphInfo_t *graphs = NULL;
    Qnn_ContextBinarySize_t info_size = 0;
    uint32_t count = 0, i;

    if (!find_interfaces(c) ||
        !made("QnnBackend_create", c->qnn.backendCreate(NULL, NULL, &c->backend), &c->backend) ||
        !ask_backend(c) || !read_binary(c, path) || !create_context(c) ||
        !made("QnnSystemContext_create", c->system.systemContextCreate(&c->system_context),
              &c->system_context) ||
        !worked("QnnSystemContext_getBinaryInfo",
                c->system.systemContextGetBinaryInfo(c->system_context, c->binary.at,
                                                     c->binary_size, &info, &info_size))) {
        return false;
    }
    if (info == NULL || !list_graphs(info, &graphs, &count)) {
        return false;
    }
    if (!c->binary_must_stay) {
        release(&c->binary); /* the context has a copy */
    }
    for (i = 0; i < GRAPH_COUNT; i++) {
        if (!find_graph(c, &GRAPHS[i], &c->graphs[i], graphs, count) ||
            !open_graph(c, &GRAPHS[i], &c->graphs[i])) {
            return false;
        }
    }
    return true;
}

/* Free everything that was made, in this order, even after a failure; the binary is last. */
static bool close_client(client *c) {
    bool good = true;
    uint32_t i, t;

    if (c->context != NULL && !worked("QnnContext_free", c->qnn.contextFree(c->context, NULL))) {
        good = false;
    }
    if (c->backend != NULL && !worked("QnnBackend_free", c->qnn.backendFree(c->backend))) {
        good = false;
    }
    if (c->system_context != NULL &&
        !worked("QnnSystemContext_free", c->system.systemContextFree(c->system_context))) {
        good = false;
    }
    if (!unload_libraries(c)) {
        good = false;
    }
    for (i = 0; i < GRAPH_COUNT; i++) {
        client_graph *graph = &c->graphs[i];
        release(&graph->scratch);
        release(&graph->persistent);
        for (t = 0; graph->memory != NULL && t < graph->inputs + graph->outputs; t++) {
            release(&graph->memory[t]);
        }
        free(graph->memory);
        free(graph->tensors);
    }
    release(&c->scratch);
    release(&c->binary);
    return good;
}

int main(int argc, char **argv) {
    static client c; /* zeroed: nothing was made yet */
    bool good;
    uint32_t i, run;

    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL.bin\n", argc > 0 ? argv[0] : "client");
        return 2;
    }
    good = open_client(&c, argv[1]);
    for (run = 0; good && run < CLIENT_RUNS; run++) {
        for (i = 0; good && i < GRAPH_COUNT; i++) {
            good = run_once(&c, &GRAPHS[i], &c.graphs[i]);
        }
    }
    good = close_client(&c) && good;
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
