/* The program's side of `qnnmem watch`: a preloaded object between a program and its QNN library.
 *
 * A lookup of QnnInterface_getProviders returns our function. It returns copies of the library's
 * tables, with a wrapper in place of each function whose arguments are known. A wrapper counts and
 * times the call. At the start, qnnmem chooses what else the wrapper of each function does: ask
 * before the call (and perhaps answer it), report it afterwards, send the call stack. This code
 * does not parse QNN's structs. The ledger counts the calls that qnnmem did not hear of. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define API __attribute__((visibility("default")))
typedef uint64_t word;

#define UNDELIVERED "" /* the program continues unwatched */
#include "line.h"
#include "python_frames.h"

enum { SLOTS = 4, SYSTEM_SLOTS = 2, DOORS = 8, LOGS = 8, TEXT = 2000 };
enum { BACKEND_ENTRIES = 75, SYSTEM_ENTRIES = 40 };
enum { LIBRARY = HELLO + 1, ASK, TOLD, LOGGED, PYTHON_LINES, WAITED };   /* to qnnmem */
enum { GO, ANSWER };                                                     /* from qnnmem */
enum { ASKS = 1, TELLS = 2, STACK = 4, WAITS = 8, TURN = 16,
       FIRST = 32, IO = 64 };                                            /* modes of a function */
#define IS_LOG(n) ((n) == 25 || (n) == 105) /* QnnLog_create, QnnSystemLog_create */
enum { TENSOR_TYPE = 24, APP_READ = 1 }; /* in Qnn_Tensor_t; APP_WRITE is 0 */
enum { SAMPLE = 16, QUICK_NS = 2000, LONGEST_TURN_S = 60 };

#define counters ledger->functions /* a process without a ledger has no wrappers */
static _Atomic uint8_t quick[COUNTED]; /* 1 if the last timed call was quick */
static struct { uint8_t mode, out; } plan[COUNTED]; /* `out` is 1 + the argument with a handle */
static struct { const void *interface; void *real[80]; char copy[40 + 8 * 80]; } slots[SLOTS + SYSTEM_SLOTS];
static const void *views[SLOTS + SYSTEM_SLOTS];
static struct { void *real; int which; } doors[DOORS];

/* --- Connection to qnnmem ------------------------------------------------------------------- */

static word read_clock(clockid_t which) {
    struct timespec at;
    clock_gettime(which, &at);
    return (word)at.tv_sec * 1000000000u + (word)at.tv_nsec;
}

static word now(void) { return read_clock(CLOCK_MONOTONIC); }

/* Receives an answer; returns 0 if none comes. */
static int answered(int fd, reply *got, void *text, size_t size) {
    return receive_all(fd, got, sizeof *got) && got->length - sizeof *got == size &&
           receive_all(fd, text, size);
}

static int greet(int fd, int role) {
    word words[] = {WHO(role)};
    reply got;
    return send_words(fd, HELLO, 0, words, sizeof words / sizeof *words) &&
           answered(fd, &got, plan, sizeof plan);
}

static __thread int talking; /* a signal handler may interrupt a message */

/* Sends a message; counts it as lost if it cannot be delivered, and the program continues. */
static reply tell_or_ask(int kind, int function, const word *words, size_t count, int waits) {
    reply got = {0, GO, 0, 0, 0};
    int saved = errno, is_free = !talking && !is_stray();
    count_made();
    talking++;
    if (!is_free || connected() < 0 || !send_words(connection, kind, function, words, count) ||
        (waits && !answered(connection, &got, NULL, 0))) {
        if (is_free) end_line();
        count_lost();
        got.action = GO;
    }
    talking--;
    errno = saved;
    return got;
}

/* --- What the library logs ------------------------------------------------------------------ */

typedef void (*log_function)(const char *, uint32_t, word, va_list);
static struct { int used; log_function real; } logs[LOGS];

static void log_line(int at, const char *format, uint32_t level, word when, va_list list) {
    word words[3 + TEXT / 8 + 1] = {now(), level};
    char *text = (char *)&words[3];
    va_list again;
    int length;
    va_copy(again, list);
    length = vsnprintf(text, TEXT + 1, format, again);
    va_end(again);
    length = length < 0 ? 0 : length > TEXT ? TEXT : length;
    text[length] = 0;
    words[2] = (word)length;
    tell_or_ask(LOGGED, 0, words, 3 + (size_t)(length + 7) / 8, 0);
    if (logs[at].real != NULL) logs[at].real(format, level, when, list);
    else printf("qnn [%u] %s\n", level, text); /* the library itself would print it */
}

#define LOG(k)                                                                    \
    static void logger##k(const char *format, uint32_t level, word when, va_list list) { \
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

typedef struct { word begin, end; int slot, function, mode, count, weight; word *words; int has_turn; } seen;
static pthread_mutex_t turn = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; /* for --serialise: one call at a time */

