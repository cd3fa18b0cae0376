/* Declarations of QNN's C interface for clients of LPAI, written by qnnmem from its own tables of the
 * interface: names, numbers and the order of members, as documented for QNN, and nothing else. They
 * are under the licence of qnnmem. No part of Qualcomm's SDK is in here; for a release build of your
 * client use the headers of your SDK. @VERSION@ */
#ifndef QNNMEM_QNN_H
#define QNNMEM_QNN_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QNN_API_VERSION_MAJOR 2
#define QNN_API_VERSION_MINOR 27
#define QNN_API_VERSION_PATCH 0
#define QNN_SYSTEM_API_VERSION_MAJOR 1
#define QNN_SYSTEM_API_VERSION_MINOR 1
#define QNN_SYSTEM_API_VERSION_PATCH 0
#define QNN_INTERFACE_VER_NAME v2_27
#define QNN_INTERFACE_VER_TYPE QnnInterface_ImplementationV2_27_t
#define QNN_SYSTEM_INTERFACE_VER_NAME v1_1
#define QNN_SYSTEM_INTERFACE_VER_TYPE QnnSystemInterface_ImplementationV1_1_t
#define QNN_GET_ERROR_CODE(code) ((code) & 0xFFFFu)

typedef uint64_t Qnn_ErrorHandle_t;
typedef uint64_t Qnn_ContextBinarySize_t;
typedef uint32_t QnnProperty_Key_t;
typedef uint64_t QnnProfile_EventId_t;
typedef void *Qnn_LogHandle_t;
typedef void *Qnn_BackendHandle_t;
typedef void *Qnn_DeviceHandle_t;
typedef void *Qnn_ContextHandle_t;
typedef void *Qnn_GraphHandle_t;
typedef void *Qnn_ProfileHandle_t;
typedef void *Qnn_SignalHandle_t;
typedef void *Qnn_MemHandle_t;
typedef void *QnnSystemContext_Handle_t;

/* --- Numbers, and the codes that calls answer with --------------------------------------------- */

@ENUMS@
/* --- Tensors ------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t major, minor, patch;
} Qnn_Version_t;

typedef struct {
    Qnn_Version_t coreApiVersion, backendApiVersion;
} Qnn_ApiVersion_t;

typedef enum {
    QNN_TENSOR_VERSION_1 = 1,
    QNN_TENSOR_VERSION_2 = 2,
    QNN_TENSOR_VERSION_UNDEFINED = 0x7FFFFFFF
} Qnn_TensorVersion_t;

typedef enum {
    QNN_DEFINITION_IMPL_GENERATED = 0,
    QNN_DEFINITION_DEFINED = 1,
    QNN_DEFINITION_UNDEFINED = 0x7FFFFFFF
} Qnn_Definition_t;

typedef enum {
    QNN_QUANTIZATION_ENCODING_SCALE_OFFSET = 0,
    QNN_QUANTIZATION_ENCODING_AXIS_SCALE_OFFSET = 1,
    QNN_QUANTIZATION_ENCODING_UNDEFINED = 0x7FFFFFFF
} Qnn_QuantizationEncoding_t;

typedef struct {
    void *data;
    uint32_t dataSize;
} Qnn_ClientBuffer_t;

typedef struct {
    float scale;
    int32_t offset;
} Qnn_ScaleOffset_t;

typedef struct {
    int32_t axis;
    uint32_t numScaleOffsets;
    Qnn_ScaleOffset_t *scaleOffset;
} Qnn_AxisScaleOffset_t;

typedef struct {
    Qnn_Definition_t encodingDefinition;
    Qnn_QuantizationEncoding_t quantizationEncoding;
    union {
        Qnn_ScaleOffset_t scaleOffsetEncoding;
        Qnn_AxisScaleOffset_t axisScaleOffsetEncoding;
        uint64_t reserved[4];
    };
} Qnn_QuantizeParams_t;

#define QNNMEM_TENSOR_MEMBERS           \
    uint32_t id;                        \
    const char *name;                   \
    Qnn_TensorType_t type;              \
    uint32_t dataFormat;                \
    Qnn_DataType_t dataType;            \
    Qnn_QuantizeParams_t quantizeParams; \
    uint32_t rank;                      \
    uint32_t *dimensions;               \
    Qnn_TensorMemType_t memType;

typedef struct {
    QNNMEM_TENSOR_MEMBERS
    union {
        Qnn_ClientBuffer_t clientBuf;
        Qnn_MemHandle_t memHandle;
    };
} Qnn_TensorV1_t;

typedef struct {
    QNNMEM_TENSOR_MEMBERS
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

#define QNN_TENSOR_INIT {QNN_TENSOR_VERSION_1, {{0}}}

typedef struct {
    Qnn_DataType_t dataType;
    union {
        float floatValue;
        double doubleValue;
        uint64_t uint64Value;
        int64_t int64Value;
        uint32_t uint32Value;
        int32_t int32Value;
        uint8_t bool8Value;
        const char *stringValue;
    };
} Qnn_Scalar_t;

typedef struct {
    uint32_t paramType; /* 0 scalar, 1 tensor */
    const char *name;
    union {
        Qnn_Scalar_t scalarParam;
        Qnn_Tensor_t tensorParam;
    };
} Qnn_Param_t;

