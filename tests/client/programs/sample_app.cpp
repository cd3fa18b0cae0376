// In the style of the samples that come with SDKs: a class around the handles, tensor descriptions
// deep-copied, buffers from an aligned allocator that keeps the raw pointer before the memory.
//     sample_app MODEL.bin [MISTAKE]
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "qnn_like.h"

enum class StatusCode { SUCCESS, FAILURE };
static std::string g_mistake;
static bool is(const char *name) { return g_mistake == name; }

static void logStdout(const char *format, uint32_t level, uint64_t, va_list arguments) {
    if (level > 2) return;
    vfprintf(stdout, format, arguments);
    fputc('\n', stdout);
}

static void *alignedAlloc(size_t size, const Alignment &need) {
    size_t rounded = (size + need.size - 1) / need.size * need.size;
    char *raw = static_cast<char *>(malloc(rounded + need.start + sizeof(void *)));
    uintptr_t at = reinterpret_cast<uintptr_t>(raw) + sizeof(void *);
    at = (at + need.start - 1) / need.start * need.start;
    reinterpret_cast<void **>(at)[-1] = raw;
    return reinterpret_cast<void *>(at);
}

static void alignedFree(void *memory) {
    if (memory != nullptr) free(static_cast<void **>(memory)[-1]);  // at: alignedFree
}

static size_t roundUp(size_t size, uint32_t unit) { return (size + unit - 1) / unit * unit; }

struct GraphsInfo {
    char *graphName;
    Tensor *inputs, *outputs;
    uint32_t numInputs, numOutputs;
    Handle graph;
    void *scratch, *persistent;
};

static bool deepCopyTensor(Tensor *to, const Tensor *from) {
    *to = *from;
    to->of.v1.name = strdup(from->of.v1.name);
    to->of.v1.dimensions = static_cast<uint32_t *>(malloc(from->of.v1.rank * sizeof(uint32_t)));
    if (to->of.v1.dimensions == nullptr) return false;
    memcpy(to->of.v1.dimensions, from->of.v1.dimensions, from->of.v1.rank * sizeof(uint32_t));
    return true;
}

class IOTensor {
   public:
    explicit IOTensor(const Alignment &need) : m_need(need) {}

    uint32_t length(const Tensor &tensor) const {
        uint32_t size = 1, bits = tensor.of.v1.dataType & 0xff;
        for (uint32_t i = 0; i < tensor.of.v1.rank; i++) size *= tensor.of.v1.dimensions[i];
        return size * (bits == 0x08 ? 1 : bits == 0x16 ? 2 : bits == 0x32 ? 4 : 8);
    }

    StatusCode setupTensors(Tensor *tensors, uint32_t count) {
        for (uint32_t i = 0; i < count; i++) {
            ClientBuffer buffer = {nullptr, length(tensors[i])};
            buffer.data = alignedAlloc(buffer.dataSize, m_need);
            if (buffer.data == nullptr) return StatusCode::FAILURE;
            memset(buffer.data, 1, buffer.dataSize);
            tensors[i].of.v1.memType = 0;
            tensors[i].of.v1.memory.clientBuf = buffer;
        }
        return StatusCode::SUCCESS;
    }

    // Another buffer, most likely at the same address.
    void *again(void *memory, uint32_t size) {
        alignedFree(memory);
        memory = alignedAlloc(size, m_need);
        memset(memory, 1, size);
        return memory;
    }

    void tearDownTensors(Tensor *tensors, uint32_t count) {
        for (uint32_t i = 0; i < count; i++) {
            alignedFree(tensors[i].of.v1.memory.clientBuf.data);
            free(const_cast<char *>(tensors[i].of.v1.name));
            free(tensors[i].of.v1.dimensions);
        }
        free(tensors);
    }

   private:
    Alignment m_need;
};

class QnnSampleApp {
   public:
    int run(const char *path);

   private:
    StatusCode loadLibraries();
    StatusCode initializeBackend();
    StatusCode readBinary(const char *path);
    StatusCode createFromBinary();
    StatusCode copyMetadata(const BinaryInfo *info);
    StatusCode giveMemory(GraphsInfo &graph, uint32_t option, uint32_t property, void **memory);
    StatusCode finalizeGraph(GraphsInfo &graph);
    StatusCode executeGraph(GraphsInfo &graph);
    StatusCode freeAll();
    StatusCode failed(const char *what, Error code);