/* Waits while another call runs. The time is limited: that call may itself wait for this thread. */
static void take_turn(seen *at) {
    struct timespec end;
    word words[3] = {0, now(), 0};
    if ((at->has_turn = pthread_mutex_trylock(&turn) == 0)) return;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += LONGEST_TURN_S;
    at->has_turn = pthread_mutex_timedlock(&turn, &end) == 0;
    words[2] = now() - words[1];
    words[0] = (word)at->has_turn;
    tell_or_ask(WAITED, at->function, words, 3, 0);
}

static void fresh_turn(void) { turn = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; }

static void tell_python(const char *text, size_t size) {
    word words[1 + (LINE + 100) / 8 + 1] = {(word)size};
    memcpy(&words[1], text, size);
    tell_or_ask(PYTHON_LINES, 0, words, 1 + (size + 7) / 8, 0);
}

static void tell(const seen *at, word code, int injected) {
    word out[FRAMES + 24] = {(word)at->slot, at->begin, at->end, code, 0, 0, (word)at->count};
    int waits = at->mode & WAITS, handle = plan[at->function].out;
    size_t count = 7 + (size_t)at->count;
    if (handle && code == 0 && at->words[handle - 1]) {
        out[5] = *(const word *)(uintptr_t)at->words[handle - 1];
    }
    memcpy(out + 7, at->words, (size_t)at->count * sizeof *out);
    if ((at->mode & STACK) || (code != 0 && ((at->mode & TELLS) || injected))) {
        count = add_stack(out, count);
        python_frames(tell_python);
        waits = 1; /* qnnmem looks things up in this process, which must not end */
    }
    out[4] = (word)(injected | (waits ? 2 : 0));
    tell_or_ask(TOLD, at->function, out, count, waits);
}

/* Returns 1 for the first call on a handle, whose arguments qnnmem wants to see. Two handles that
 * share an entry of the table replace each other. */
static int is_first(word handle) {
    static _Atomic word known[256];
    _Atomic word *at = &known[(handle ^ handle >> 8 ^ handle >> 16) % 256];
    return atomic_exchange_explicit(at, handle, memory_order_relaxed) != handle;
}

/* Returns 1 if the tensor of a call is an input or output of its graph: only those are reported. */
static int is_io(const seen *at) {
    return at->words[1] && *(const uint32_t *)(uintptr_t)(at->words[1] + TENSOR_TYPE) <= APP_READ;
}

/* Starts a call that is only counted. If the function is as quick as reading the clock, one timed call
 * stands for several. The other calls read the coarse clock, which may be milliseconds late, so that
 * log lines of the call never appear before it. */
static void count_call(seen *at) {
    word earlier = atomic_fetch_add_explicit(&counters[at->function].count, 1, memory_order_relaxed);
    if (atomic_load_explicit(&quick[at->function], memory_order_relaxed)) {
        at->weight = earlier % SAMPLE ? 0 : SAMPLE;
    }
    at->begin = at->weight ? now() : read_clock(CLOCK_MONOTONIC_COARSE);
}

/* Returns 1 if the real function must be called; otherwise `code` is the answer. */
__attribute__((noinline)) static int before(seen *at, word *code) {
    at->mode = plan[at->function].mode;
    if (at->mode == 0) {
        count_call(at);
        return 1;
    }
    if ((at->mode & ASKS) && (!(at->mode & FIRST) || is_first(at->words[0]))) {
        word out[16] = {(word)at->slot, now()};
        reply got;
        memcpy(out + 2, at->words, (size_t)at->count * sizeof *out);
        got = tell_or_ask(ASK, at->function, out, (size_t)at->count + 2, 1);
        if (got.action == ANSWER) {
            atomic_fetch_add_explicit(&counters[at->function].count, 1, memory_order_relaxed);
            atomic_fetch_add_explicit(&counters[at->function].failed, 1, memory_order_relaxed);
            at->begin = at->end = out[1];
            *code = got.a;
            tell(at, *code, 1);
            return 0;
        }
    }
    if (IS_LOG(at->function)) at->words[0] = log_through(at->words[0]);
    if (at->mode & TURN) take_turn(at);
    at->begin = now();
    return 1;
}

__attribute__((noinline)) static word after(seen *at, word code) {
    word took;
    if (at->has_turn) pthread_mutex_unlock(&turn);
    if (at->weight == 0 && code == 0) return 0;
    at->end = now();
    took = at->end - at->begin;
    if (at->mode == 0) atomic_store_explicit(&quick[at->function], took < QUICK_NS, memory_order_relaxed);
    else atomic_fetch_add_explicit(&counters[at->function].count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&counters[at->function].ns, took * (word)at->weight, memory_order_relaxed);
    if (code != 0) {
        atomic_fetch_add_explicit(&counters[at->function].failed, 1, memory_order_relaxed);
    }
    if (((at->mode & TELLS) && (!(at->mode & IO) || is_io(at))) || code != 0) tell(at, code, 0);
    return code;
}

