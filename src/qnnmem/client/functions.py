"""The functions of QNN's tables by number, as the shim sends them."""

from __future__ import annotations

_BACKEND = (
    "QnnProperty_hasCapability QnnBackend_create QnnBackend_setConfig QnnBackend_getApiVersion "
    "QnnBackend_getBuildId QnnBackend_registerOpPackage QnnBackend_getSupportedOperations "
    "QnnBackend_validateOpConfig QnnBackend_free QnnContext_create QnnContext_setConfig "
    "QnnContext_getBinarySize QnnContext_getBinary QnnContext_createFromBinary QnnContext_free "
    "QnnGraph_create QnnGraph_createSubgraph QnnGraph_setConfig QnnGraph_addNode "
    "QnnGraph_finalize QnnGraph_retrieve QnnGraph_execute QnnGraph_executeAsync "
    "QnnTensor_createContextTensor QnnTensor_createGraphTensor QnnLog_create QnnLog_setLogLevel "
    "QnnLog_free QnnProfile_create QnnProfile_setConfig QnnProfile_getEvents "
    "QnnProfile_getSubEvents QnnProfile_getEventData QnnProfile_getExtendedEventData "
    "QnnProfile_free QnnMem_register QnnMem_deRegister QnnDevice_getPlatformInfo "
    "QnnDevice_freePlatformInfo QnnDevice_getInfrastructure QnnDevice_create QnnDevice_setConfig "
    "QnnDevice_getInfo QnnDevice_free QnnSignal_create QnnSignal_setConfig QnnSignal_trigger "
    "QnnSignal_free QnnError_getMessage QnnError_getVerboseMessage QnnError_freeVerboseMessage "
    "QnnGraph_prepareExecutionEnvironment QnnGraph_releaseExecutionEnvironment "
    "QnnGraph_getProperty QnnContext_validateBinary QnnContext_createFromBinaryWithSignal "
    "QnnContext_createFromBinaryListAsync QnnTensor_updateGraphTensors "
    "QnnTensor_updateContextTensors QnnContext_getBinarySectionSize QnnContext_getBinarySection "
    "QnnContext_applyBinarySection QnnBackend_getProperty QnnContext_getProperty "
    "QnnContext_getIncrementalBinary QnnContext_releaseIncrementalBinary QnnContext_finalize "
    "QnnGlobalConfig_set QnnContext_createFromBinaryWithCallback "
    "QnnContext_getBinarySectionUpdate QnnContext_freeBinarySectionUpdate QnnContext_addToDlc"
)
_SYSTEM = (
    "QnnSystemContext_create QnnSystemContext_getBinaryInfo QnnSystemContext_getMetadata "
    "QnnSystemContext_free QnnSystemTensor_getMemoryFootprint QnnSystemLog_create "
    "QnnSystemLog_setLogLevel QnnSystemLog_free"
)
FIRST_SYSTEM = 100
NAMES = {
    **dict(enumerate(_BACKEND.split())),
    **dict(enumerate(_SYSTEM.split(), FIRST_SYSTEM)),
}
NUMBERS = {name: number for number, name in NAMES.items()}


def name_of(number: int) -> str:
    """The function's name; those without a public one have their number."""
    return NAMES.get(number, f"QNN function {number}")
