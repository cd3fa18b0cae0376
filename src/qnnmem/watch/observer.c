/* The program's side of `qnnmem watch`: preloaded, it stands between a program and its QNN.
 *
 * Whoever asks the loader for QnnInterface_getProviders gets one of ours, which hands out copies of
 * the real tables with a wrapper in place of each function whose arguments are known. A wrapper
 * counts and times the call; what else it does the other side has said at the beginning, for each
 * function: ask before (and perhaps answer for the library), tell afterwards, send the call stack.
 * Nothing of QNN is understood here, and with nobody listening nothing is wrapped. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "line.h"

#define API __attribute__((visibility("default")))
typedef uint64_t word;

enum { VERSION = 1, SLOTS = 4, SYSTEM_SLOTS = 2, DOORS = 8, LOGS = 8, FRAMES = 40, TEXT = 2000 };
enum { FUNCTIONS = 128, FIRST_SYSTEM = 100, BACKEND_ENTRIES = 75, SYSTEM_ENTRIES = 40 };
enum { HELLO = 1, LIBRARY, ASK, TOLD, LOGGED };                          /* from here */
enum { GO, ANSWER };                                                     /* from there */
enum { ASKS = 1, TELLS = 2, STACK = 4, WAITS = 8 };                      /* of each function */
enum { LOG_CREATE = 25, SYSTEM_LOG_CREATE = 105 };
enum { SAMPLE = 16, QUICK_NS = 2000 };

static struct { _Atomic uint64_t count, ns, failed; } own_counters[FUNCTIONS], *counters = own_counters;
static _Atomic uint8_t quick[FUNCTIONS]; /* whether the last call that was timed was */
static struct { uint8_t mode, out; } plan[FUNCTIONS]; /* `out` is 1 + the argument with a handle */
static struct { const void *interface; void *real[80]; char copy[40 + 8 * 80]; } slots[SLOTS + SYSTEM_SLOTS];
static const void *views[SLOTS + SYSTEM_SLOTS];
static struct { _Atomic(void *) real; int which; } doors[DOORS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static char socket_path[108];
static _Atomic int dead, generation = 1;
static pid_t forked_from;
static pthread_key_t at_thread_end;
static __thread int connection = -1, connection_generation;

/* --- The line to the other side ------------------------------------------------------------- */

static uint64_t read_clock(clockid_t which) {
    struct timespec at;
    clock_gettime(which, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static uint64_t now(void) { return read_clock(CLOCK_MONOTONIC); }

static int send_message(int fd, int kind, int function, const word *words, size_t count,
                        const char *text, size_t length) {
    struct {
        head head;
        word words[FRAMES + 24];
        char text[TEXT + 8];
    } out;
    char *end = (char *)&out.words[count];
    size_t padded = (length + 7) / 8 * 8;
    out.head.length = (uint32_t)(sizeof out.head + count * sizeof *words + padded);
    out.head.kind = (uint16_t)kind;
    out.head.function = (uint16_t)function;
    memcpy(out.words, words, count * sizeof *words);
    memset(end, 0, padded);
    if (length > 0) memcpy(end, text, length);
    return send_all(fd, &out, out.head.length);
}

/* What the other side answers; with nobody there the program goes on by itself. */
static reply answered(int fd, void *text, size_t size) {
    reply got = {0, GO, 0, 0, 0};
    if (!receive_all(fd, &got, sizeof got) || got.length - sizeof got != size ||
        !receive_all(fd, text, size)) {
        atomic_store(&dead, 1);
        got.action = GO;
    }
    return got;
}

static int connect_line(void) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    word words[] = {VERSION, (word)getpid(), (word)forked_from, (word)syscall(SYS_gettid)};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), high;
    if (fd < 0) return -1;
    high = fcntl(fd, F_DUPFD_CLOEXEC, 512); /* out of the way of programs that count theirs */
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    memcpy(to.sun_path, socket_path, sizeof socket_path);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0 &&
        send_message(fd, HELLO, 0, words, 4, NULL, 0)) {
        answered(fd, plan, sizeof plan);
        if (!atomic_load(&dead)) return fd;
    }
    atomic_store(&dead, 1);
    close(fd);
    return -1;
}

