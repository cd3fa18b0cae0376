/* A backend and a system library that compute nothing but check every call of their client.
 *
 * Every call is checked against the contract: order, alignment, sizes, and memory that must still
 * exist. A violation is printed on standard error and ends the process with 70. The test writes
 * `fake_model.h` with the graphs of the binary. Settings are environment variables:
 *
 *     FAKE_FAIL=N          the Nth call fails with 1002
 *     FAKE_FAIL_ALLOC=N    the Nth allocation of the client fails
 *     FAKE_VERSION=1|2|3   version of binary info and graph info
 *     FAKE_TENSOR=1|2      version of tensors
 *     FAKE_START, FAKE_SIZE    required alignment of start and size
 *     FAKE_PERSISTENT=1    the binary must stay in memory
 *     FAKE_WAIT=N          the first N executions wait for more frames
 *     FAKE_MORE=N          scratch needs N bytes more than the model says
 *     FAKE_TRACE=PATH      file for the names of all calls
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_model.h"
#include "qnnmem_qnn.h"

enum { MEM_ALLOC = 1002 };

typedef struct {
    int retrieved, finalized, executed;
    unsigned char *scratch, *persistent;
    uint32_t scratch_size, persistent_size;
} fake_graph;

static fake_graph graphs[FAKE_GRAPHS];
static unsigned long calls, allocations, live_blocks, waits;
static int faults, backend_alive, context_alive, system_alive, alignment_asked, is_persistent;
static unsigned char *binary;
static uint64_t binary_size, binary_sum;
static FILE *trace;

/* The client is compiled to allocate its own memory with these functions. */
void *counted_calloc(size_t count, size_t size);
void counted_free(void *block);

static unsigned long setting(const char *name, unsigned long usual) {
    const char *text = getenv(name);
    return text == NULL ? usual : strtoul(text, NULL, 10);
}

static void fault(const char *what) {
    fprintf(stderr, "fake: %s\n", what);
    faults++;
}

static void expect(int holds, const char *what) {
    if (!holds) {
        fault(what);
    }
}

static void at_end(void) {
    expect(!backend_alive, "the backend was never freed");
    expect(!context_alive, "the context was never freed");
    expect(!system_alive, "the system context was never freed");
    if (live_blocks != 0) {
        fprintf(stderr, "fake: %lu blocks of the client were never freed\n", live_blocks);
        faults++;
    }
    if (trace != NULL) {
        fclose(trace);
    }
    fflush(NULL);
    if (faults != 0) {
        _exit(70);
    }
}

/* Counts a call; true if it is the one that fails. */
static int failing(const char *name) {
    static int began;
    if (!began) {
        const char *path = getenv("FAKE_TRACE");
        began = 1;
        trace = path == NULL ? NULL : fopen(path, "w");
        atexit(at_end);
    }
    if (trace != NULL) {
        fprintf(trace, "%s\n", name);
    }
    return ++calls == setting("FAKE_FAIL", 0);
}

void *counted_calloc(size_t count, size_t size) {
    void *made = ++allocations == setting("FAKE_FAIL_ALLOC", 0) ? NULL : calloc(count, size);
    live_blocks += made != NULL;
    return made;
}

void counted_free(void *block) {
    live_blocks -= block != NULL;
    free(block);
}

static uint64_t sum(const unsigned char *bytes, uint64_t size) {
    uint64_t found = 17, i;
    for (i = 0; i < size; i++) {
        found = found * 31 + bytes[i];
    }
    return found;
}

static int is_aligned(const void *data, uint64_t size) {
    return (uintptr_t)data % setting("FAKE_START", 64) == 0 && size % setting("FAKE_SIZE", 64) == 0;
}

/* --- Backend ---------------------------------------------------------------------------------- */

static Qnn_ErrorHandle_t backend_create(Qnn_LogHandle_t log, const QnnBackend_Config_t **config,
                                        Qnn_BackendHandle_t *out) {
    (void)log;
    (void)config;
    if (failing("QnnBackend_create")) {
        *out = &calls; /* an invalid handle */
        return MEM_ALLOC;
    }
    expect(!backend_alive, "a second backend is made");
    backend_alive = 1;
    *out = &backend_alive;
    return QNN_SUCCESS;
}

