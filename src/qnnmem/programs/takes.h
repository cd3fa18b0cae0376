/* Parameters of QNN's functions as 64-bit words. */
#include <stdint.h>

typedef struct { word words[10]; } op_config;
typedef struct { word words[18]; } tensor;
#define TAKES1 word a
#define TAKES2 TAKES1, word b
#define TAKES3 TAKES2, word c
#define TAKES4 TAKES3, word d
#define TAKES5 TAKES4, word e
#define TAKES6 TAKES5, word f
#define TAKES7 TAKES6, word g
#define TAKES8 TAKES7, word h
#define TAKES9 TAKES8, word i
#define TAKES_OP word a, op_config o
#define TAKES_TENSOR tensor t, word a
#define GIVES1 a
#define GIVES2 GIVES1, b
#define GIVES3 GIVES2, c
#define GIVES4 GIVES3, d
#define GIVES5 GIVES4, e
#define GIVES6 GIVES5, f
#define GIVES7 GIVES6, g
#define GIVES8 GIVES7, h
#define GIVES9 GIVES8, i
#define GIVES_OP a, o
#define GIVES_TENSOR t, a
/* The arguments as words; a struct passed by value becomes its address. */
#define WORDS_OP a, (word)(uintptr_t)&o
#define WORDS_TENSOR (word)(uintptr_t)&t, a

/* F(s, number, arguments) for each function of slot s, or V if an argument is passed by value. 70 is
 * missing, because it takes a struct of unknown size, and so are functions after 71. */
#define BACKEND_FUNCTIONS(F, V, s) \
    F(s, 0, 1) F(s, 1, 3) F(s, 2, 2) F(s, 3, 1) F(s, 4, 1) F(s, 5, 4) F(s, 6, 3) V(s, 7, _OP) \
    F(s, 8, 1) F(s, 9, 4) F(s, 10, 2) F(s, 11, 2) F(s, 12, 4) F(s, 13, 7) F(s, 14, 2) \
    F(s, 15, 4) F(s, 16, 3) F(s, 17, 2) V(s, 18, _OP) F(s, 19, 3) F(s, 20, 3) F(s, 21, 7) \
    F(s, 22, 9) F(s, 23, 2) F(s, 24, 2) F(s, 25, 3) F(s, 26, 2) F(s, 27, 1) F(s, 28, 3) \
    F(s, 29, 2) F(s, 30, 3) F(s, 31, 3) F(s, 32, 2) F(s, 33, 2) F(s, 34, 1) F(s, 35, 4) \
    F(s, 36, 2) F(s, 37, 2) F(s, 38, 2) F(s, 39, 1) F(s, 40, 3) F(s, 41, 2) F(s, 42, 2) \
    F(s, 43, 1) F(s, 44, 3) F(s, 45, 2) F(s, 46, 1) F(s, 47, 1) F(s, 48, 2) F(s, 49, 2) \
    F(s, 50, 1) F(s, 51, 3) F(s, 52, 3) F(s, 53, 2) F(s, 54, 5) F(s, 55, 8) F(s, 56, 5) \
    F(s, 57, 3) F(s, 58, 3) F(s, 59, 4) F(s, 60, 7) F(s, 61, 6) F(s, 62, 2) F(s, 63, 2) \
    F(s, 64, 4) F(s, 65, 3) F(s, 66, 2) F(s, 67, 1) F(s, 68, 9) F(s, 69, 9) F(s, 71, 2)
#define SYSTEM_FUNCTIONS(F, V, s) \
    F(s, 100, 1) F(s, 101, 5) F(s, 102, 4) F(s, 103, 1) V(s, 104, _TENSOR) F(s, 105, 3) \
    F(s, 106, 2) F(s, 107, 1)

