/* Declarations of our own of the part of QNN's C interface that an LPAI client uses: names, numbers
 * and order of members as public material has them, nothing else. Only for tests: programs of users
 * are compiled with the headers of their SDK. */
#ifndef QNNMEM_DECLARATIONS_H
#define QNNMEM_DECLARATIONS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QNN_API_VERSION_MAJOR 2
#define QNN_API_VERSION_MINOR 27
#define QNN_SYSTEM_API_VERSION_MAJOR 1
#define QNN_SYSTEM_API_VERSION_MINOR 1
#define QNN_INTERFACE_VER_NAME v2_27
#define QNN_INTERFACE_VER_TYPE QnnInterface_ImplementationV2_27_t
#define QNN_SYSTEM_INTERFACE_VER_NAME v1_1
#define QNN_SYSTEM_INTERFACE_VER_TYPE QnnSystemInterface_ImplementationV1_1_t
#define QNN_BACKEND_ID_LPAI 12

typedef uint64_t Qnn_ErrorHandle_t;
typedef uint64_t Qnn_ContextBinarySize_t;
typedef void *Qnn_LogHandle_t;
typedef void *Qnn_BackendHandle_t;
typedef void *Qnn_DeviceHandle_t;
typedef void *Qnn_ContextHandle_t;
typedef void *Qnn_GraphHandle_t;
typedef void *Qnn_ProfileHandle_t;
typedef void *Qnn_SignalHandle_t;
typedef void *Qnn_MemHandle_t;
typedef void *QnnSystemContext_Handle_t;

enum { QNN_SUCCESS = 0 };
typedef enum { QNN_GRAPH_ERROR_EARLY_TERMINATION = 6038 } QnnGraph_Error_t;

typedef struct {
    uint32_t major, minor, patch;
} Qnn_Version_t;

typedef struct {
    Qnn_Version_t coreApiVersion, backendApiVersion;
} Qnn_ApiVersion_t;

/* Tensors */

typedef enum {
    QNN_DATATYPE_INT_8 = 0x0008,
    QNN_DATATYPE_UNDEFINED = 0x7FFFFFFF
} Qnn_DataType_t;

typedef enum {
    QNN_TENSORMEMTYPE_RAW = 0,
    QNN_TENSORMEMTYPE_MEMHANDLE = 1,
    QNN_TENSORMEMTYPE_UNDEFINED = 0x7FFFFFFF
} Qnn_TensorMemType_t;

typedef enum {
    QNN_TENSOR_TYPE_APP_WRITE = 0,
    QNN_TENSOR_TYPE_APP_READ = 1,
    QNN_TENSOR_TYPE_UNDEFINED = 0x7FFFFFFF
} Qnn_TensorType_t;

typedef enum {
    QNN_TENSOR_VERSION_1 = 1,
    QNN_TENSOR_VERSION_2 = 2,
    QNN_TENSOR_VERSION_UNDEFINED = 0x7FFFFFFF
} Qnn_TensorVersion_t;

typedef struct {
    void *data;
    uint32_t dataSize;
} Qnn_ClientBuffer_t;

typedef struct {
    uint32_t definition, encoding;
    uint64_t values[4];
} Qnn_QuantizeParams_t;

typedef struct {
    uint32_t id;
    const char *name;
    Qnn_TensorType_t type;
    uint32_t dataFormat;
    Qnn_DataType_t dataType;
    Qnn_QuantizeParams_t quantizeParams;
    uint32_t rank;
    uint32_t *dimensions;
    Qnn_TensorMemType_t memType;
    union {
        Qnn_ClientBuffer_t clientBuf;
        Qnn_MemHandle_t memHandle;
    };
} Qnn_TensorV1_t;

typedef struct {
    uint32_t id;
    const char *name;
    Qnn_TensorType_t type;
    uint32_t dataFormat;
    Qnn_DataType_t dataType;
    Qnn_QuantizeParams_t quantizeParams;
    uint32_t rank;
    uint32_t *dimensions;
    Qnn_TensorMemType_t memType;
    union {
        Qnn_ClientBuffer_t clientBuf;
        Qnn_MemHandle_t memHandle;
        void *retrieveRaw;
    };
    uint8_t *isDynamicDimensions;
    uint32_t sparseParams[3];
    uint8_t isProduced;
} Qnn_TensorV2_t;