static Qnn_ErrorHandle_t backend_get_property(Qnn_BackendHandle_t backend,
                                              QnnBackend_Property_t **list) {
    int asked = 0;
    if (failing("QnnBackend_getProperty")) {
        return MEM_ALLOC;
    }
    expect(backend == &backend_alive && backend_alive, "a property of no backend is asked for");
    for (; *list != NULL; list++) {
        QnnLpaiBackend_CustomProperty_t *one =
            (QnnLpaiBackend_CustomProperty_t *)(*list)->customProperty;
        if (one->option == QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ) {
            QnnLpaiBackend_BufferAlignmentReq_t *answer =
                (QnnLpaiBackend_BufferAlignmentReq_t *)one->property;
            answer->startAddrAlignment = (uint32_t)setting("FAKE_START", 64);
            answer->sizeAlignment = (uint32_t)setting("FAKE_SIZE", 64);
            asked = alignment_asked = 1;
        } else {
            *(_Bool *)one->property = setting("FAKE_PERSISTENT", 0) != 0;
        }
    }
    expect(asked, "the alignment is not asked for");
    expect(allocations == 0, "memory was allocated before the alignment was asked for");
    return QNN_SUCCESS;
}

static Qnn_ErrorHandle_t backend_free(Qnn_BackendHandle_t backend) {
    int fails = failing("QnnBackend_free");
    expect(backend == &backend_alive && backend_alive, "a backend is freed that does not live");
    expect(!context_alive, "the backend is freed before its context");
    backend_alive = 0;
    return fails ? MEM_ALLOC : QNN_SUCCESS;
}

/* --- Context ---------------------------------------------------------------------------------- */

static Qnn_ErrorHandle_t context_create(Qnn_BackendHandle_t backend, Qnn_DeviceHandle_t device,
                                        const QnnContext_Config_t **config, const void *data,
                                        Qnn_ContextBinarySize_t size, Qnn_ContextHandle_t *out,
                                        Qnn_ProfileHandle_t profile) {
    (void)profile;
    if (failing("QnnContext_createFromBinary")) {
        *out = &calls; /* an invalid handle */
        return MEM_ALLOC;
    }
    expect(backend == &backend_alive && backend_alive, "a context of no backend is made");
    expect(device == NULL, "LPAI has no device");
    expect(alignment_asked, "a context is made before the alignment was asked for");
    expect((uintptr_t)data % setting("FAKE_START", 64) == 0, "the binary is not aligned");
    for (; config != NULL && *config != NULL; config++) {
        if ((*config)->option == QNN_CONTEXT_CONFIG_PERSISTENT_BINARY) {
            is_persistent = (*config)->isPersistentBinary;
        }
    }
    expect(is_persistent || !setting("FAKE_PERSISTENT", 0), "the binary is not said to stay");
    binary = (unsigned char *)data;
    binary_size = size;
    binary_sum = sum(binary, size);
    context_alive = 1;
    *out = &context_alive;
    return QNN_SUCCESS;
}

static Qnn_ErrorHandle_t context_free(Qnn_ContextHandle_t context, Qnn_ProfileHandle_t profile) {
    int fails = failing("QnnContext_free"), i;
    (void)profile;
    expect(context == &context_alive && context_alive, "a context is freed that does not live");
    expect(!is_persistent || sum(binary, binary_size) == binary_sum, "the binary did not stay");
    for (i = 0; i < FAKE_GRAPHS; i++) { /* read the memory, so a sanitizer reports freed memory */
        if (graphs[i].persistent != NULL && graphs[i].finalized) {
            memset(graphs[i].persistent, 7, graphs[i].persistent_size);
        }
        if (graphs[i].scratch != NULL && graphs[i].finalized) {
            memset(graphs[i].scratch, 7, graphs[i].scratch_size);
        }
    }
    context_alive = 0;
    return fails ? MEM_ALLOC : QNN_SUCCESS;
}

/* --- Graph ------------------------------------------------------------------------------------ */

static int number_of(Qnn_GraphHandle_t graph) {
    int i;
    for (i = 0; i < FAKE_GRAPHS; i++) {
        if (graph == &graphs[i] && graphs[i].retrieved) {
            expect(context_alive, "a graph is used after its context was freed");
            return i;
        }
    }
    fault("a graph is used that was not retrieved");
    exit(1);
}

static uint32_t scratch_of(int graph) {
    return SCRATCH[graph] + (uint32_t)setting("FAKE_MORE", 0);
}