static int connected(void) {
    if (atomic_load(&dead) || !socket_path[0]) return -1;
    if (connection >= 0 && connection_generation == atomic_load(&generation)) return connection;
    if (connection >= 0) close(connection); /* of the process that this one was forked from */
    connection = connect_line();
    connection_generation = atomic_load(&generation);
    if (connection >= 0) pthread_setspecific(at_thread_end, plan);
    return connection;
}

static void end_thread(void *unused) {
    (void)unused;
    if (connection >= 0) close(connection);
    connection = -1;
}

/* --- What the library logs ------------------------------------------------------------------ */

typedef void (*log_function)(const char *, uint32_t, uint64_t, va_list);
static struct { int used; log_function real; } logs[LOGS];

static void log_line(int at, const char *format, uint32_t level, uint64_t when, va_list list) {
    char text[TEXT + 1];
    va_list again;
    int length, fd, saved = errno;
    va_copy(again, list);
    length = vsnprintf(text, sizeof text, format, again);
    va_end(again);
    length = length < 0 ? 0 : length > TEXT ? TEXT : length;
    text[length] = 0;
    if ((fd = connected()) >= 0) {
        word words[] = {now(), level, (word)length};
        if (!send_message(fd, LOGGED, 0, words, 3, text, (size_t)length)) atomic_store(&dead, 1);
    }
    errno = saved;
    if (logs[at].real != NULL) logs[at].real(format, level, when, list);
    else printf("qnn [%u] %s\n", level, text); /* the library would have printed it, too */
}

#define LOG(k)                                                                    \
    static void logger##k(const char *format, uint32_t level, uint64_t when, va_list list) { \
        log_line(k, format, level, when, list);                                   \
    }
LOG(0) LOG(1) LOG(2) LOG(3) LOG(4) LOG(5) LOG(6) LOG(7)
static const log_function log_functions[LOGS] = {logger0, logger1, logger2, logger3,
                                                 logger4, logger5, logger6, logger7};

static word log_through(word given) {
    log_function real = (log_function)(uintptr_t)given;
    int i;
    pthread_mutex_lock(&lock);
    for (i = 0; i < LOGS && logs[i].used && logs[i].real != real; i++) {
    }
    if (i < LOGS) {
        logs[i].used = 1;
        logs[i].real = real;
        given = (word)(uintptr_t)log_functions[i];
    }
    pthread_mutex_unlock(&lock);
    return given;
}

/* --- Around a call -------------------------------------------------------------------------- */

typedef struct { word begin, end; int slot, function, mode, count, weight; word *words; } seen;

static void tell(const seen *at, word code, int injected) {
    word out[FRAMES + 24] = {(word)at->slot, at->begin, at->end, code, 0, 0, (word)at->count};
    void *frames[FRAMES];
    int fd = connected(), depth = 0, waits, i, handle = plan[at->function].out, saved = errno;
    size_t count = 7;
    if (fd < 0) return;
    if (handle && code == 0 && at->words[handle - 1]) {
        out[5] = *(const word *)(uintptr_t)at->words[handle - 1];
    }
    for (i = 0; i < at->count; i++) out[count++] = at->words[i];
    if ((at->mode & STACK) || (code != 0 && ((at->mode & TELLS) || injected))) {
        depth = backtrace(frames, FRAMES);
    }
    waits = depth > 0 || (at->mode & WAITS); /* what is looked up in this process has to be here */
    out[4] = (word)(injected | waits << 1);
    for (i = 0; i < depth; i++) out[count++] = (word)(uintptr_t)frames[i];
    if (!send_message(fd, TOLD, at->function, out, count, NULL, 0)) atomic_store(&dead, 1);
    else if (waits) answered(fd, NULL, 0);
    errno = saved;
}