typedef struct {
    Qnn_TensorVersion_t version;
    union {
        Qnn_TensorV1_t v1;
        Qnn_TensorV2_t v2;
    };
} Qnn_Tensor_t;

/* Configs and properties */

typedef enum {
    QNN_BACKEND_PROPERTY_OPTION_CUSTOM = 0,
    QNN_BACKEND_PROPERTY_OPTION_UNDEFINED = 0x7FFFFFFF
} QnnBackend_PropertyOption_t;

typedef struct {
    QnnBackend_PropertyOption_t option;
    union {
        void *customProperty;
    };
} QnnBackend_Property_t;

typedef struct {
    uint32_t option;
    void *customConfig;
} QnnBackend_Config_t;

typedef enum {
    QNN_CONTEXT_CONFIG_OPTION_CUSTOM = 0,
    QNN_CONTEXT_CONFIG_PERSISTENT_BINARY = 7,
    QNN_CONTEXT_CONFIG_UNDEFINED = 0x7FFFFFFF
} QnnContext_ConfigOption_t;

typedef struct {
    QnnContext_ConfigOption_t option;
    union {
        void *customConfig;
        uint64_t memoryLimitHint;
        uint8_t isPersistentBinary;
    };
} QnnContext_Config_t;

typedef enum {
    QNN_GRAPH_CONFIG_OPTION_CUSTOM = 0,
    QNN_GRAPH_CONFIG_OPTION_UNDEFINED = 0x7FFFFFFF
} QnnGraph_ConfigOption_t;

typedef struct {
    QnnGraph_ConfigOption_t option;
    union {
        void *customConfig;
    };
} QnnGraph_Config_t;

typedef enum {
    QNN_GRAPH_PROPERTY_OPTION_CUSTOM = 0,
    QNN_GRAPH_PROPERTY_OPTION_UNDEFINED = 0x7FFFFFFF
} QnnGraph_PropertyOption_t;

typedef struct {
    QnnGraph_PropertyOption_t option;
    union {
        void *customProperty;
    };
} QnnGraph_Property_t;

/* LPAI's own */

typedef enum {
    QNN_LPAI_BACKEND_GET_PROP_ALIGNMENT_REQ = 0,
    QNN_LPAI_BACKEND_GET_PROP_REQUIRE_PERSISTENT_BINARY = 1,
    QNN_LPAI_BACKEND_GET_PROP_UNDEFINED = 0x7fffffff
} QnnLpaiBackend_GetPropertyOption_t;

typedef struct {
    uint32_t startAddrAlignment, sizeAlignment;
} QnnLpaiBackend_BufferAlignmentReq_t;

typedef struct {
    uint32_t option;
    void *property;
} QnnLpaiBackend_CustomProperty_t;

typedef enum {
    QNN_LPAI_MEM_TYPE_DDR = 1,
    QNN_LPAI_MEM_TYPE_LLC = 2,
    QNN_LPAI_MEM_TYPE_TCM = 3,
    QNN_LPAI_MEM_TYPE_UNDEFINED = 0x7fffffff
} QnnLpaiMem_MemType_t;

typedef enum {
    QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM = 1,
    QNN_LPAI_GRAPH_SET_CFG_PERSISTENT_MEM = 101,
    QNN_LPAI_GRAPH_SET_CFG_PERF_CFG = 201,
    QNN_LPAI_GRAPH_SET_CFG_CORE_AFFINITY = 301,
    QNN_LPAI_GRAPH_SET_CFG_UNDEFINED = 0x7fffffff
} QnnLpaiGraph_SetConfigOption_t;

typedef enum {
    QNN_LPAI_GRAPH_GET_PROP_SCRATCH_MEM_SIZE = 1,
    QNN_LPAI_GRAPH_GET_PROP_PERSISTENT_MEM_SIZE = 101,
    QNN_LPAI_GRAPH_GET_PROP_UNDEFINED = 0x7fffffff
} QnnLpaiGraph_GetPropertyOption_t;

typedef enum {
    QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_REAL_TIME = 1,
    QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_NON_REAL_TIME = 2,
    QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_UNDEFINED = 0x7fffffff
} QnnLpaiGraph_ClientPerfType_t;