typedef struct {
    const char *name, *packageName, *typeName;
    uint32_t numOfParams;
    Qnn_Param_t *params;
    uint32_t numOfInputs;
    Qnn_Tensor_t *inputTensors;
    uint32_t numOfOutputs;
    Qnn_Tensor_t *outputTensors;
} Qnn_OpConfigV1_t;

typedef enum {
    QNN_OPCONFIG_VERSION_1 = 1,
    QNN_OPCONFIG_VERSION_UNDEFINED = 0x7FFFFFFF
} Qnn_OpConfigVersion_t;

typedef struct {
    Qnn_OpConfigVersion_t version;
    union {
        Qnn_OpConfigV1_t v1;
    };
} Qnn_OpConfig_t;
#define QNN_OPCONFIG_INIT {QNN_OPCONFIG_VERSION_1, {{0}}}

/* --- Configs and properties ------------------------------------------------------------------------ */

typedef struct {
    QnnBackend_ConfigOption_t option;
    union {
        void *customConfig;
    };
} QnnBackend_Config_t;

typedef struct {
    QnnBackend_PropertyOption_t option;
    union {
        void *customProperty;
    };
} QnnBackend_Property_t;

typedef struct {
    QnnContext_ConfigOption_t option;
    union {
        void *customConfig;
        Qnn_Priority_t priority;
        uint32_t asyncExecutionQueueDepth;
        const char *const *enableGraphs;
        uint64_t memoryLimitHint;
        uint8_t isPersistentBinary;
        QnnContext_BinaryCompatibility_t binaryCompatibilityType;
        uint8_t isGraphInitDeferred;
    };
} QnnContext_Config_t;

typedef struct {
    QnnGraph_ConfigOption_t option;
    union {
        void *customConfig;
        Qnn_Priority_t priority;
        Qnn_ProfileHandle_t profileHandle;
    };
} QnnGraph_Config_t;

typedef struct {
    QnnGraph_PropertyOption_t option;
    union {
        void *customProperty;
    };
} QnnGraph_Property_t;

typedef struct {
    uint32_t option;
    void *customConfig;
} QnnDevice_Config_t, QnnSignal_Config_t, QnnProfile_Config_t;

typedef struct {
    uint32_t numDim;
    uint32_t *dimSize;
    const char *shapeConfig;
} Qnn_MemShape_t;

typedef struct {
    int32_t fd;
} Qnn_MemIonInfo_t;

typedef struct {
    int32_t fd;
    void *data;
} Qnn_MemDmaBufInfo_t;

typedef void *Qnn_MemInfoCustom_t;

typedef struct {
    Qnn_MemShape_t memShape;
    Qnn_DataType_t dataType;
    Qnn_MemType_t memType;
    union {
        Qnn_MemIonInfo_t ionInfo;
        Qnn_MemDmaBufInfo_t dmaBufInfo;
        Qnn_MemInfoCustom_t customInfo;
    };
} Qnn_MemDescriptor_t;

typedef struct {
    Qnn_ErrorHandle_t error;
} Qnn_NotifyStatus_t;

typedef void (*Qnn_NotifyFn_t)(void *notifyParam, Qnn_NotifyStatus_t notifyStatus);
typedef void (*QnnLog_Callback_t)(const char *fmt, QnnLog_Level_t level, uint64_t timestamp,
                                  va_list args);

/* --- LPAI's own -------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t option;
    void *config;
} QnnLpaiBackend_CustomConfig_t, QnnLpaiContext_CustomConfig_t, QnnLpaiGraph_CustomConfig_t;

typedef struct {
    uint32_t option;
    void *property;
} QnnLpaiBackend_CustomProperty_t, QnnLpaiGraph_CustomProperty_t;

typedef struct {
    QnnLpaiBackend_Target_t lpaiTarget;
    QnnLpaiBackend_HwVersion_t hwVersion;
} QnnLpaiBackend_CustomConfigHw_t;

typedef struct {
    uint32_t startAddrAlignment, sizeAlignment;
} QnnLpaiBackend_BufferAlignmentReq_t;

typedef struct {
    QnnLpaiMem_MemType_t memType;
    uint32_t size;
    void *addr;
} QnnLpaiGraph_Mem_t;

typedef struct {
    uint32_t fps, ftrtRatio; /* 1 and 10 where nothing is said */
    QnnLpaiGraph_ClientPerfType_t clientType;
} QnnLpaiGraph_PerfCfg_t;

typedef struct {
    QnnLpaiGraph_CoreAffinityType_t affinity;
    uint32_t coreSelection;
} QnnLpaiGraph_CoreAffinity_t;

typedef struct {
    int32_t fd;
    uint32_t offset;
} QnnLpaiMem_MemInfoCustom_t;

/* --- What a context binary holds ------------------------------------------------------------------------ */

#define QNNMEM_GRAPH_MEMBERS   \
    const char *graphName;     \
    uint32_t numGraphInputs;   \
    Qnn_Tensor_t *graphInputs; \
    uint32_t numGraphOutputs;  \
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