/* Before one that is only counted. Where that takes no longer than the clock, one call stands for
 * several; the others have the cheap clock, which stands still for milliseconds, so that what the
 * library logs meanwhile is not before it. */
static void count_call(seen *at) {
    word earlier = atomic_fetch_add_explicit(&counters[at->function].count, 1, memory_order_relaxed);
    if (atomic_load_explicit(&quick[at->function], memory_order_relaxed)) {
        at->weight = earlier % SAMPLE ? 0 : SAMPLE;
    }
    at->begin = at->weight ? now() : read_clock(CLOCK_MONOTONIC_COARSE);
}

/* Whether the real function is to be called; else `code` is what the caller gets. */
__attribute__((noinline)) static int before(seen *at, word *code) {
    int saved = errno, fd;
    at->mode = plan[at->function].mode;
    if (at->mode == 0) {
        count_call(at);
        return 1;
    }
    if ((at->mode & ASKS) && (fd = connected()) >= 0) {
        word out[16] = {(word)at->slot, now()};
        reply got;
        memcpy(out + 2, at->words, (size_t)at->count * sizeof *out);
        if (send_message(fd, ASK, at->function, out, (size_t)at->count + 2, NULL, 0)) {
            got = answered(fd, NULL, 0);
            if (got.action == ANSWER) {
                atomic_fetch_add_explicit(&counters[at->function].count, 1, memory_order_relaxed);
                atomic_fetch_add_explicit(&counters[at->function].failed, 1, memory_order_relaxed);
                at->begin = at->end = out[1];
                *code = got.a;
                tell(at, *code, 1);
                errno = saved;
                return 0;
            }
        } else {
            atomic_store(&dead, 1);
        }
    }
    if ((at->function == LOG_CREATE || at->function == SYSTEM_LOG_CREATE) && !atomic_load(&dead)) {
        at->words[0] = log_through(at->words[0]);
    }
    errno = saved;
    at->begin = now();
    return 1;
}

__attribute__((noinline)) static word after(seen *at, word code) {
    word took;
    if (at->weight == 0 && code == 0) return 0;
    at->end = now();
    took = at->end - at->begin;
    if (at->mode == 0) atomic_store_explicit(&quick[at->function], took < QUICK_NS, memory_order_relaxed);
    else atomic_fetch_add_explicit(&counters[at->function].count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&counters[at->function].ns, took * (word)at->weight, memory_order_relaxed);
    if (code != 0) {
        atomic_fetch_add_explicit(&counters[at->function].failed, 1, memory_order_relaxed);
    }
    if ((at->mode & TELLS) || code != 0) tell(at, code, 0);
    return code;
}

/* --- The wrappers: slot `s`, function `n` of it, and as many arguments as it has -------------- */

#define TYPES1 word
#define TYPES2 TYPES1, word
#define TYPES3 TYPES2, word
#define TYPES4 TYPES3, word
#define TYPES5 TYPES4, word
#define TYPES6 TYPES5, word
#define TYPES7 TYPES6, word
#define TYPES8 TYPES7, word
#define TYPES9 TYPES8, word
#define ONLY_BACKEND(n) ((n) % FIRST_SYSTEM)
#define AROUND(s, n, types, call, ...)                                                   \
    {                                                                                    \
        word words[] = {__VA_ARGS__}, code;                                              \
        seen at = {0, 0, s, n, 0, sizeof words / sizeof *words, 1, words};               \
        if (!before(&at, &code)) return code;                                            \
        return after(&at, ((word(*) types)slots[s].real[ONLY_BACKEND(n)])call);          \
    }
