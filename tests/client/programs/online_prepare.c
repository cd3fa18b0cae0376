/* Composes a graph with memhandle inputs and outputs in a QNN library, and saves its binary. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "QnnInterface.h"
#include "QnnTypes.h"

typedef Qnn_ErrorHandle_t (*providers_t)(const QnnInterface_t ***, uint32_t *);

static uint32_t dimensions[] = {1, 64};

static void must(const char *call, Qnn_ErrorHandle_t code) {
    if (code == QNN_SUCCESS) return;
    fprintf(stderr, "%s: %u\n", call, (unsigned)QNN_GET_ERROR_CODE(code));
    exit(3);
}

static Qnn_Tensor_t tensor(const char *name, Qnn_TensorType_t type) {
    Qnn_Tensor_t made = QNN_TENSOR_INIT;
    made.v1.name = name;
    made.v1.type = type;
    made.v1.dataType = QNN_DATATYPE_UFIXED_POINT_8;
    made.v1.quantizeParams.encodingDefinition = QNN_DEFINITION_DEFINED;
    made.v1.quantizeParams.quantizationEncoding = QNN_QUANTIZATION_ENCODING_SCALE_OFFSET;
    made.v1.quantizeParams.scaleOffsetEncoding.scale = 0.5f;
    made.v1.rank = 2;
    made.v1.dimensions = dimensions;
    made.v1.memType = QNN_TENSORMEMTYPE_MEMHANDLE;
    made.v1.memHandle = NULL;
    return made;
}

int main(int count, char **words) {
    const QnnInterface_t **all = NULL;
    uint32_t listed = 0;
    Qnn_BackendHandle_t backend = NULL;
    Qnn_ContextHandle_t context = NULL;
    Qnn_GraphHandle_t graph = NULL;
    Qnn_ContextBinarySize_t size = 0;
    void *library = count == 3 ? dlopen(words[1], RTLD_NOW) : NULL;
    if (!library) return 2;
    providers_t providers = (providers_t)dlsym(library, "QnnInterface_getProviders");
    must("getProviders", providers(&all, &listed));
    QNN_INTERFACE_VER_TYPE qnn = all[0]->QNN_INTERFACE_VER_NAME;
    must("backendCreate", qnn.backendCreate(NULL, NULL, &backend));
    must("contextCreate", qnn.contextCreate(backend, NULL, NULL, &context));
    must("graphCreate", qnn.graphCreate(context, "net", NULL, &graph));
    Qnn_Tensor_t x = tensor("x", QNN_TENSOR_TYPE_APP_WRITE);
    Qnn_Tensor_t y = tensor("y", QNN_TENSOR_TYPE_APP_READ);
    must("createGraphTensor", qnn.tensorCreateGraphTensor(graph, &x));
    must("createGraphTensor", qnn.tensorCreateGraphTensor(graph, &y));
    Qnn_OpConfig_t relu = QNN_OPCONFIG_INIT;
    relu.v1.name = "relu";
    relu.v1.packageName = "qti.aisw";
    relu.v1.typeName = "Relu";
    relu.v1.numOfInputs = relu.v1.numOfOutputs = 1;
    relu.v1.inputTensors = &x;
    relu.v1.outputTensors = &y;
    must("addNode", qnn.graphAddNode(graph, relu));
    must("finalize", qnn.graphFinalize(graph, NULL, NULL));
    must("getBinarySize", qnn.contextGetBinarySize(context, &size));
    void *binary = malloc(size);
    must("getBinary", qnn.contextGetBinary(context, binary, size, &size));
    FILE *file = fopen(words[2], "wb");
    if (!file || fwrite(binary, 1, size, file) != size || fclose(file)) return 4;
    free(binary);
    must("contextFree", qnn.contextFree(context, NULL));
    must("backendFree", qnn.backendFree(backend));
    return 0;
}