typedef enum {
    QNN_LPAI_GRAPH_CORE_AFFINITY_SOFT = 1,
    QNN_LPAI_GRAPH_CORE_AFFINITY_HARD = 2,
    QNN_LPAI_GRAPH_CORE_AFFINITY_UNDEFINED = 0x7fffffff
} QnnLpaiGraph_CoreAffinityType_t;

typedef struct {
    QnnLpaiMem_MemType_t memType;
    uint32_t size;
    void *addr;
} QnnLpaiGraph_Mem_t;

typedef struct {
    uint32_t fps, ftrtRatio;
    QnnLpaiGraph_ClientPerfType_t clientType;
} QnnLpaiGraph_PerfCfg_t;

typedef struct {
    QnnLpaiGraph_CoreAffinityType_t affinity;
    uint32_t coreSelection;
} QnnLpaiGraph_CoreAffinity_t;

typedef struct {
    uint32_t option;
    void *config;
} QnnLpaiGraph_CustomConfig_t;

typedef struct {
    uint32_t option;
    void *property;
} QnnLpaiGraph_CustomProperty_t;

/* System context */

typedef enum {
    QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_1 = 1,
    QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_2 = 2,
    QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_3 = 3,
    QNN_SYSTEM_CONTEXT_GRAPH_INFO_UNDEFINED = 0x7FFFFFFF
} QnnSystemContext_GraphInfoVersion_t;

typedef enum {
    QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_1 = 1,
    QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_2 = 2,
    QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_3 = 3,
    QNN_SYSTEM_CONTEXT_BINARY_INFO_UNDEFINED = 0x7FFFFFFF
} QnnSystemContext_BinaryInfoVersion_t;

#define QNNMEM_GRAPH_MEMBERS  \
    const char *graphName;    \
    uint32_t numGraphInputs;  \
    Qnn_Tensor_t *graphInputs; \
    uint32_t numGraphOutputs; \
    Qnn_Tensor_t *graphOutputs;

typedef struct {
    QNNMEM_GRAPH_MEMBERS
} QnnSystemContext_GraphInfoV1_t;

typedef struct {
    QNNMEM_GRAPH_MEMBERS
    uint32_t numUpdateableTensors;
    Qnn_Tensor_t *updateableTensors;
} QnnSystemContext_GraphInfoV2_t;

typedef struct {
    QNNMEM_GRAPH_MEMBERS
    uint32_t numUpdateableTensors;
    Qnn_Tensor_t *updateableTensors;
    uint32_t graphBlobInfoSize;
    void *graphBlobInfo;
    uint32_t startOpIndex, endOpIndex;
} QnnSystemContext_GraphInfoV3_t;

typedef struct {
    QnnSystemContext_GraphInfoVersion_t version;
    union {
        QnnSystemContext_GraphInfoV1_t graphInfoV1;
        QnnSystemContext_GraphInfoV2_t graphInfoV2;
        QnnSystemContext_GraphInfoV3_t graphInfoV3;
    };
} QnnSystemContext_GraphInfo_t;

typedef struct {
    uint32_t backendId;
    const char *buildId;
    Qnn_Version_t coreApiVersion, backendApiVersion;
    const char *socVersion;
    Qnn_Version_t hwInfoBlobVersion, contextBlobVersion;
    uint32_t hwInfoBlobSize;
    void *hwInfoBlob;
    uint64_t contextBlobSize;
    uint32_t numContextTensors;
    Qnn_Tensor_t *contextTensors;
    uint32_t numGraphs;
    QnnSystemContext_GraphInfo_t *graphs;
} QnnSystemContext_BinaryInfoV1_t;

typedef struct {
    uint32_t backendId;
    const char *buildId;
    Qnn_Version_t coreApiVersion, backendApiVersion;
    const char *socVersion;
    Qnn_Version_t hwInfoBlobVersion, contextBlobVersion;
    uint32_t hwInfoBlobSize;
    void *hwInfoBlob;
    uint64_t contextBlobSize;
    uint32_t numContextTensors;
    Qnn_Tensor_t *contextTensors;
    uint32_t numGraphs;
    QnnSystemContext_GraphInfo_t *graphs;
    void *platformInfo;
} QnnSystemContext_BinaryInfoV2_t;