#define V(i) words[i]
#define W1(s, n) static word w##s##_##n(word a) AROUND(s, n, (TYPES1), (V(0)), a)
#define W2(s, n) static word w##s##_##n(word a, word b) AROUND(s, n, (TYPES2), (V(0), V(1)), a, b)
#define W3(s, n) static word w##s##_##n(word a, word b, word c) \
    AROUND(s, n, (TYPES3), (V(0), V(1), V(2)), a, b, c)
#define W4(s, n) static word w##s##_##n(word a, word b, word c, word d) \
    AROUND(s, n, (TYPES4), (V(0), V(1), V(2), V(3)), a, b, c, d)
#define W5(s, n) static word w##s##_##n(word a, word b, word c, word d, word e) \
    AROUND(s, n, (TYPES5), (V(0), V(1), V(2), V(3), V(4)), a, b, c, d, e)
#define SIX word a, word b, word c, word d, word e, word f
#define V6 V(0), V(1), V(2), V(3), V(4), V(5)
#define W6(s, n) static word w##s##_##n(SIX) AROUND(s, n, (TYPES6), (V6), a, b, c, d, e, f)
#define W7(s, n) static word w##s##_##n(SIX, word g) \
    AROUND(s, n, (TYPES7), (V6, V(6)), a, b, c, d, e, f, g)
#define W8(s, n) static word w##s##_##n(SIX, word g, word h) \
    AROUND(s, n, (TYPES8), (V6, V(6), V(7)), a, b, c, d, e, f, g, h)
#define W9(s, n) static word w##s##_##n(SIX, word g, word h, word i) \
    AROUND(s, n, (TYPES9), (V6, V(6), V(7), V(8)), a, b, c, d, e, f, g, h, i)
typedef struct { word words[10]; } op_config;
typedef struct { word words[18]; } tensor;
#define WO(s, n) static word w##s##_##n(word a, op_config o) \
    AROUND(s, n, (word, op_config), (V(0), o), a, (word)(uintptr_t)&o)
#define WT(s, n) static word w##s##_##n(tensor t, word a) \
    AROUND(s, n, (tensor, word), (t, V(1)), (word)(uintptr_t)&t, a)

/* Not 70, which takes a struct whose size is not known, nor what is newer than 71. */
#define BACKEND(s) \
    W1(s, 0) W3(s, 1) W2(s, 2) W1(s, 3) W1(s, 4) W4(s, 5) W3(s, 6) WO(s, 7) W1(s, 8) W4(s, 9) \
    W2(s, 10) W2(s, 11) W4(s, 12) W7(s, 13) W2(s, 14) W4(s, 15) W3(s, 16) W2(s, 17) WO(s, 18) W3(s, 19) \
    W3(s, 20) W7(s, 21) W9(s, 22) W2(s, 23) W2(s, 24) W3(s, 25) W2(s, 26) W1(s, 27) W3(s, 28) W2(s, 29) \
    W3(s, 30) W3(s, 31) W2(s, 32) W2(s, 33) W1(s, 34) W4(s, 35) W2(s, 36) W2(s, 37) W2(s, 38) W1(s, 39) \
    W3(s, 40) W2(s, 41) W2(s, 42) W1(s, 43) W3(s, 44) W2(s, 45) W1(s, 46) W1(s, 47) W2(s, 48) W2(s, 49) \
    W1(s, 50) W3(s, 51) W3(s, 52) W2(s, 53) W5(s, 54) W8(s, 55) W5(s, 56) W3(s, 57) W3(s, 58) W4(s, 59) \
    W7(s, 60) W6(s, 61) W2(s, 62) W2(s, 63) W4(s, 64) W3(s, 65) W2(s, 66) W1(s, 67) W9(s, 68) W9(s, 69) \
    W2(s, 71)
#define SYSTEM(s) \
    W1(s, 100) W5(s, 101) W4(s, 102) W1(s, 103) WT(s, 104) W3(s, 105) W2(s, 106) W1(s, 107)
BACKEND(0) BACKEND(1) BACKEND(2) BACKEND(3) SYSTEM(4) SYSTEM(5)