/* --- Wrappers: slot `s`, function `n`, and its parameters ------------------------------------ */

#define AROUND(s, n, takes, gives, ...)                                                  \
    static word w##s##_##n takes {                                                       \
        word words[] = {__VA_ARGS__}, code;                                              \
        seen at = {0, 0, s, n, 0, sizeof words / sizeof *words, 1, words, 0};             \
        if (!before(&at, &code)) return code;                                            \
        if (IS_LOG(n)) a = words[0];                                                     \
        return after(&at, ((word(*) takes)slots[s].real[(n) % FIRST_SYSTEM])gives);      \
    }
#define F(s, n, k) AROUND(s, n, (TAKES##k), (GIVES##k), GIVES##k)
#define V(s, n, k) AROUND(s, n, (TAKES##k), (GIVES##k), WORDS##k)
#define BACKEND(s) BACKEND_FUNCTIONS(F, V, s)
#define SYSTEM(s) SYSTEM_FUNCTIONS(F, V, s)
BACKEND(0) BACKEND(1) BACKEND(2) BACKEND(3) SYSTEM(4) SYSTEM(5)

#define AT(s, n, k) [n % FIRST_SYSTEM] = (void *)(uintptr_t)w##s##_##n,
#define ROW(s) {BACKEND_FUNCTIONS(AT, AT, s)}
#define SYSTEM_ROW(s) {SYSTEM_FUNCTIONS(AT, AT, s)}
static void *const wrappers[SLOTS + SYSTEM_SLOTS][80] = {
    ROW(0), ROW(1), ROW(2), ROW(3), SYSTEM_ROW(4), SYSTEM_ROW(5)};

/* --- Tables for the program ------------------------------------------------------------------ */

/* Fills a slot again: another library may have been loaded at the address of a closed one. */
static void fill(int slot, const void *interface) {
    int which = slot >= SLOTS, i, entries = which ? SYSTEM_ENTRIES : BACKEND_ENTRIES, fd;
    size_t at = which ? 32 : 40, size = at + 8 * (size_t)entries;
    ssize_t got = -1;
    char copy[sizeof slots[slot].copy] = {0};
    fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC); /* an older library has a shorter table */
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
    int first = which ? SLOTS : 0, end = which ? SLOTS + SYSTEM_SLOTS : SLOTS, slot;
    uint32_t i;
    const void **given = *list;
    if (count == 0) return;
    note_process();
    pthread_mutex_lock(&lock);
    for (slot = first; slot < end && slots[slot].interface && slots[slot].interface != given[0]; slot++) {
    }
    /* Tables of one library are adjacent. If no slot is free, the program gets the real tables. */
    if (count <= (uint32_t)(end - slot)) {
        for (i = 0; i < count; i++) {
            word words[] = {(word)(slot + (int)i), (word)which, (word)(uintptr_t)given[i]};
            tell_or_ask(LIBRARY, 0, words, 3, 1);
            fill(slot + (int)i, given[i]);
        }
        *list = &views[slot];
    } else {
        atomic_fetch_add(&ledger->foreign, 1);
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
        return providers(doors[k].which, doors[k].real, list, count); \
    }
DOOR(0) DOOR(1) DOOR(2) DOOR(3) DOOR(4) DOOR(5) DOOR(6) DOOR(7)
static const providers_function door_functions[DOORS] = {door0, door1, door2, door3,
                                                         door4, door5, door6, door7};

/* For programs that are linked with the library. If a plugin brought the library along, RTLD_NEXT does
 * not find it, and the lookup starts from the caller's object. */
static word linked(int which, void *self, void *caller, const void ***list, uint32_t *count) {
    void *real = real_dlsym()(RTLD_NEXT, provider_names[which]), *object;
    Dl_info found;
    if (real == NULL && dladdr(caller, &found) && found.dli_fname) {
        object = dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        if (object != NULL) {
            real = real_dlsym()(object, provider_names[which]);
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

static void *providers_found(int which, void *real) {
    void *found = real;
    int i;
    if (real == NULL || real == (void *)(uintptr_t)QnnInterface_getProviders ||
        real == (void *)(uintptr_t)QnnSystemInterface_getProviders) {
        return real;
    }
    pthread_mutex_lock(&lock);
    for (i = 0; i < DOORS && doors[i].real && doors[i].real != real; i++) {
    }
    if (i < DOORS) {
        doors[i].real = real;
        doors[i].which = which;
        found = (void *)(uintptr_t)door_functions[i];
    } else if (ledger != NULL) {
        atomic_fetch_add(&ledger->foreign, 1);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* --- Start ---------------------------------------------------------------------------------- */

__attribute__((constructor)) static void begin(void) {
    begin_line();
    pthread_atfork(NULL, NULL, fresh_turn); /* its owner does not exist in the child */
}