static Qnn_ErrorHandle_t graph_retrieve(Qnn_ContextHandle_t context, const char *name,
                                        Qnn_GraphHandle_t *out) {
    int i;
    if (failing("QnnGraph_retrieve")) {
        return MEM_ALLOC;
    }
    expect(context == &context_alive && context_alive, "a graph of no context is retrieved");
    for (i = 0; i < FAKE_GRAPHS; i++) {
        if (strcmp(name, GRAPH_NAMES[i]) == 0) {
            graphs[i].retrieved = 1;
            *out = &graphs[i];
            return QNN_SUCCESS;
        }
    }
    return 6002;
}

static Qnn_ErrorHandle_t graph_get_property(Qnn_GraphHandle_t graph, QnnGraph_Property_t **list) {
    int number;
    if (failing("QnnGraph_getProperty")) {
        return MEM_ALLOC;
    }
    number = number_of(graph);
    for (; *list != NULL; list++) {
        QnnLpaiGraph_CustomProperty_t *one = (QnnLpaiGraph_CustomProperty_t *)(*list)->customProperty;
        int is_scratch = one->option == QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE;
        *(uint32_t *)one->property = is_scratch ? scratch_of(number) : PERSISTENT[number];
    }
    return QNN_SUCCESS;
}

static Qnn_ErrorHandle_t graph_set_config(Qnn_GraphHandle_t graph, const QnnGraph_Config_t **list) {
    fake_graph *own;
    int number;
    if (failing("QnnGraph_setConfig")) {
        return MEM_ALLOC;
    }
    number = number_of(graph);
    own = &graphs[number];
    for (; *list != NULL; list++) {
        QnnLpaiGraph_CustomConfig_t *one = (QnnLpaiGraph_CustomConfig_t *)(*list)->customConfig;
        QnnLpaiGraph_Mem_t *mem = (QnnLpaiGraph_Mem_t *)one->config;
        if (one->option == QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM) {
            expect(mem->size >= scratch_of(number), "scratch is too small");
            expect(is_aligned(mem->addr, mem->size), "scratch is not aligned");
            own->scratch = (unsigned char *)mem->addr;
            own->scratch_size = mem->size;
        } else if (one->option == QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM) {
            expect(mem->size >= PERSISTENT[number], "persistent memory is too small");
            expect(is_aligned(mem->addr, mem->size), "persistent memory is not aligned");
            own->persistent = (unsigned char *)mem->addr;
            own->persistent_size = mem->size;
        } else {
            continue;
        }
        expect(mem->memType == QNN_LPAI_MEM_TYPE_DDR, "a pool has no memory type");
        expect(!own->finalized, "a pool is handed over after finalize");
    }
    return QNN_SUCCESS;
}

static Qnn_ErrorHandle_t graph_finalize(Qnn_GraphHandle_t graph, Qnn_ProfileHandle_t profile,
                                        Qnn_SignalHandle_t signal) {
    int number;
    (void)profile;
    (void)signal;
    if (failing("QnnGraph_finalize")) {
        return MEM_ALLOC;
    }
    number = number_of(graph);
    expect(scratch_of(number) == 0 || graphs[number].scratch != NULL, "there is no scratch");
    expect(PERSISTENT[number] == 0 || graphs[number].persistent != NULL, "there is no state");
    graphs[number].finalized = 1;
    if (graphs[number].persistent != NULL) {
        memset(graphs[number].persistent, 0x5a, graphs[number].persistent_size);
    }
    return QNN_SUCCESS;
}

static uint32_t bytes_of(const fake_tensor *row) {
    uint32_t bytes = (row->type & 0xff) == 0x16 ? 2 : (row->type & 0xff) == 0x32 ? 4 : 1, i;
    for (i = 0; i < row->rank; i++) {
        bytes *= row->dimensions[i];
    }
    return bytes;
}