    void *m_backendLibrary = nullptr, *m_systemLibrary = nullptr;
    Functions m_qnn;  // a copy, as the samples have it
    SystemFunctions m_system;
    Handle m_log = nullptr, m_backend = nullptr, m_profile = nullptr, m_context = nullptr;
    Handle m_systemContext = nullptr;
    Alignment m_need = {1, 1};
    void *m_buffer = nullptr;
    uint64_t m_bufferSize = 0;
    GraphsInfo m_graph = {};
};

StatusCode QnnSampleApp::failed(const char *what, Error code) {
    const char *text = nullptr;
    if (m_qnn.errorGetMessage(code, &text) != 0 || text == nullptr) text = "";
    fprintf(stderr, "%s failed: %lu %s\n", what, static_cast<unsigned long>(code & 0xffff), text);
    return StatusCode::FAILURE;
}

StatusCode QnnSampleApp::loadLibraries() {
    m_backendLibrary = dlopen("libQnnLpai.so", RTLD_NOW | RTLD_LOCAL);
    m_systemLibrary = dlopen("libQnnSystem.so", RTLD_NOW | RTLD_LOCAL);
    if (m_backendLibrary == nullptr || m_systemLibrary == nullptr) return StatusCode::FAILURE;
    auto providers = reinterpret_cast<GetProviders>(dlsym(m_backendLibrary, "QnnInterface_getProviders"));
    auto systems = reinterpret_cast<GetSystemProviders>(dlsym(m_systemLibrary, "QnnSystemInterface_getProviders"));
    const Interface **list = nullptr;
    const SystemInterface **systemList = nullptr;
    uint32_t count = 0;
    if (providers(&list, &count) != 0 || count == 0) return StatusCode::FAILURE;
    bool found = false;
    for (uint32_t i = 0; i < count; i++) {
        if (list[i]->coreApi[0] == 2 && list[i]->coreApi[1] >= 20 && list[i]->backendId == 12) {
            m_qnn = list[i]->v;
            found = true;
            break;
        }
    }
    if (!found || systems(&systemList, &count) != 0 || count == 0) return StatusCode::FAILURE;
    m_system = systemList[0]->v;
    return StatusCode::SUCCESS;
}

StatusCode QnnSampleApp::initializeBackend() {
    Error code = m_qnn.logCreate(logStdout, 3, &m_log);
    if (code != 0) fprintf(stderr, "no log\n");
    const char *build = nullptr;
    if (m_qnn.backendGetBuildId(&build) == 0) printf("build %s\n", build);
    code = m_qnn.backendCreate(m_log, nullptr, &m_backend);  // at: backendCreate
    if (code != 0) return failed("backendCreate", code);
    Alignment *need = static_cast<Alignment *>(calloc(1, sizeof(Alignment)));
    CustomOption inner = {0, need};
    Option property = {0, {&inner}};
    Option *properties[] = {&property, nullptr};
    code = m_qnn.backendGetProperty(m_backend, properties);
    if (code != 0) return failed("backendGetProperty", code);
    m_need = *need;
    free(need);
    if (m_qnn.propertyHasCapability(1500 + 1) == 0) {
        Handle device = nullptr;
        code = m_qnn.deviceCreate(m_log, nullptr, &device);
        if (code != 0 && code != 1000) return failed("deviceCreate", code);
    }
    code = m_qnn.profileCreate(m_backend, 1, &m_profile);  // at: profileCreate
    return code == 0 ? StatusCode::SUCCESS : failed("profileCreate", code);
}

StatusCode QnnSampleApp::readBinary(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == nullptr) return StatusCode::FAILURE;
    fseek(file, 0, SEEK_END);
    m_bufferSize = static_cast<uint64_t>(ftell(file));
    rewind(file);
    m_buffer = alignedAlloc(m_bufferSize, m_need);
    bool whole = fread(m_buffer, 1, m_bufferSize, file) == m_bufferSize;
    fclose(file);
    return whole ? StatusCode::SUCCESS : StatusCode::FAILURE;
}

