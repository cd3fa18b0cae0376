// Handles in unique_ptr, memory in vectors, executions from several threads and through the queue.
//     raii MODEL.bin [MISTAKE]
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <mutex>
#include <thread>
#include <vector>

#include "qnn_like.h"

namespace {
std::string mistake;
bool is(const char *name) { return mistake == name; }

const Functions *qnn;
const SystemFunctions *sys;

void must(Error code, const char *what) {
    if (code != 0) throw std::runtime_error(std::string(what) + " gave " + std::to_string(code & 0xffff));
}

struct CloseLibrary { void operator()(void *library) const { dlclose(library); } };
struct FreeBackend { void operator()(void *handle) const { qnn->backendFree(handle); } };  // at: backendFree
struct FreeContext { void operator()(void *handle) const { qnn->contextFree(handle, nullptr); } };  // at: contextFree
struct FreeSystem { void operator()(void *handle) const { sys->contextFree(handle); } };
using Library = std::unique_ptr<void, CloseLibrary>;
using Backend = std::unique_ptr<void, FreeBackend>;
using Context = std::unique_ptr<void, FreeContext>;
using System = std::unique_ptr<void, FreeSystem>;

// A vector that knows where its aligned part begins.
class Bytes {
   public:
    Bytes(size_t size, Alignment need) : size_((size + need.size - 1) / need.size * need.size), store_(size_ + need.start) {
        void *at = store_.data();
        size_t room = store_.size();
        at_ = static_cast<uint8_t *>(std::align(need.start, size_, at, room));
    }
    uint8_t *data() const { return at_; }
    uint32_t size() const { return static_cast<uint32_t>(size_); }
    void grow() { store_.resize(store_.size() * 64); }  // at: grow

   private:
    size_t size_;
    std::vector<uint8_t> store_;
    uint8_t *at_;
};

Library open(const char *name) {
    Library library(dlopen(name, RTLD_LAZY));
    if (!library) throw std::runtime_error(dlerror());
    return library;
}

Alignment ask_alignment(void *backend) {
    Alignment need{1, 1};
    CustomOption inner{0, &need};
    Option outer{0, {&inner}};
    std::array<Option *, 2> list{&outer, nullptr};
    must(qnn->backendGetProperty(backend, list.data()), "backendGetProperty");
    return need;
}

uint32_t ask_size(void *graph, uint32_t which) {
    auto size = std::make_unique<uint32_t>(0);
    CustomOption inner{which, size.get()};
    Option outer{0, {&inner}};
    std::array<Option *, 2> list{&outer, nullptr};
    must(qnn->graphGetProperty(graph, list.data()), "graphGetProperty");
    return *size;
}

size_t bytes_of(const Tensor &tensor) {
    size_t size = (tensor.of.v1.dataType & 0xff) == 0x08 ? 1 : (tensor.of.v1.dataType & 0xff) == 0x16 ? 2 : 4;
    for (uint32_t i = 0; i < tensor.of.v1.rank; ++i) size *= tensor.of.v1.dimensions[i];
    return size;
}

struct Io {
    std::vector<Tensor> tensors;
    std::vector<Bytes> memory;
    Io(const Tensor *from, uint32_t count, Alignment need) : tensors(from, from + count) {
        memory.reserve(count);
        for (auto &tensor : tensors) {
            memory.emplace_back(bytes_of(tensor), need);
            tensor.of.v1.memory.clientBuf = {memory.back().data(), static_cast<uint32_t>(bytes_of(tensor))};
        }
    }
};

struct Pending {
    std::promise<Error> over;
    std::shared_future<void> hold;
};

void finished(void *argument, NotifyStatus status) {
    auto *one = static_cast<Pending *>(argument);
    auto hold = one->hold;  // set_value may destroy the promise
    one->over.set_value(status.error);
    if (hold.valid()) hold.wait();
}

class Model {
   public:
    explicit Model(const char *path);
    void run();

   private:
    void give(uint32_t which, const Bytes &memory);
    void execute(Io &in, Io &out);
    void execute_async(Io &in, Io &out);
    void execute_threads();
    std::mutex turn_;
    void lose_buffer();
    void use_stack();
    void overlap();