static void check_tensors(int number, int is_output, const Qnn_Tensor_t *given, uint32_t count) {
    uint32_t i, at = 0;
    for (i = 0; i < FAKE_TENSORS; i++) {
        const fake_tensor *row = &TENSOR_ROWS[i];
        const Qnn_ClientBuffer_t *buffer;
        if (row->graph != number || row->is_output != is_output) {
            continue;
        }
        expect(at < count, "a tensor is missing");
        buffer = given[at].version == QNN_TENSOR_VERSION_1 ? &given[at].v1.clientBuf
                                                           : &given[at].v2.clientBuf;
        expect(strcmp(given[at].version == QNN_TENSOR_VERSION_1 ? given[at].v1.name
                                                                : given[at].v2.name,
                      row->name) == 0,
               "a tensor stands where another one belongs");
        if (buffer->data == NULL) {
            expect(buffer->dataSize == 0 && IO_MAY_BE_INSIDE, "a tensor has no buffer");
        } else {
            expect(is_aligned(buffer->data, 0), "a tensor is not aligned");
            expect(buffer->dataSize == bytes_of(row), "a tensor has another size");
            if (is_output) {
                memset(buffer->data, 3, buffer->dataSize);
            } else {
                expect(sum((const unsigned char *)buffer->data, buffer->dataSize) != 0, "no input");
            }
        }
        at++;
    }
    expect(at == count, "there are more tensors than the graph has");
}

static Qnn_ErrorHandle_t graph_execute(Qnn_GraphHandle_t graph, const Qnn_Tensor_t *inputs,
                                       uint32_t input_count, Qnn_Tensor_t *outputs,
                                       uint32_t output_count, Qnn_ProfileHandle_t profile,
                                       Qnn_SignalHandle_t signal) {
    fake_graph *own;
    uint32_t i;
    int number;
    (void)profile;
    (void)signal;
    if (failing("QnnGraph_execute")) {
        return MEM_ALLOC;
    }
    number = number_of(graph);
    own = &graphs[number];
    expect(own->finalized, "a graph executes that is not finalized");
    expect(system_alive, "names of tensors are used after the system context was freed");
    for (i = 0; i < own->persistent_size; i++) {
        if (own->persistent[i] != (unsigned char)(own->executed ? 0x5b : 0x5a)) {
            fault("persistent memory was changed");
            break;
        }
    }
    check_tensors(number, 0, inputs, input_count);
    if (own->scratch != NULL) {
        memset(own->scratch, 0x11, own->scratch_size);
    }
    if (own->persistent != NULL) {
        memset(own->persistent, 0x5b, own->persistent_size);
    }
    own->executed = 1;
    if (waits++ < setting("FAKE_WAIT", 0)) {
        return QNN_GRAPH_ERROR_EARLY_TERMINATION;
    }
    check_tensors(number, 1, outputs, output_count);
    return QNN_SUCCESS;
}

/* --- System context --------------------------------------------------------------------------- */

static Qnn_ErrorHandle_t system_create(QnnSystemContext_Handle_t *out) {
    if (failing("QnnSystemContext_create")) {
        *out = &calls; /* an invalid handle */
        return MEM_ALLOC;
    }
    system_alive = 1;
    *out = &system_alive;
    return QNN_SUCCESS;
}

static Qnn_Tensor_t tensors[FAKE_TENSORS + 1];
static QnnSystemContext_GraphInfo_t infos[FAKE_GRAPHS];
static QnnSystemContext_BinaryInfo_t info;

static uint32_t list_tensors(int graph, int is_output, uint32_t from) {
    uint32_t i, count = 0;
    for (i = 0; i < FAKE_TENSORS; i++) {
        const fake_tensor *row = &TENSOR_ROWS[i];
        if (row->graph == graph && row->is_output == is_output) {
            Qnn_Tensor_t *one = &tensors[from + count++];
            /* Both versions begin with the same members. */
            one->version = (Qnn_TensorVersion_t)setting("FAKE_TENSOR", 1);
            one->v1.name = row->name;
            one->v1.type = is_output ? QNN_TENSOR_TYPE_APP_READ : QNN_TENSOR_TYPE_APP_WRITE;
            one->v1.dataType = (Qnn_DataType_t)row->type;
            one->v1.rank = row->rank;
            one->v1.dimensions = (uint32_t *)row->dimensions;
            one->v1.memType = QNN_TENSORMEMTYPE_UNDEFINED;
        }
    }
    return count;
}