#define QNNMEM_BINARY_MEMBERS                          \
    uint32_t backendId;                                \
    const char *buildId;                               \
    Qnn_Version_t coreApiVersion, backendApiVersion;   \
    const char *socVersion;

#define QNNMEM_CONTENT_MEMBERS     \
    uint64_t contextBlobSize;      \
    uint32_t numContextTensors;    \
    Qnn_Tensor_t *contextTensors;  \
    uint32_t numGraphs;            \
    QnnSystemContext_GraphInfo_t *graphs;

typedef struct {
    QNNMEM_BINARY_MEMBERS
    Qnn_Version_t hwInfoBlobVersion, contextBlobVersion;
    uint32_t hwInfoBlobSize;
    void *hwInfoBlob;
    QNNMEM_CONTENT_MEMBERS
} QnnSystemContext_BinaryInfoV1_t;

typedef struct {
    QNNMEM_BINARY_MEMBERS
    Qnn_Version_t hwInfoBlobVersion, contextBlobVersion;
    uint32_t hwInfoBlobSize;
    void *hwInfoBlob;
    QNNMEM_CONTENT_MEMBERS
    void *platformInfo;
} QnnSystemContext_BinaryInfoV2_t;

typedef struct {
    QNNMEM_BINARY_MEMBERS
    Qnn_Version_t contextBlobVersion;
    QNNMEM_CONTENT_MEMBERS
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

/* --- Functions: the table, and each by its name -------------------------------------------------------- */

#define QNNMEM_EXECUTION                                                                      \
    Qnn_GraphHandle_t graph, const Qnn_Tensor_t *inputs, uint32_t numInputs, Qnn_Tensor_t *outputs, \
        uint32_t numOutputs, Qnn_ProfileHandle_t profile, Qnn_SignalHandle_t signal
#define QNNMEM_BINARY                                                                         \
    Qnn_BackendHandle_t backend, Qnn_DeviceHandle_t device, const QnnContext_Config_t **config, \
        const void *binaryBuffer, Qnn_ContextBinarySize_t binaryBufferSize

#define QNNMEM_FUNCTIONS(F)                                                                               \
@FUNCTIONS@

#define QNNMEM_SYSTEM_FUNCTIONS(F)                                                                        \
    F(systemContextCreate, QnnSystemContext_create, (QnnSystemContext_Handle_t * context))                \
    F(systemContextGetBinaryInfo, QnnSystemContext_getBinaryInfo,                                         \
      (QnnSystemContext_Handle_t context, void *binaryBuffer, uint64_t binaryBufferSize,                  \
       const QnnSystemContext_BinaryInfo_t **binaryInfo, Qnn_ContextBinarySize_t *binaryInfoSize))        \
    F(systemContextGetMetaData, QnnSystemContext_getMetaData,                                             \
      (QnnSystemContext_Handle_t context, const void *binaryBuffer, uint64_t binaryBufferSize,            \
       const QnnSystemContext_BinaryInfo_t **binaryInfo))                                                 \
    F(systemContextFree, QnnSystemContext_free, (QnnSystemContext_Handle_t context))                      \
    F(systemTensorGetMemoryFootprint, QnnSystemTensor_getMemoryFootprint,                                 \
      (Qnn_Tensor_t tensor, uint64_t *footprint))                                                         \
    F(systemLogCreate, QnnSystemLog_create,                                                               \
      (QnnLog_Callback_t callback, QnnLog_Level_t maxLogLevel, Qnn_LogHandle_t *logger))                  \
    F(systemLogSetLogLevel, QnnSystemLog_setLogLevel,                                                     \
      (Qnn_LogHandle_t logger, QnnLog_Level_t maxLogLevel))                                               \
    F(systemLogFree, QnnSystemLog_free, (Qnn_LogHandle_t logger))

#define QNNMEM_MEMBER(member, name, takes) Qnn_ErrorHandle_t(*member) takes;
#define QNNMEM_PROTOTYPE(member, name, takes) Qnn_ErrorHandle_t name takes;

typedef struct {
    QNNMEM_FUNCTIONS(QNNMEM_MEMBER)
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
    QNNMEM_SYSTEM_FUNCTIONS(QNNMEM_MEMBER)
} QNN_SYSTEM_INTERFACE_VER_TYPE;

typedef struct {
    uint32_t backendId;
    const char *providerName;
    Qnn_Version_t systemApiVersion;
    union {
        QNN_SYSTEM_INTERFACE_VER_TYPE QNN_SYSTEM_INTERFACE_VER_NAME;
    };
} QnnSystemInterface_t;

Qnn_ErrorHandle_t QnnInterface_getProviders(const QnnInterface_t ***providerList,
                                            uint32_t *numProviders);
Qnn_ErrorHandle_t QnnSystemInterface_getProviders(const QnnSystemInterface_t ***providerList,
                                                  uint32_t *numProviders);
QNNMEM_FUNCTIONS(QNNMEM_PROTOTYPE)
QNNMEM_SYSTEM_FUNCTIONS(QNNMEM_PROTOTYPE)

#ifdef __cplusplus
}
#endif

#endif
