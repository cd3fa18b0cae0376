// A typical client of a beginner with QNN: vectors, slots of a ring, threads, notifications.
//     first_day MODEL_WITH_TWO_GRAPHS.bin [MISTAKE]
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "qnn_like.h"

namespace {
constexpr int kValues = 25, kSlot = 128, kSlots = 4;
std::string mistake;
const Functions *qnn;
const SystemFunctions *sys;
Handle backend, context, system_context, graph;
Tensor input, output;
std::vector<char> binary;
char *ring;

bool is(const char *name) { return mistake == name; }

void must(Error code) {
    if (code != 0) exit(1);
}

char *aligned(size_t size) { return static_cast<char *>(memset(aligned_alloc(64, size), 0, size)); }

void set(uint32_t which) {
    uint32_t size = 0;
    CustomOption inner{which, &size};
    Option outer{0, {&inner}}, *list[] = {&outer, nullptr};
    must(qnn->graphGetProperty(graph, list));
    PoolMemory pool{1, (size + 63) / 64 * 64, nullptr};
    pool.addr = aligned(pool.size);
    inner.value = &pool;
    must(qnn->graphSetConfig(graph, const_cast<const Option **>(list)));
}

void begin(const char *path) {
    const Interface **found;
    const SystemInterface **systems;
    const BinaryInfo *info;
    uint32_t count;
    uint64_t size;
    Alignment need;
    CustomOption inner{0, &need};
    Option outer{0, {&inner}}, *list[] = {&outer, nullptr};
    must(reinterpret_cast<GetProviders>(dlsym(dlopen("libQnnLpai.so", RTLD_NOW), "QnnInterface_getProviders"))(&found, &count));
    must(reinterpret_cast<GetSystemProviders>(dlsym(dlopen("libQnnSystem.so", RTLD_NOW), "QnnSystemInterface_getProviders"))(&systems, &count));
    qnn = &found[0]->v, sys = &systems[0]->v;
    must(qnn->backendCreate(nullptr, nullptr, &backend));
    must(qnn->backendGetProperty(backend, list));
    std::ifstream file(path, std::ios::binary);
    binary.assign(std::istreambuf_iterator<char>(file), {});
    must(qnn->contextCreateFromBinary(backend, nullptr, nullptr, binary.data(), binary.size(), &context, nullptr));
    must(sys->contextCreate(&system_context));
    must(sys->getBinaryInfo(system_context, binary.data(), binary.size(), &info, &size));
    must(qnn->graphRetrieve(context, info->v1.graphs[0].v1.name, &graph));
    set(1), set(101);
    must(qnn->graphFinalize(graph, nullptr, nullptr));
    ring = aligned(kSlots * kSlot);
    input = *info->v1.graphs[0].v1.inputs, output = *info->v1.graphs[0].v1.outputs;
    input.of.v1.memory.clientBuf = {ring, kValues * sizeof(int)};
    output.of.v1.memory.clientBuf = {ring + kSlot, kValues * sizeof(int)};
}

void execute(const void *from) {
    input.of.v1.memory.clientBuf.data = const_cast<void *>(from);
    must(qnn->graphExecute(graph, &input, 1, &output, 1, nullptr, nullptr));  // at: execute
}

// Address of a variable or of the stack of an ended thread that never called QNN.
const void *of_ended_thread(bool on_stack) {
    alignas(64) thread_local int variable[32];
    const void *volatile place;
    std::thread([&place, on_stack] {
        alignas(64) volatile int local[32] = {};
        place = on_stack ? const_cast<const int *>(local) : variable;
    }).join();
    return place;
}

// Memory at the address of the stack of an ended thread: so many stacks are not kept.
void use_old_stacks() {
    constexpr int kThreads = 24;
    char *places[kThreads];
    pthread_barrier_t all;
    std::vector<std::thread> threads;
    pthread_barrier_init(&all, nullptr, kThreads);
    for (auto &place : places) {
        threads.emplace_back([&place, &all] {
            place = static_cast<char *>(__builtin_frame_address(0)) - 65536;
            pthread_barrier_wait(&all);
        });
    }
    for (auto &one : threads) one.join();
    for (char *place : places) {
        char *const page = place - reinterpret_cast<uintptr_t>(place) % 4096;
        execute(mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    }
}

std::mutex lock;
std::condition_variable changed;
int notified;

void done(void *, NotifyStatus) {
    if (is("callback-frees")) qnn->contextFree(context, nullptr);  // at: callbackFrees
    if (is("callback-executes") && !notified) {
        Tensor in = input, out = output;
        in.of.v1.memory.clientBuf.data = ring + 2 * kSlot, out.of.v1.memory.clientBuf.data = ring + 3 * kSlot;
        must(qnn->graphExecute(graph, &in, 1, &out, 1, nullptr, nullptr));
    }
    std::lock_guard<std::mutex> held(lock);
    ++notified;
    changed.notify_one();
}

void wait_for(int count) {
    std::unique_lock<std::mutex> held(lock);
    changed.wait(held, [count] { return notified >= count; });
}

void execute_async() {
    Handle signal;
    Tensor in = input, out = output;
    must(qnn->signalCreate(backend, nullptr, &signal));
    must(qnn->graphExecuteAsync(graph, &input, 1, &output, 1, nullptr, signal, done, nullptr));  // at: flight
    if (is("signal-freed")) qnn->signalFree(signal);  // at: signalFree
    in.of.v1.memory.clientBuf.data = ring + 2 * kSlot, out.of.v1.memory.clientBuf.data = ring + 3 * kSlot;
    Handle const other = is("signal-shared") ? signal : nullptr;
    bool const failed = qnn->graphExecuteAsync(graph, &in, 1, &out, 1, nullptr, other, done, nullptr);  // at: sharedSignal
    wait_for(failed ? 1 : 2);
    qnn->signalFree(signal);
}
}  // namespace

int main(int, char **argv) {
    if (argv[2]) mistake = argv[2];
    begin(argv[1]);
    std::vector<int> plain(kValues);
    int *const array = new int[kValues]();
    execute(ring);
    if (is("plain-vector")) execute(plain.data());
    if (is("new-array")) execute(array);
    if (is("slot-after")) execute(ring + kSlots * kSlot);
    if (is("slot-before")) execute(ring - kSlot);
    if (is("old-stacks")) use_old_stacks();
    if (is("thread-variable")) execute(of_ended_thread(false));
    if (is("thread-stack")) execute(of_ended_thread(true));
    execute(ring);
    execute_async();
    must(qnn->contextFree(context, nullptr));
    must(sys->contextFree(system_context));
    must(qnn->backendFree(backend));
    delete[] array;
    free(ring);
    return 0;
}