typedef struct {
    uint32_t backendId;
    const char *buildId;
    Qnn_Version_t coreApiVersion, backendApiVersion;
    const char *socVersion;
    Qnn_Version_t contextBlobVersion;
    uint64_t contextBlobSize;
    uint32_t numContextTensors;
    Qnn_Tensor_t *contextTensors;
    uint32_t numGraphs;
    QnnSystemContext_GraphInfo_t *graphs;
    void *platformInfo;
    uint32_t contextMetadataSize;
    void *contextMetadata;
    uint32_t socModel;
} QnnSystemContext_BinaryInfoV3_t;

typedef struct {
    QnnSystemContext_BinaryInfoVersion_t version;
    union {
        QnnSystemContext_BinaryInfoV1_t contextBinaryInfoV1;
        QnnSystemContext_BinaryInfoV2_t contextBinaryInfoV2;
        QnnSystemContext_BinaryInfoV3_t contextBinaryInfoV3;
    };
} QnnSystemContext_BinaryInfo_t;

/* Tables of functions; entries that no LPAI client here calls are left out. */

typedef struct {
    Qnn_ErrorHandle_t (*backendCreate)(Qnn_LogHandle_t, const QnnBackend_Config_t **,
                                       Qnn_BackendHandle_t *);
    Qnn_ErrorHandle_t (*backendFree)(Qnn_BackendHandle_t);
    Qnn_ErrorHandle_t (*contextCreateFromBinary)(Qnn_BackendHandle_t, Qnn_DeviceHandle_t,
                                                 const QnnContext_Config_t **, const void *,
                                                 Qnn_ContextBinarySize_t, Qnn_ContextHandle_t *,
                                                 Qnn_ProfileHandle_t);
    Qnn_ErrorHandle_t (*contextFree)(Qnn_ContextHandle_t, Qnn_ProfileHandle_t);
    Qnn_ErrorHandle_t (*graphSetConfig)(Qnn_GraphHandle_t, const QnnGraph_Config_t **);
    Qnn_ErrorHandle_t (*graphFinalize)(Qnn_GraphHandle_t, Qnn_ProfileHandle_t, Qnn_SignalHandle_t);
    Qnn_ErrorHandle_t (*graphRetrieve)(Qnn_ContextHandle_t, const char *, Qnn_GraphHandle_t *);
    Qnn_ErrorHandle_t (*graphExecute)(Qnn_GraphHandle_t, const Qnn_Tensor_t *, uint32_t,
                                      Qnn_Tensor_t *, uint32_t, Qnn_ProfileHandle_t,
                                      Qnn_SignalHandle_t);
    Qnn_ErrorHandle_t (*graphGetProperty)(Qnn_GraphHandle_t, QnnGraph_Property_t **);
    Qnn_ErrorHandle_t (*backendGetProperty)(Qnn_BackendHandle_t, QnnBackend_Property_t **);
} QNN_INTERFACE_VER_TYPE;

typedef struct {
    uint32_t backendId;
    const char *providerName;
    Qnn_ApiVersion_t apiVersion;
    union {
        QNN_INTERFACE_VER_TYPE QNN_INTERFACE_VER_NAME;
    };
} QnnInterface_t;

typedef struct {
    Qnn_ErrorHandle_t (*systemContextCreate)(QnnSystemContext_Handle_t *);
    Qnn_ErrorHandle_t (*systemContextGetBinaryInfo)(QnnSystemContext_Handle_t, void *, uint64_t,
                                                    const QnnSystemContext_BinaryInfo_t **,
                                                    Qnn_ContextBinarySize_t *);
    Qnn_ErrorHandle_t (*systemContextFree)(QnnSystemContext_Handle_t);
} QNN_SYSTEM_INTERFACE_VER_TYPE;

typedef struct {
    uint32_t backendId;
    const char *providerName;
    Qnn_Version_t systemApiVersion;
    union {
        QNN_SYSTEM_INTERFACE_VER_TYPE QNN_SYSTEM_INTERFACE_VER_NAME;
    };
} QnnSystemInterface_t;

Qnn_ErrorHandle_t QnnInterface_getProviders(const QnnInterface_t ***, uint32_t *);
Qnn_ErrorHandle_t QnnSystemInterface_getProviders(const QnnSystemInterface_t ***, uint32_t *);

#ifdef __cplusplus
}
#endif

#endif