    // Members are destroyed in reverse order, so this order matters.
    Library lpai_, system_library_;
    std::vector<uint8_t> file_;
    Backend backend_;
    std::optional<Bytes> scratch_, persistent_, binary_;
    Context context_;
    System system_;
    const GraphInfo *info_ = nullptr;
    void *graph_ = nullptr;
    Alignment need_{1, 1};
};

Model::Model(const char *path) : lpai_(open("libQnnLpai.so")), system_library_(open("libQnnSystem.so")) {
    const Interface **found;
    const SystemInterface **systems;
    uint32_t count;
    must(reinterpret_cast<GetProviders>(dlsym(lpai_.get(), "QnnInterface_getProviders"))(&found, &count), "getProviders");
    qnn = &found[0]->v;
    must(reinterpret_cast<GetSystemProviders>(dlsym(system_library_.get(), "QnnSystemInterface_getProviders"))(&systems, &count), "getProviders");
    sys = &systems[0]->v;
    std::ifstream file(path, std::ios::binary);
    file_.assign(std::istreambuf_iterator<char>(file), {});
    Handle made = nullptr;
    must(qnn->backendCreate(nullptr, nullptr, &made), "backendCreate");  // at: backendCreate
    backend_.reset(made);
    need_ = ask_alignment(backend_.get());
    binary_.emplace(file_.size(), need_);
    memcpy(binary_->data(), file_.data(), file_.size());
    Option keep{7, {nullptr}};
    keep.value.flag = 1;
    std::array<const Option *, 2> configs{&keep, nullptr};
    must(qnn->contextCreateFromBinary(backend_.get(), nullptr, configs.data(), binary_->data(), file_.size(), &made, nullptr), "contextCreateFromBinary");  // at: contextCreate
    context_.reset(made);
    if (is("binary-grows")) binary_->grow();
    must(sys->contextCreate(&made), "systemContextCreate");
    system_.reset(made);
    const BinaryInfo *info = nullptr;
    uint64_t size = 0;
    must(sys->getBinaryInfo(system_.get(), file_.data(), file_.size(), &info, &size), "getBinaryInfo");
    info_ = info->v1.graphs;
    must(qnn->graphRetrieve(context_.get(), info_->v1.name, &graph_), "graphRetrieve");
    if (uint32_t bytes = ask_size(graph_, 1)) give(1, scratch_.emplace(bytes, need_));
    if (uint32_t bytes = ask_size(graph_, 101)) give(101, persistent_.emplace(bytes, need_));
    must(qnn->graphFinalize(graph_, nullptr, nullptr), "graphFinalize");
}

void Model::give(uint32_t which, const Bytes &memory) {
    PoolMemory pool{1, memory.size(), memory.data()};
    CustomOption inner{which, &pool};
    Option outer{0, {&inner}};
    std::array<const Option *, 2> list{&outer, nullptr};
    must(qnn->graphSetConfig(graph_, list.data()), "graphSetConfig");  // at: setConfig
}

void Model::execute(Io &in, Io &out) {
    must(qnn->graphExecute(graph_, in.tensors.data(), in.tensors.size(), out.tensors.data(), out.tensors.size(), nullptr, nullptr), "graphExecute");  // at: execute
}

void Model::execute_async(Io &in, Io &out) {
    std::vector<std::unique_ptr<Pending>> pending;
    for (int i = 0; i < 4; ++i) {
        pending.push_back(std::make_unique<Pending>());
        must(qnn->graphExecuteAsync(graph_, in.tensors.data(), in.tensors.size(), out.tensors.data(), out.tensors.size(), nullptr, nullptr, finished, pending.back().get()), "graphExecuteAsync");
    }
    for (auto &one : pending) must(one->over.get_future().get(), "the execution");
}

void Model::execute_threads() {
    std::vector<std::thread> threads;
    std::atomic<int> failed{0};
    for (int i = 0; i < 3; ++i) {
        threads.emplace_back([this, &failed] {
            Io in(info_->v1.inputs, info_->v1.numInputs, need_), out(info_->v1.outputs, info_->v1.numOutputs, need_);
            try {
                for (int run = 0; run < 5; ++run) {
                    // One graph has one scratch.
                    std::unique_lock<std::mutex> turn(turn_, std::defer_lock);
                    if (!is("turn-missing")) turn.lock();
                    execute(in, out);
                }
            } catch (const std::exception &) {
                ++failed;
            }
        });
    }
    for (auto &one : threads) one.join();
    if (failed != 0) throw std::runtime_error("a thread failed");
}

// The buffer of a queued execution goes out of scope.
void Model::lose_buffer() {
    Io out(info_->v1.outputs, info_->v1.numOutputs, need_), held(info_->v1.inputs, info_->v1.numInputs, need_);
    std::promise<void> go;
    Pending first, second;
    first.hold = go.get_future().share();
    auto began = first.over.get_future();
    must(qnn->graphExecuteAsync(graph_, held.tensors.data(), 1, out.tensors.data(), 1, nullptr, nullptr, finished, &first), "graphExecuteAsync");
    began.wait();
    {
        Io in(info_->v1.inputs, info_->v1.numInputs, need_);
        must(qnn->graphExecuteAsync(graph_, in.tensors.data(), 1, out.tensors.data(), 1, nullptr, nullptr, finished, &second), "graphExecuteAsync");  // at: async
    }  // at: scopeEnd
    go.set_value();
    second.over.get_future().wait();
}

void Model::use_stack() {
    alignas(256) uint8_t room[1024] = {};
    Io in(info_->v1.inputs, info_->v1.numInputs, need_), out(info_->v1.outputs, info_->v1.numOutputs, need_);
    in.tensors[0].of.v1.memory.clientBuf.data = room;
    Pending one;
    must(qnn->graphExecuteAsync(graph_, in.tensors.data(), 1, out.tensors.data(), 1, nullptr, nullptr, finished, &one), "graphExecuteAsync");  // at: asyncStack
    one.over.get_future().wait();
}

// A resource of an execution is freed before the execution ends.
void Model::overlap() {
    Io in(info_->v1.inputs, info_->v1.numInputs, need_), out(info_->v1.outputs, info_->v1.numOutputs, need_);
    Io next(info_->v1.inputs, info_->v1.numInputs, need_);
    Pending first, second;
    must(qnn->graphExecuteAsync(graph_, in.tensors.data(), 1, out.tensors.data(), 1, nullptr, nullptr, finished, &first), "graphExecuteAsync");  // at: flight
    if (is("scratch-replaced")) give(1, *scratch_);
    if (is("freed-in-flight")) context_.reset();
    if (is("one-output")) {
        must(qnn->graphExecuteAsync(graph_, next.tensors.data(), 1, out.tensors.data(), 1, nullptr, nullptr, finished, &second), "graphExecuteAsync");  // at: second
        second.over.get_future().wait();
    }
    first.over.get_future().wait();
}

void Model::run() {
    Io in(info_->v1.inputs, info_->v1.numInputs, need_), out(info_->v1.outputs, info_->v1.numOutputs, need_);
    execute(in, out);
    if (is("scratch-grows")) scratch_->grow();
    if (is("persistent-moved")) persistent_.emplace(4096, need_);  // at: emplace
    if (is("state-written")) std::thread([this] { persistent_->data()[1] ^= 4; }).join();
    if (is("buffer-out-of-scope")) return lose_buffer();
    if (is("async-stack")) return use_stack();
    if (is("scratch-replaced") || is("freed-in-flight") || is("one-output")) return overlap();
    if (is("context-twice")) qnn->contextFree(context_.get(), nullptr);  // at: firstFree
    if (is("context-twice")) return;
    if (is("context-released")) context_.release();
    if (is("backend-first")) backend_.reset();
    if (is("backend-first") || is("context-released")) return;
    execute(in, out);
    execute_async(in, out);
    execute_threads();
}
}  // namespace

int main(int argc, char **argv) try {
    if (argc > 2) mistake = argv[2];
    auto model = std::make_unique<Model>(argv[1]);
    model->run();
    return 0;
} catch (const std::exception &error) {
    fprintf(stderr, "%s\n", error.what());
    return 1;
}