#define P(s, n) (void *)(uintptr_t)w##s##_##n
#define P10(s, n) P(s, n##0), P(s, n##1), P(s, n##2), P(s, n##3), P(s, n##4), P(s, n##5), P(s, n##6), \
    P(s, n##7), P(s, n##8), P(s, n##9)
#define ROW(s) {P(s, 0), P(s, 1), P(s, 2), P(s, 3), P(s, 4), P(s, 5), P(s, 6), P(s, 7), P(s, 8), P(s, 9), \
    P10(s, 1), P10(s, 2), P10(s, 3), P10(s, 4), P10(s, 5), P10(s, 6), NULL, P(s, 71)}
#define SYSTEM_ROW(s) {P(s, 100), P(s, 101), P(s, 102), P(s, 103), P(s, 104), P(s, 105), P(s, 106), P(s, 107)}
static void *const wrappers[SLOTS + SYSTEM_SLOTS][80] = {
    ROW(0), ROW(1), ROW(2), ROW(3), SYSTEM_ROW(4), SYSTEM_ROW(5)};

/* --- Tables that are handed out -------------------------------------------------------------- */

/* Fills a slot anew: a library may have been closed and another one loaded to the same place. */
static void fill(int slot, const void *interface) {
    int which = slot >= SLOTS, i, entries = which ? SYSTEM_ENTRIES : BACKEND_ENTRIES, fd;
    size_t at = which ? 32 : 40, size = at + 8 * (size_t)entries;
    ssize_t got = -1;
    char copy[sizeof slots[slot].copy] = {0};
    fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC); /* the table of an old library is shorter */
    if (fd >= 0) {
        got = pread(fd, copy, size, (off_t)(uintptr_t)interface);
        close(fd);
    }
    if (got < (ssize_t)at) memcpy(copy, interface, size);
    slots[slot].interface = interface;
    memcpy(slots[slot].real, copy + at, 8 * (size_t)entries);
    for (i = 0; i < entries; i++) {
        if (slots[slot].real[i] && wrappers[slot][i]) memcpy(copy + at + 8 * i, &wrappers[slot][i], 8);
    }
    memcpy(slots[slot].copy, copy, sizeof copy);
    views[slot] = slots[slot].copy;
}

static void wrap(int which, const void ***list, uint32_t count) {
    int first = which ? SLOTS : 0, end = which ? SLOTS + SYSTEM_SLOTS : SLOTS, slot, fd;
    uint32_t i;
    const void **given = *list;
    if (count == 0 || (fd = connected()) < 0) return;
    pthread_mutex_lock(&lock);
    for (slot = first; slot < end && slots[slot].interface && slots[slot].interface != given[0]; slot++) {
    }
    /* Those of one library lie side by side. With no room left the program gets the real ones. */
    if (count <= (uint32_t)(end - slot)) {
        for (i = 0; i < count; i++) {
            word words[] = {(word)(slot + (int)i), (word)which, (word)(uintptr_t)given[i]};
            fill(slot + (int)i, given[i]);
            if (!send_message(fd, LIBRARY, 0, words, 3, NULL, 0)) atomic_store(&dead, 1);
            else answered(fd, NULL, 0);
        }
        *list = &views[slot];
    }
    pthread_mutex_unlock(&lock);
}

typedef word (*providers_function)(const void ***, uint32_t *);

static word providers(int which, void *real, const void ***list, uint32_t *count) {
    word code = ((providers_function)(uintptr_t)real)(list, count);
    if (code == 0 && list != NULL && *list != NULL && count != NULL) wrap(which, list, *count);
    return code;
}

#define DOOR(k)                                                          \
    static word door##k(const void ***list, uint32_t *count) {           \
        return providers(doors[k].which, atomic_load(&doors[k].real), list, count); \
    }