StatusCode QnnSampleApp::copyMetadata(const BinaryInfo *info) {
    const GraphInfo &first = info->v1.graphs[0];
    m_graph.graphName = strdup(first.v1.name);
    m_graph.numInputs = first.v1.numInputs;
    m_graph.numOutputs = first.v1.numOutputs;
    m_graph.inputs = static_cast<Tensor *>(calloc(first.v1.numInputs, sizeof(Tensor)));
    m_graph.outputs = static_cast<Tensor *>(calloc(first.v1.numOutputs, sizeof(Tensor)));
    for (uint32_t i = 0; i < first.v1.numInputs; i++) {
        if (!deepCopyTensor(&m_graph.inputs[i], &first.v1.inputs[i])) return StatusCode::FAILURE;
    }
    for (uint32_t i = 0; i < first.v1.numOutputs; i++) {
        if (!deepCopyTensor(&m_graph.outputs[i], &first.v1.outputs[i])) return StatusCode::FAILURE;
    }
    if (is("shallow-copy") || is("shallow-late")) m_graph.inputs[0].of.v1.name = first.v1.inputs[0].of.v1.name;
    return StatusCode::SUCCESS;
}

StatusCode QnnSampleApp::createFromBinary() {
    const BinaryInfo *info = nullptr;
    uint64_t size = 0;
    Error code = m_system.contextCreate(&m_systemContext);  // at: systemCreate
    if (code == 0) code = m_system.getBinaryInfo(m_systemContext, m_buffer, m_bufferSize, &info, &size);
    if (code != 0) return failed("getBinaryInfo", code);
    if (copyMetadata(info) != StatusCode::SUCCESS) return StatusCode::FAILURE;
    if (!is("system-leaked") && !is("shallow-late")) m_system.contextFree(m_systemContext);  // at: systemFree
    Option persistent = {7, {nullptr}};
    persistent.value.flag = 1;
    const Option *configs[] = {&persistent, nullptr};
    bool keeps = is("binary-freed");
    code = m_qnn.contextCreateFromBinary(m_backend, nullptr, keeps ? configs : nullptr, m_buffer, m_bufferSize, &m_context, m_profile);  // at: contextCreate
    if (code != 0) return failed("contextCreateFromBinary", code);
    alignedFree(m_buffer);  // allowed: without a persistent-binary config the backend copies the binary
    m_buffer = nullptr;
    code = m_qnn.graphRetrieve(m_context, m_graph.graphName, &m_graph.graph);
    return code == 0 ? StatusCode::SUCCESS : failed("graphRetrieve", code);
}

StatusCode QnnSampleApp::giveMemory(GraphsInfo &graph, uint32_t option, uint32_t property, void **memory) {
    uint32_t size = 0;
    CustomOption asked = {property, &size};
    Option outer = {0, {&asked}};
    Option *properties[] = {&outer, nullptr};
    Error code = m_qnn.graphGetProperty(graph.graph, properties);
    if (code != 0) return failed("graphGetProperty", code);
    if (size == 0) return StatusCode::SUCCESS;
    *memory = alignedAlloc(size, m_need);
    PoolMemory pool = {1, static_cast<uint32_t>(roundUp(size, m_need.size)), *memory};
    if (is("pool-past-end")) pool.size += 64 * m_need.size;
    if (is("pool-misaligned")) pool.addr = static_cast<char *>(pool.addr) + 8;
    CustomOption inner = {option, &pool};
    Option given = {0, {&inner}};
    const Option *configs[] = {&given, nullptr};
    code = m_qnn.graphSetConfig(graph.graph, configs);  // at: setConfig
    return code == 0 ? StatusCode::SUCCESS : failed("graphSetConfig", code);
}

StatusCode QnnSampleApp::finalizeGraph(GraphsInfo &graph) {
    if (giveMemory(graph, 1, 1, &graph.scratch) != StatusCode::SUCCESS) return StatusCode::FAILURE;
    if (giveMemory(graph, 101, 101, &graph.persistent) != StatusCode::SUCCESS) return StatusCode::FAILURE;
    if (is("not-finalized")) return StatusCode::SUCCESS;
    Error code = m_qnn.graphFinalize(graph.graph, m_profile, nullptr);
    return code == 0 ? StatusCode::SUCCESS : failed("graphFinalize", code);
}

