/* A client of LPAI that calls each function by its name, with the declarations of `lpai headers`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "LPAI/QnnLpaiBackend.h"
#include "LPAI/QnnLpaiGraph.h"
#include "QnnInterface.h"
#include "System/QnnSystemInterface.h"

static QnnLpaiBackend_BufferAlignmentReq_t need;

static void must(const char *call, Qnn_ErrorHandle_t code) {
    if (code == QNN_SUCCESS) return;
    fprintf(stderr, "%s: %u\n", call, (unsigned)QNN_GET_ERROR_CODE(code));
    exit(3);
}

static void *aligned(size_t size) {
    size = (size + need.sizeAlignment - 1) / need.sizeAlignment * need.sizeAlignment;
    return memset(aligned_alloc(need.startAddrAlignment, size), 0, size);
}

static uint32_t ask(Qnn_GraphHandle_t graph, uint32_t which) {
    uint32_t size = 0;
    QnnLpaiGraph_CustomProperty_t custom = {which, &size};
    QnnGraph_Property_t property = {QNN_GRAPH_PROPERTY_OPTION_CUSTOM, {&custom}}, *list[] = {&property, NULL};
    must("getProperty", QnnGraph_getProperty(graph, list));
    return size;
}

static void *give(Qnn_GraphHandle_t graph, uint32_t which, uint32_t size) {
    QnnLpaiGraph_Mem_t memory = {QNN_LPAI_MEM_TYPE_DDR, size, aligned(size)};
    QnnLpaiGraph_CustomConfig_t custom = {which, &memory};
    QnnGraph_Config_t config = {QNN_GRAPH_CONFIG_OPTION_CUSTOM, {&custom}};
    const QnnGraph_Config_t *list[] = {&config, NULL};
    must("setConfig", QnnGraph_setConfig(graph, list));
    return memory.addr;
}

static const QnnSystemContext_GraphInfo_t *graphs(const QnnSystemContext_BinaryInfo_t *info) {
    switch (info->version) {
    case QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_1: return info->contextBinaryInfoV1.graphs;
    case QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_2: return info->contextBinaryInfoV2.graphs;
    case QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_3: return info->contextBinaryInfoV3.graphs;
    default: exit(4);
    }
}

static void place(Qnn_Tensor_t *to, const Qnn_Tensor_t *from) {
    uint32_t size = from->v1.dataType == QNN_DATATYPE_INT_32 ? 4 : 1;
    for (uint32_t i = 0; i < from->v1.rank; i++) size *= from->v1.dimensions[i];
    *to = *from;
    to->v1.memType = QNN_TENSORMEMTYPE_RAW;
    to->v1.clientBuf.data = aligned(size);
    to->v1.clientBuf.dataSize = size;
}

int main(int count, char **words) {
    Qnn_BackendHandle_t backend = NULL;
    Qnn_ContextHandle_t context = NULL;
    Qnn_GraphHandle_t graph = NULL;
    QnnSystemContext_Handle_t system = NULL;
    const QnnSystemContext_BinaryInfo_t *info = NULL;
    Qnn_ContextBinarySize_t size = 0;
    QnnLpaiBackend_CustomProperty_t custom = {QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ, &need};
    QnnBackend_Property_t property = {QNN_BACKEND_PROPERTY_OPTION_CUSTOM, {&custom}}, *asked[] = {&property, NULL};
    QnnContext_Config_t keep = {.option = QNN_CONTEXT_CONFIG_PERSISTENT_BINARY};
    const QnnContext_Config_t *list[] = {&keep, NULL};
    FILE *file = count > 1 ? fopen(words[1], "rb") : NULL;
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) return 2;
    must("backendCreate", QnnBackend_create(NULL, NULL, &backend));
    must("backendGetProperty", QnnBackend_getProperty(backend, asked));
    size_t length = (size_t)ftell(file);
    void *binary = aligned(length);
    rewind(file);
    if (fread(binary, 1, length, file) != length) return 2;
    fclose(file);
    keep.isPersistentBinary = 1;
    must("createFromBinary", QnnContext_createFromBinary(backend, NULL, list, binary, length, &context, NULL));
    must("systemCreate", QnnSystemContext_create(&system));
    must("getBinaryInfo", QnnSystemContext_getBinaryInfo(system, binary, length, &info, &size));
    if (size != sizeof *info) return 5;
    QnnSystemContext_GraphInfoV1_t first = graphs(info)[0].graphInfoV1;
    printf("version %u\n", (unsigned)info->version);
    must("retrieve", QnnGraph_retrieve(context, first.graphName, &graph));
    uint32_t scratch = ask(graph, QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE);
    uint32_t state = ask(graph, QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE);
    void *pools[] = {give(graph, QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM, scratch),
                     state ? give(graph, QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM, state) : NULL};
    must("finalize", QnnGraph_finalize(graph, NULL, NULL));
    Qnn_Tensor_t input, output;
    place(&input, first.graphInputs);
    place(&output, first.graphOutputs);
    must("execute", QnnGraph_execute(graph, &input, 1, &output, 1, NULL, NULL));
    must("contextFree", QnnContext_free(context, NULL));
    must("backendFree", QnnBackend_free(backend));
    must("systemFree", QnnSystemContext_free(system));
    free(pools[0]), free(pools[1]), free(binary), free(input.v1.clientBuf.data), free(output.v1.clientBuf.data);
    return 0;
}
