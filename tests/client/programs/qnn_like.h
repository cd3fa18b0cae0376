/* The QNN declarations of the programs in this folder: our own, with members in QNN's order. */
#ifndef QNN_LIKE_H
#define QNN_LIKE_H
#include <stdarg.h>
#include <stdint.h>

typedef uint64_t Error;
typedef void *Handle;

typedef struct { void *data; uint32_t dataSize; } ClientBuffer;
typedef struct {
    uint32_t definition, encoding;
    union { struct { float scale; int32_t offset; } scaleOffset; uint64_t room[4]; } of;
} QuantizeParams;
typedef struct {
    uint32_t id; const char *name; uint32_t type, dataFormat, dataType;
    QuantizeParams quantizeParams;
    uint32_t rank; uint32_t *dimensions; uint32_t memType;
    union { ClientBuffer clientBuf; Handle memHandle; } memory;
} TensorV1;
typedef struct { uint32_t version; union { TensorV1 v1; uint64_t room[17]; } of; } Tensor;
typedef struct { uint32_t option; union { void *custom; uint8_t flag; uint32_t number; } value; } Option;
typedef struct { uint32_t option; void *value; } CustomOption;
typedef struct { uint32_t memType, size; void *addr; } PoolMemory;
typedef struct { uint32_t start, size; } Alignment;

typedef struct {
    uint32_t version;
    struct { const char *name; uint32_t numInputs; Tensor *inputs; uint32_t numOutputs; Tensor *outputs; } v1;
    uint64_t more[5];
} GraphInfo;
typedef struct {
    uint32_t version;
    struct {
        uint32_t backendId; const char *buildId; uint32_t coreApi[3], backendApi[3]; const char *socVersion;
        uint32_t hwInfoBlobVersion[3], contextBlobVersion[3], hwInfoBlobSize; void *hwInfoBlob;
        uint64_t contextBlobSize; uint32_t numContextTensors; Tensor *contextTensors;
        uint32_t numGraphs; GraphInfo *graphs;
    } v1;
} BinaryInfo;
typedef struct { Error error; } NotifyStatus;
typedef void (*Notify)(void *, NotifyStatus);
typedef void (*LogCallback)(const char *, uint32_t, uint64_t, va_list);

typedef struct {
    Error (*propertyHasCapability)(uint32_t);
    Error (*backendCreate)(Handle, const Option **, Handle *);
    void *p2, *p3;
    Error (*backendGetBuildId)(const char **);
    void *p5, *p6, *p7;
    Error (*backendFree)(Handle);
    void *p9, *p10, *p11, *p12;
    Error (*contextCreateFromBinary)(Handle, Handle, const Option **, const void *, uint64_t, Handle *, Handle);
    Error (*contextFree)(Handle, Handle);
    void *p15, *p16;
    Error (*graphSetConfig)(Handle, const Option **);
    void *p18;
    Error (*graphFinalize)(Handle, Handle, Handle);
    Error (*graphRetrieve)(Handle, const char *, Handle *);
    Error (*graphExecute)(Handle, const Tensor *, uint32_t, Tensor *, uint32_t, Handle, Handle);
    Error (*graphExecuteAsync)(Handle, const Tensor *, uint32_t, Tensor *, uint32_t, Handle, Handle, Notify, void *);
    void *p23, *p24;
    Error (*logCreate)(LogCallback, uint32_t, Handle *);
    void *p26;
    Error (*logFree)(Handle);
    Error (*profileCreate)(Handle, uint32_t, Handle *);
    void *p29;
    Error (*profileGetEvents)(Handle, const uint64_t **, uint32_t *);
    void *p31, *p32, *p33;
    Error (*profileFree)(Handle);
    void *p35, *p36, *p37, *p38, *p39;
    Error (*deviceCreate)(Handle, const Option **, Handle *);
    void *p41, *p42;
    Error (*deviceFree)(Handle);
    Error (*signalCreate)(Handle, const Option **, Handle *);
    void *p45, *p46;
    Error (*signalFree)(Handle);
    Error (*errorGetMessage)(Error, const char **);
    void *p49, *p50, *p51, *p52;
    Error (*graphGetProperty)(Handle, Option **);
    void *p54, *p55, *p56, *p57, *p58, *p59, *p60, *p61;
    Error (*backendGetProperty)(Handle, Option **);
    void *more[12];
} Functions;
typedef struct { uint32_t backendId; const char *name; uint32_t coreApi[3], backendApi[3]; Functions v; } Interface;
typedef struct {
    Error (*contextCreate)(Handle *);
    Error (*getBinaryInfo)(Handle, void *, uint64_t, const BinaryInfo **, uint64_t *);
    void *metaData;
    Error (*contextFree)(Handle);
} SystemFunctions;
typedef struct { uint32_t backendId; const char *name; uint32_t api[3]; SystemFunctions v; } SystemInterface;
typedef Error (*GetProviders)(const Interface ***, uint32_t *);
typedef Error (*GetSystemProviders)(const SystemInterface ***, uint32_t *);
#endif