/* The same list with the exported names. */
#define BACKEND_NAMES(F, V) \
    F(0, 1, QnnProperty_hasCapability) F(1, 3, QnnBackend_create) F(2, 2, QnnBackend_setConfig) \
    F(3, 1, QnnBackend_getApiVersion) F(4, 1, QnnBackend_getBuildId) F(5, 4, QnnBackend_registerOpPackage) \
    F(6, 3, QnnBackend_getSupportedOperations) V(7, _OP, QnnBackend_validateOpConfig) F(8, 1, QnnBackend_free) \
    F(9, 4, QnnContext_create) F(10, 2, QnnContext_setConfig) F(11, 2, QnnContext_getBinarySize) \
    F(12, 4, QnnContext_getBinary) F(13, 7, QnnContext_createFromBinary) F(14, 2, QnnContext_free) \
    F(15, 4, QnnGraph_create) F(16, 3, QnnGraph_createSubgraph) F(17, 2, QnnGraph_setConfig) \
    V(18, _OP, QnnGraph_addNode) F(19, 3, QnnGraph_finalize) F(20, 3, QnnGraph_retrieve) \
    F(21, 7, QnnGraph_execute) F(22, 9, QnnGraph_executeAsync) F(23, 2, QnnTensor_createContextTensor) \
    F(24, 2, QnnTensor_createGraphTensor) F(25, 3, QnnLog_create) F(26, 2, QnnLog_setLogLevel) \
    F(27, 1, QnnLog_free) F(28, 3, QnnProfile_create) F(29, 2, QnnProfile_setConfig) \
    F(30, 3, QnnProfile_getEvents) F(31, 3, QnnProfile_getSubEvents) F(32, 2, QnnProfile_getEventData) \
    F(33, 2, QnnProfile_getExtendedEventData) F(34, 1, QnnProfile_free) F(35, 4, QnnMem_register) \
    F(36, 2, QnnMem_deRegister) F(37, 2, QnnDevice_getPlatformInfo) F(38, 2, QnnDevice_freePlatformInfo) \
    F(39, 1, QnnDevice_getInfrastructure) F(40, 3, QnnDevice_create) F(41, 2, QnnDevice_setConfig) \
    F(42, 2, QnnDevice_getInfo) F(43, 1, QnnDevice_free) F(44, 3, QnnSignal_create) \
    F(45, 2, QnnSignal_setConfig) F(46, 1, QnnSignal_trigger) F(47, 1, QnnSignal_free) \
    F(48, 2, QnnError_getMessage) F(49, 2, QnnError_getVerboseMessage) F(50, 1, QnnError_freeVerboseMessage) \
    F(51, 3, QnnGraph_prepareExecutionEnvironment) F(52, 3, QnnGraph_releaseExecutionEnvironment) \
    F(53, 2, QnnGraph_getProperty) F(54, 5, QnnContext_validateBinary) \
    F(55, 8, QnnContext_createFromBinaryWithSignal) F(56, 5, QnnContext_createFromBinaryListAsync) \
    F(57, 3, QnnTensor_updateGraphTensors) F(58, 3, QnnTensor_updateContextTensors) \
    F(59, 4, QnnContext_getBinarySectionSize) F(60, 7, QnnContext_getBinarySection) \
    F(61, 6, QnnContext_applyBinarySection) F(62, 2, QnnBackend_getProperty) F(63, 2, QnnContext_getProperty) \
    F(64, 4, QnnContext_getIncrementalBinary) F(65, 3, QnnContext_releaseIncrementalBinary) \
    F(66, 2, QnnContext_finalize) F(67, 1, QnnGlobalConfig_set) \
    F(68, 9, QnnContext_createFromBinaryWithCallback) F(69, 9, QnnContext_getBinarySectionUpdate) \
    F(71, 2, QnnContext_addToDlc)
#define SYSTEM_NAMES(F, V) \
    F(100, 1, QnnSystemContext_create) F(101, 5, QnnSystemContext_getBinaryInfo) \
    F(102, 4, QnnSystemContext_getMetaData) F(103, 1, QnnSystemContext_free) \
    V(104, _TENSOR, QnnSystemTensor_getMemoryFootprint) F(105, 3, QnnSystemLog_create) \
    F(106, 2, QnnSystemLog_setLogLevel) F(107, 1, QnnSystemLog_free)