DOOR(0) DOOR(1) DOOR(2) DOOR(3) DOOR(4) DOOR(5) DOOR(6) DOOR(7)
static const providers_function door_functions[DOORS] = {door0, door1, door2, door3,
                                                         door4, door5, door6, door7};

static const char *const names[] = {"QnnInterface_getProviders", "QnnSystemInterface_getProviders"};
typedef void *(*dlsym_function)(void *, const char *);

static dlsym_function real_dlsym(void) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    static _Atomic(dlsym_function) found;
    dlsym_function real = atomic_load(&found);
    unsigned i;
    for (i = 0; real == NULL && i < sizeof versions / sizeof *versions; i++) {
        real = (dlsym_function)(uintptr_t)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    }
    atomic_store(&found, real);
    return real;
}

/* For programs that are linked with the library. Where that is not behind us in the order of the
 * loader (a plugin brought it along), the caller's own object finds it. */
static word linked(int which, void *self, void *caller, const void ***list, uint32_t *count) {
    void *real = real_dlsym()(RTLD_NEXT, names[which]), *object;
    Dl_info found;
    if (real == NULL && dladdr(caller, &found) && found.dli_fname) {
        object = dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        if (object != NULL) {
            real = real_dlsym()(object, names[which]);
            dlclose(object);
        }
    }
    return real == NULL || real == self ? 1000 : providers(which, real, list, count);
}

API word QnnInterface_getProviders(const void ***list, uint32_t *count) {
    void *self = (void *)(uintptr_t)QnnInterface_getProviders;
    return linked(0, self, __builtin_return_address(0), list, count);
}

API word QnnSystemInterface_getProviders(const void ***list, uint32_t *count) {
    void *self = (void *)(uintptr_t)QnnSystemInterface_getProviders;
    return linked(1, self, __builtin_return_address(0), list, count);
}

static void *through_door(int which, void *real) {
    int i;
    void *none;
    if (real == NULL || real == (void *)(uintptr_t)QnnInterface_getProviders ||
        real == (void *)(uintptr_t)QnnSystemInterface_getProviders) {
        return real;
    }
    for (i = 0; i < DOORS; i++) {
        none = NULL;
        doors[i].which = atomic_load(&doors[i].real) == NULL ? which : doors[i].which;
        if (atomic_compare_exchange_strong(&doors[i].real, &none, real) || none == real) {
            return (void *)(uintptr_t)door_functions[i];
        }
    }
    return real;
}

/* Any other name goes on as a jump and not as a call: with RTLD_NEXT the loader looks who asks. */
API void *dlsym(void *handle, const char *name) {
    if (name[0] == 'Q' && socket_path[0]) {
        if (strcmp(name, names[0]) == 0) return through_door(0, real_dlsym()(handle, name));
        if (strcmp(name, names[1]) == 0) return through_door(1, real_dlsym()(handle, name));
    }
    return real_dlsym()(handle, name);
}

/* --- Beginning ------------------------------------------------------------------------------ */

static void forked(void) {
    atomic_fetch_add(&generation, 1);
    forked_from = getppid();
}

static void map_counters(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *found = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof own_counters, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (found != MAP_FAILED) counters = found;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("QNNMEM_WATCH_SOCKET"), *counts = getenv("QNNMEM_WATCH_COUNTERS");
    const char *parent = getenv("QNNMEM_WATCH_PARENT");
    void *frame[1];
    if (path == NULL || counts == NULL || strlen(path) >= sizeof socket_path) return;
    backtrace(frame, 1); /* loads the unwinder now and not inside of somebody's call */
    map_counters(counts);
    pthread_key_create(&at_thread_end, end_thread);
    pthread_atfork(NULL, NULL, forked);
    /* Whoever started the program to watch it takes it along when it is killed. */
    if (parent != NULL && getppid() == (pid_t)atol(parent)) prctl(PR_SET_PDEATHSIG, SIGKILL);
    strcpy(socket_path, path);
}