static Qnn_ErrorHandle_t system_info(QnnSystemContext_Handle_t handle, void *data, uint64_t size,
                                     const QnnSystemContext_BinaryInfo_t **out,
                                     Qnn_ContextBinarySize_t *out_size) {
    unsigned long version = setting("FAKE_VERSION", 1);
    uint32_t first = 0;
    int i;
    if (failing("QnnSystemContext_getBinaryInfo")) {
        return MEM_ALLOC;
    }
    expect(handle == &system_alive && system_alive, "a system context is used that does not live");
    expect(binary == NULL || sum((unsigned char *)data, size) == binary_sum, "another binary");
    for (i = 0; i < FAKE_GRAPHS; i++) {
        infos[i].version = (QnnSystemContext_GraphInfoVersion_t)version;
        infos[i].graphInfoV1.graphName = GRAPH_NAMES[i];
        infos[i].graphInfoV1.graphInputs = &tensors[first];
        infos[i].graphInfoV1.numGraphInputs = list_tensors(i, 0, first);
        first += infos[i].graphInfoV1.numGraphInputs;
        infos[i].graphInfoV1.graphOutputs = &tensors[first];
        infos[i].graphInfoV1.numGraphOutputs = list_tensors(i, 1, first);
        first += infos[i].graphInfoV1.numGraphOutputs;
    }
    info.version = (QnnSystemContext_BinaryInfoVersion_t)version;
    if (version == 3) {
        info.contextBinaryInfoV3.numGraphs = FAKE_GRAPHS;
        info.contextBinaryInfoV3.graphs = infos;
    } else {
        info.contextBinaryInfoV1.numGraphs = FAKE_GRAPHS;
        info.contextBinaryInfoV1.graphs = infos;
    }
    *out = &info;
    *out_size = sizeof info;
    return QNN_SUCCESS;
}

static Qnn_ErrorHandle_t system_free(QnnSystemContext_Handle_t handle) {
    int fails = failing("QnnSystemContext_free");
    expect(handle == &system_alive && system_alive, "a system context is freed that does not live");
    system_alive = 0;
    memset(tensors, 0xee, sizeof tensors); /* the system context owns this memory */
    memset(infos, 0xee, sizeof infos);
    return fails ? MEM_ALLOC : QNN_SUCCESS;
}

/* --- Providers -------------------------------------------------------------------------------- */

Qnn_ErrorHandle_t QnnInterface_getProviders(const QnnInterface_t ***list, uint32_t *count) {
    static QnnInterface_t other, lpai;
    static const QnnInterface_t *both[2];
    if (failing("QnnInterface_getProviders")) {
        return MEM_ALLOC;
    }
    other.backendId = 6;
    lpai.backendId = QNN_BACKEND_ID_LPAI;
    lpai.providerName = "LPAI_QTI_AISW";
    lpai.apiVersion.coreApiVersion.major = QNN_API_VERSION_MAJOR;
    lpai.apiVersion.coreApiVersion.minor = (uint32_t)setting("FAKE_MINOR", 40);
    lpai.QNN_INTERFACE_VER_NAME.backendCreate = backend_create;
    lpai.QNN_INTERFACE_VER_NAME.backendGetProperty = backend_get_property;
    lpai.QNN_INTERFACE_VER_NAME.backendFree = backend_free;
    lpai.QNN_INTERFACE_VER_NAME.contextCreateFromBinary = context_create;
    lpai.QNN_INTERFACE_VER_NAME.contextFree = context_free;
    lpai.QNN_INTERFACE_VER_NAME.graphRetrieve = graph_retrieve;
    lpai.QNN_INTERFACE_VER_NAME.graphGetProperty = graph_get_property;
    lpai.QNN_INTERFACE_VER_NAME.graphSetConfig = graph_set_config;
    lpai.QNN_INTERFACE_VER_NAME.graphFinalize = graph_finalize;
    lpai.QNN_INTERFACE_VER_NAME.graphExecute =
        setting("FAKE_MISSING", 0) ? NULL : graph_execute;
    both[0] = &other;
    both[1] = &lpai;
    *list = both;
    *count = 2;
    return QNN_SUCCESS;
}

Qnn_ErrorHandle_t QnnSystemInterface_getProviders(const QnnSystemInterface_t ***list,
                                                  uint32_t *count) {
    static QnnSystemInterface_t system;
    static const QnnSystemInterface_t *one[1];
    if (failing("QnnSystemInterface_getProviders")) {
        return MEM_ALLOC;
    }
    system.systemApiVersion.major = QNN_SYSTEM_API_VERSION_MAJOR;
    system.systemApiVersion.minor = 15;
    system.QNN_SYSTEM_INTERFACE_VER_NAME.systemContextCreate = system_create;
    system.QNN_SYSTEM_INTERFACE_VER_NAME.systemContextGetBinaryInfo = system_info;
    system.QNN_SYSTEM_INTERFACE_VER_NAME.systemContextFree = system_free;
    one[0] = &system;
    *list = one;
    *count = 1;
    return QNN_SUCCESS;
}