StatusCode QnnSampleApp::executeGraph(GraphsInfo &graph) {
    IOTensor tensors(m_need);
    if (tensors.setupTensors(graph.inputs, graph.numInputs) != StatusCode::SUCCESS) return StatusCode::FAILURE;
    if (tensors.setupTensors(graph.outputs, graph.numOutputs) != StatusCode::SUCCESS) return StatusCode::FAILURE;
    void *kept = graph.inputs[0].of.v1.memory.clientBuf.data;
    if (is("io-plain-malloc")) graph.inputs[0].of.v1.memory.clientBuf.data = static_cast<char *>(malloc(4096)) + 16;
    if (is("output-short")) graph.outputs[0].of.v1.memory.clientBuf.dataSize /= 2;
    if (is("tensor-unknown")) graph.inputs[0].of.v1.id = 4711, graph.inputs[0].of.v1.name = "nobody";
    if (is("tensor-renumbered")) graph.inputs[0].of.v1.id = 4711;
    if (is("tensor-flat")) graph.inputs[0].of.v1.rank = 1;
    if (is("scratch-freed")) alignedFree(graph.scratch);
    if (is("persistent-written")) static_cast<char *>(graph.persistent)[3] ^= 1;
    StatusCode done = StatusCode::SUCCESS;
    for (int frame = 0; frame < 3 && done == StatusCode::SUCCESS; frame++) {
        Error code = m_qnn.graphExecute(graph.graph, graph.inputs, graph.numInputs, graph.outputs, graph.numOutputs, m_profile, nullptr);  // at: execute
        if (code != 0 && code != 6038) done = failed("graphExecute", code);
        if (is("shallow-late") && frame == 0) m_system.contextFree(m_systemContext);  // at: lateFree
        ClientBuffer &input = graph.inputs[0].of.v1.memory.clientBuf;
        if (is("input-anew")) kept = input.data = tensors.again(kept, input.dataSize);
    }
    const uint64_t *events = nullptr;
    uint32_t count = 0;
    m_qnn.profileGetEvents(m_profile, &events, &count);
    graph.inputs[0].of.v1.memory.clientBuf.data = kept;
    if (!is("tensor-unknown") && !is("shallow-copy") && !is("shallow-late")) {
        tensors.tearDownTensors(graph.inputs, graph.numInputs);
        tensors.tearDownTensors(graph.outputs, graph.numOutputs);
    }
    return done;
}

StatusCode QnnSampleApp::freeAll() {
    if (is("backend-first")) m_qnn.backendFree(m_backend);  // at: backendFirst
    if (!is("backend-first") && m_qnn.contextFree(m_context, m_profile) != 0) return StatusCode::FAILURE;  // at: contextFree
    if (!is("profile-leaked")) m_qnn.profileFree(m_profile);
    if (!is("backend-first")) m_qnn.backendFree(m_backend);  // at: backendFree
    if (m_log != nullptr) m_qnn.logFree(m_log);
    dlclose(m_backendLibrary);
    dlclose(m_systemLibrary);
    if (is("after-close")) m_qnn.backendFree(m_backend);  // at: afterClose
    if (!is("scratch-freed")) alignedFree(m_graph.scratch);
    alignedFree(m_graph.persistent);
    free(m_graph.graphName);
    return StatusCode::SUCCESS;
}

int QnnSampleApp::run(const char *path) {
    if (loadLibraries() != StatusCode::SUCCESS) return 10;
    if (initializeBackend() != StatusCode::SUCCESS) return 11;
    if (readBinary(path) != StatusCode::SUCCESS) return 12;
    if (createFromBinary() != StatusCode::SUCCESS) return 13;
    if (finalizeGraph(m_graph) != StatusCode::SUCCESS) return 14;
    if (executeGraph(m_graph) != StatusCode::SUCCESS) return 15;
    return freeAll() == StatusCode::SUCCESS ? 0 : 16;
}

int main(int argc, char **argv) {
    if (argc > 2) g_mistake = argv[2];
    return argc < 2 ? 2 : QnnSampleApp().run(argv[1]);
}
