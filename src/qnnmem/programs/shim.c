/* The client's side of `qnnmem check-client`: sends calls of QNN's functions to the checker.
 *
 * This source makes three objects. Without STUB, it is the preloaded object, which holds the tables
 * of functions and sees what is allocated and freed. With -DSTUB=0 it is libQnnLpai.so, with
 * -DSTUB=1 libQnnSystem.so: the client can open and close them, and they return the same tables.
 *
 * This code does not parse QNN's structs. A call is sent as 64-bit words over a socket, with one
 * connection for each thread. While it waits, the checker reads and writes this process's memory. */
#define _GNU_SOURCE
#include <stdint.h>

#define API __attribute__((visibility("default")))
typedef uint64_t word;

word qnnmem_client_providers(int which, const void ***list, uint32_t *count)
    __attribute__((weak));
void qnnmem_client_opened(int which) __attribute__((weak));
void qnnmem_client_closed(int which) __attribute__((weak));

#ifdef STUB

#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "ledger.h"
#include "takes.h"

#if STUB == 0
#define PROVIDERS QnnInterface_getProviders
#define NAMES BACKEND_NAMES
#define FUNCTIONS_AT 5 /* words into the table of a provider */
#else
#define PROVIDERS QnnSystemInterface_getProviders
#define NAMES SYSTEM_NAMES
#define FUNCTIONS_AT 4
#endif

API word PROVIDERS(const void ***list, uint32_t *count);

word PROVIDERS(const void ***list, uint32_t *count) {
    if (qnnmem_client_providers) return qnnmem_client_providers(STUB, list, count);
    /* The preloaded object is missing: the program removed LD_PRELOAD. */
    map_ledger();
    if (ledger == NULL) {
        static const char text[] = "qnnmem: run this program with `qnnmem check-client`\n";
        if (write(2, text, sizeof text - 1) < 0) abort();
        abort(); /* its calls would go unchecked without a word */
    }
    ledger->unpreloaded++;
    return 1000;
}

/* --- The functions by name, for programs that are linked with the library -------------------- */

static word refused(void) { return 1000; }

static void *function(int number) {
    const void **list = NULL;
    uint32_t count = 0;
    if (PROVIDERS(&list, &count) || count == 0) return (void *)(uintptr_t)refused;
    return ((void *const *)list[0])[FUNCTIONS_AT + number % 100];
}

#define EXPORT(n, k, name)                                       \
    API word name(TAKES##k);                                     \
    word name(TAKES##k) { return ((word(*)(TAKES##k))(uintptr_t)function(n))(GIVES##k); }
NAMES(EXPORT, EXPORT)

__attribute__((constructor)) static void opened(void) {
    if (qnnmem_client_opened) qnnmem_client_opened(STUB);
}

__attribute__((destructor)) static void closed(void) {
    if (qnnmem_client_closed) qnnmem_client_closed(STUB);
}

#else

#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <ucontext.h>

#define UNDELIVERED "qnnmem: a call did not reach the checker and was answered 1007\n"
#include "line.h"

enum { WATCHED = 1024, RING = 256, BLOCKS = 1 << 17, PROBES = 8, LARGEST_TEXT = 2048 };
enum { GUARD = 16, GUARDED = 128, TRACED = 32, PAGE = 4096, ISOLATED = 64, MOST_ISOLATED = 4096, RANGES = 512 };
enum { CALL = HELLO + 1, STACK, FREED, CLOSED, DONE, CRASHED, WROTE, ENDED, REENTERED, CAUGHT }; /* to the checker */
enum { ANSWER, SEND_STACK, ALLOCATE, RELEASE, LOG, NOTIFY, PROTECT };          /* from the checker */
enum { CLOSE_WRITES, CLOSE_ALL, OPEN };                             /* what PROTECT does */
enum { LIBRARY_CLOSED = 1, OVERRUN = 2, IN_HANDLER = 4, IN_CALLBACK = 8 }; /* flags in the first word of a call, below the stack pointer */
enum { LOST = 1007, EXECUTE_ASYNC = 22, PROTECTED = 4, CRASH_ROLE = 2 };

typedef struct { word start, size, caller; } block;

/* The checker reads all of this, and writes the watched ranges, the epoch and the guards. */
static struct {
    word watch_count, lowest, highest;
    word watch[WATCHED][2];
    _Atomic word dropped, ring_next;
    block ring[RING];      /* the blocks that were freed last */
    block blocks[BLOCKS];  /* live blocks, a hash table by `start`; 0 is empty */
    word epoch;            /* flag for the callers of new blocks: the program has queried the alignment */
    word guard_count, guard[GUARDED]; /* patterns beside blocks that the program passed to QNN */
    word arena;            /* address of the blocks on pages of their own; 0: none */
    word range_count;
    struct { word low, high, has_ended; } ranges[RANGES]; /* memory of threads: stack and thread-local variables */
} shared;

static _Atomic word last_caller; /* return address of the previous QNN call */
static const unsigned char guard_bytes[GUARD + 1] = "\xa5qnnmem guard\xa5\x5a\xa5";

/* Memory whose next use is reported; `is_open`: it was used since it was last closed. */
static struct { word start, size; _Atomic int is_open; } traced[TRACED];
static int tracing;
static __thread word retried; /* address of the last fault that another thread opened */
static char alternate_stack[1 << 16];

static struct {
    void *(*malloc)(size_t), *(*calloc)(size_t, size_t), *(*realloc)(void *, size_t);
    void *(*memalign)(size_t, size_t), *(*aligned_alloc)(size_t, size_t);
    void (*free)(void *);
    int (*posix_memalign)(void **, size_t, size_t);
    size_t (*usable)(void *);
    int (*munmap)(void *, size_t);
    void *(*mremap)(void *, size_t, size_t, int, ...);
} real;

static const int deadly[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}; /* end the program */
static int is_watched[sizeof deadly / sizeof *deadly];
static _Atomic int ending, open_count[2], was_open[2];
static __thread int busy, in_callback;
static __thread word reentered[2]; /* a call from a signal handler during another call: 1 + its function, and its caller */

/* Thread-local variables lie above the stack in the same mapping: the range of the stack excludes them. */
static int without_locals(struct dl_phdr_info *object, size_t size, void *range) {
    word at = (word)(uintptr_t)object->dlpi_tls_data, low = ((word *)range)[0];
    (void)size;
    if (at > low && at - low < ((word *)range)[1]) ((word *)range)[1] = at - low;
    return 0;
}

static int greet(int fd, int role) {
    pthread_attr_t attr;
    void *low = NULL;
    size_t size = 0;
    if (role != CRASH_ROLE && pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstack(&attr, &low, &size);
        pthread_attr_destroy(&attr);
    }
    word range[2] = {(word)(uintptr_t)low, (word)size};
    if (role != CRASH_ROLE) dl_iterate_phdr(without_locals, range);
    word words[] = {WHO(role), range[0], range[1], (word)(uintptr_t)&shared, sizeof shared};
    return send_words(fd, HELLO, 0, words, sizeof words / sizeof *words);
}

/* --- Memory whose next use is reported -------------------------------------------------------- */

static int set_protection(word start, word size, int protection) {
    word low = start / PAGE * PAGE, high = (start + size + PAGE - 1) / PAGE * PAGE;
    return (int)syscall(SYS_mprotect, low, high - low, protection);
}

static void trace(word start, word size, word how) {
    int i, at = -1;
    if (!is_watched[0]) return; /* a sanitizer handles SIGSEGV */
    for (i = TRACED - 1; i >= 0; i--) {
        int is_free = traced[i].size == 0 || atomic_load(&traced[i].is_open);
        if (traced[i].start == start || (at < 0 && is_free)) at = i;
    }
    if (at < 0) return;
    if (how == OPEN) {
        if (traced[at].start != start || traced[at].size == 0) return;
        if (!atomic_exchange(&traced[at].is_open, 1)) set_protection(start, size, PROT_READ | PROT_WRITE);
        return;
    }
    traced[at].start = start;
    traced[at].size = size;
    atomic_store(&traced[at].is_open, 0);
    set_protection(start, size, how == CLOSE_ALL ? PROT_NONE : PROT_READ);
}

/* Opens the closed memory that shares a page with a range; returns its index, or -1 if there is none.
 * TRACED: another thread has just opened it, so the access may succeed now. */
static int open_traced(word start, word size) {
    int i, found = -1;
    for (i = 0; i < TRACED; i++) {
        word low = traced[i].start / PAGE * PAGE, high = (traced[i].start + traced[i].size + PAGE - 1) / PAGE * PAGE;
        if (traced[i].size == 0 || start >= high || start + size <= low) continue;
        if (atomic_exchange(&traced[i].is_open, 1)) {
            if (found < 0 && retried != start) found = TRACED;
            continue;
        }
        set_protection(traced[i].start, traced[i].size, PROT_READ | PROT_WRITE);
        found = i;
    }
    return found;
}

/* --- Demands of the checker while a call waits ---------------------------------------------- */

typedef void (*log_function)(const char *, uint32_t, word, va_list);
typedef struct { word error; } notify_status;
typedef void (*notify_function)(void *, notify_status);

static void log_line(log_function to, uint32_t level, word when, ...) {
    va_list list;
    va_start(list, when);
    to("%s", level, when, list);
    va_end(list);
}

/* Carries out one demand; returns 0 if the connection cannot be used any longer. */
static int serve(int fd, const reply *asked) {
    char text[LARGEST_TEXT + 1];
    int process = atomic_load(&generation);
    word answer = 0, stack[FRAMES];
    size_t extra = asked->length - sizeof *asked;
    if (asked->length < sizeof *asked || extra > LARGEST_TEXT || !receive_all(fd, text, extra)) {
        return 0;
    }
    text[extra] = 0;
    switch (asked->action) {
    case SEND_STACK:
        return send_words(fd, STACK, 0, stack, add_stack(stack, 0));
    case ALLOCATE:
        answer = (word)(uintptr_t)real.calloc(1, asked->a);
        break;
    case RELEASE:
        real.free((void *)(uintptr_t)asked->a);
        break;
    case LOG:
        busy--; /* the program's own code runs: report what it frees */
        log_line((log_function)(uintptr_t)asked->a, (uint32_t)asked->b, asked->c, text);
        busy++;
        break;
    case NOTIFY: {
        notify_status status = {asked->c};
        busy--;
        in_callback++;
        ((notify_function)(uintptr_t)asked->a)((void *)(uintptr_t)asked->b, status);
        in_callback--;
        busy++;
        break;
    }
    case PROTECT:
        trace(asked->a, asked->b, asked->c);
        break;
    default:
        return 0;
    }
    /* The callback forked and this is the child: the connection belongs to its parent. */
    return process == atomic_load(&generation) && send_words(fd, DONE, 0, &answer, 1);
}

/* Waits for the answer to a message; returns 0 if none comes. */
static int answered(int fd, word *code) {
    int process = atomic_load(&generation);
    reply got;
    for (;;) {
        if (!receive_all(fd, &got, sizeof got)) break;
        if (got.action == ANSWER) return *code = got.a, 1;
        if (!serve(fd, &got)) break;
    }
    return process != atomic_load(&generation); /* in a forked child: the answer is for its parent */
}

/* Sends a message and returns its answer; counts the message as lost if it cannot be delivered. */
static word ask(int kind, int function, const word *words, size_t count) {
    word code = LOST;
    if (connected() >= 0 && send_words(connection, kind, function, words, count) &&
        answered(connection, &code)) {
        return code;
    }
    end_line();
    count_lost();
    return code;
}

static _Atomic int started_in; /* generation of the process whose notification thread runs */

typedef struct { int fd; ino_t inode; } notifier_line;

/* Runs when the connection ends, and when a callback ends the thread (pthread_exit). */
static void end_notifier(void *ended) {
    notifier_line *line = (notifier_line *)ended;
    atomic_store(&started_in, 0);
    if (inode_of(line->fd) == line->inode) close(line->fd);
}

static void *notifier(void *number) {
    notifier_line line = {(int)(intptr_t)number, inode_of((int)(intptr_t)number)};
    reply got;
    busy = 1;
    pthread_cleanup_push(end_notifier, &line);
    while (receive_all(line.fd, &got, sizeof got) && serve(line.fd, &got)) {
    }
    pthread_cleanup_pop(1);
    return NULL;
}

/* Starts the thread that runs notifications; a real library has such a thread, too. */
static void start_notifier(void) {
    pthread_t thread;
    word code = LOST;
    sigset_t all, before;
    unsigned i;
    int fd;
    pthread_mutex_lock(&lock);
    if (started_in != atomic_load(&generation) && (fd = open_line(1)) >= 0) {
        sigfillset(&all);
        for (i = 0; i < sizeof deadly / sizeof *deadly; i++) sigdelset(&all, deadly[i]);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        /* The checker must know this connection before an execution ends and needs it. */
        if (answered(fd, &code) && code == 0 && pthread_create(&thread, NULL, notifier, (void *)(intptr_t)fd) == 0) {
            pthread_detach(thread);
            started_in = atomic_load(&generation);
        } else {
            close(fd);
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    pthread_mutex_unlock(&lock);
}

/* Returns the address of the first overwritten guard, or 0. The kernel reads the guards, because
 * another thread may unmap one at any time. */
static word broken_guard(void) {
    unsigned char found[GUARDED][GUARD];
    struct iovec here = {found, 0}, there[GUARDED];
    word count = shared.guard_count, i;
    ssize_t got;
    if (count == 0 || count > GUARDED) return 0;
    for (i = 0; i < count; i++) {
        there[i].iov_base = (void *)(uintptr_t)shared.guard[i];
        there[i].iov_len = GUARD;
    }
    here.iov_len = count * GUARD;
    got = process_vm_readv(getpid(), &here, 1, there, count, 0);
    for (i = 0; got >= (ssize_t)((i + 1) * GUARD); i++) {
        if (memcmp(found[i], guard_bytes, GUARD) != 0) return (word)(uintptr_t)there[i].iov_base;
    }
    return 0;
}

static void at_end(void) {
    word words[] = {broken_guard(), last_caller}, code;
    atomic_store(&ending, 1);
    if (busy || is_stray()) return;
    busy++;
    if (connected() >= 0 && send_words(connection, ENDED, 0, words, 2)) answered(connection, &code);
    busy--;
}

/* Exit handlers run in reverse order: registered late, this one runs before the program's objects end. */
static void at_first_call(void) { atexit(at_end); }

/* Returns 1 if a signal handler made this call; caches the answer by caller and stack pointer. */
static int in_handler(word caller, word stack) {
#if defined __x86_64__
    static const unsigned char resume[] = {0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05}; /* rt_sigreturn */
#else
    static const unsigned char resume[] = {0x68, 0x11, 0x80, 0xd2, 1, 0, 0, 0xd4};
#endif
    static _Atomic word known[256];
    word key = caller * 0x9E3779B97F4A7C15u ^ stack;
    void *frames[FRAMES];
    int depth, i;
    if (atomic_exchange_explicit(&known[key >> 4 & 255], key, memory_order_relaxed) == key) return 0;
    depth = backtrace(frames, FRAMES);
    for (i = 0; i < depth && memcmp(frames[i], resume, sizeof resume) != 0; i++) {
    }
    if (i < depth) atomic_store_explicit(&known[key >> 4 & 255], 0, memory_order_relaxed);
    return i < depth;
}

static word call(int function, size_t count, const word *words, void *caller, void *frame) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int which = function >= FIRST_SYSTEM, saved = errno;
    word out[14], code, broken, stack = (word)(uintptr_t)frame & ~(word)15;
    count_made();
    /* A signal handler may have interrupted another message: report this call after that one. */
    if (busy && !is_stray()) {
        reentered[1] = (word)(uintptr_t)caller;
        reentered[0] = (word)function + 1;
    }
    if (busy || is_stray()) return count_lost(), errno = saved, LOST;
    busy++;
    pthread_once(&once, at_first_call);
    out[0] = stack | (atomic_load(&was_open[which]) && atomic_load(&open_count[which]) <= 0 ? LIBRARY_CLOSED : 0);
    if (in_handler((word)(uintptr_t)caller, stack)) out[0] |= IN_HANDLER;
    if (in_callback) out[0] |= IN_CALLBACK;
    memcpy(out + 1, words, count * sizeof *words);
    if ((broken = broken_guard()) != 0) {
        out[0] |= OVERRUN;
        out[++count] = broken;
        out[++count] = last_caller;
    }
    if (function == EXECUTE_ASYNC) start_notifier();
    code = ask(CALL, function, out, count + 1);
    if (reentered[0]) {
        word inner[] = {reentered[0] - 1, reentered[1]}, answer;
        reentered[0] = 0;
        if (connected() >= 0 && send_words(connection, REENTERED, function, inner, 2)) answered(connection, &answer);
    }
    last_caller = (word)(uintptr_t)caller;
    busy--;
    errno = saved;
    return code;
}

/* --- The tables of functions ---------------------------------------------------------------- */

#define CALLER __builtin_return_address(0)
#define SEND(n, takes, ...)                                   \
    static word f##n takes {                                  \
        word words[] = {__VA_ARGS__};                         \
        return call(n, sizeof words / sizeof *words, words, CALLER, __builtin_frame_address(0)); \
    }
#define F(s, n, k) SEND(n, (TAKES##k), GIVES##k)
#define V(s, n, k) SEND(n, (TAKES##k), WORDS##k)
#define NEWEST(F, s) F(s, 70, 1) F(s, 72, 1) F(s, 73, 1) F(s, 74, 1) /* these functions are all refused */
BACKEND_FUNCTIONS(F, V, )
NEWEST(F, )
SYSTEM_FUNCTIONS(F, V, )
F(, 199, 1)

#define P(n) (void *)(uintptr_t)f##n
#define AT(s, n, k) [n % FIRST_SYSTEM] = P(n),
typedef struct {
    uint32_t id;
    const char *name;
    uint32_t core[3], backend[3];
    void *functions[80];
} backend_interface;

static const backend_interface backend = {
    12, "LPAI_QTI_AISW", {2, 40, 0}, {2, 33, 0}, {BACKEND_FUNCTIONS(AT, AT, ) NEWEST(AT, )}};

#define NONE P(199), P(199), P(199), P(199), P(199), P(199), P(199), P(199)
typedef struct {
    uint32_t id;
    const char *name;
    uint32_t version[3];
    void *functions[40];
} system_interface;

static const system_interface system_table = {
    0, "SYSTEM_QTI_AISW", {1, 15, 0},
    {SYSTEM_FUNCTIONS(AT, AT, ) NONE, NONE, NONE}};

_Static_assert(offsetof(backend_interface, functions) == 40, "where QNN has its functions");
_Static_assert(offsetof(system_interface, functions) == 32, "where QNN has its functions");

API word qnnmem_client_providers(int which, const void ***list, uint32_t *count) {
    static const void *backends[] = {&backend}, *systems[] = {&system_table};
    if (list == NULL || count == NULL) return 1004;
    *list = which ? systems : backends;
    *count = 1;
    return 0;
}

API void qnnmem_client_opened(int which) {
    note_process();
    atomic_store(&was_open[which], 1);
    atomic_fetch_add(&open_count[which], 1);
}

API void qnnmem_client_closed(int which) {
    word words[FRAMES + 1] = {(word)which};
    /* Every library is closed when the process ends; that is no mistake. */
    if (atomic_fetch_sub(&open_count[which], 1) > 1 || atomic_load(&ending)) return;
    if (own_row == NULL || busy || is_stray()) return; /* this thread never called QNN */
    busy++;
    ask(CLOSED, 0, words, add_stack(words, 1));
    busy--;
}

#include "threads.h"
#include "heap.h"

/* --- Other libraries of the same name -------------------------------------------------------- */

static int is_ours(const char *path) {
    char own[sizeof socket_path];
    return beside(own, sizeof own, "/libQnn") && strncmp(path, own, strlen(own)) == 0;
}

static void count_foreign(void) {
    if (ledger != NULL) atomic_fetch_add(&ledger->foreign, 1);
}

/* Only QNN for LPAI is checked; a program may also use other backends. */
static int is_lpai(const char *path) {
    const char *name = strrchr(path, '/');
    name = name == NULL ? path : name + 1;
    return strncmp(name, "libQnnLpai", 10) == 0 || strncmp(name, "libQnnSystem", 12) == 0;
}

static void *providers_found(int which, void *real) {
    Dl_info found;
    (void)which;
    if (real != NULL && dladdr(real, &found) && found.dli_fname != NULL &&
        is_lpai(found.dli_fname) && !is_ours(found.dli_fname)) {
        count_foreign();
    }
    return real;
}

static int linked_with(struct dl_phdr_info *object, size_t size, void *unused) {
    (void)size, (void)unused;
    if (is_lpai(object->dlpi_name) && !is_ours(object->dlpi_name)) count_foreign();
    return 0;
}

#include "signals.h"

/* A debugger would stop at every fault. */
static int is_debugged(void) {
    char text[1024] = "";
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    return got <= 0 || strstr(text, "TracerPid:\t0\n") == NULL;
}

/* --- Start ---------------------------------------------------------------------------------- */

__attribute__((constructor)) static void begin(void) {
    resolve();
    pthread_key_create(&at_range_end, end_range);
    if (__sanitizer_install_malloc_and_free_hooks) {
        __sanitizer_install_malloc_and_free_hooks(hooked_malloc, hooked_free);
    }
    begin_line();
    if (ledger != NULL) {
        char name[sizeof socket_path];
        struct stat found;
        tracing = beside(name, sizeof name, "/trace") && access(name, F_OK) == 0;
        if (beside(name, sizeof name, "/alignment") && stat(name, &found) == 0) required = (word)found.st_size;
        watch_signals();
        if (is_watched[0] && !is_debugged()) reserve_arena();
    }
    dl_iterate_phdr(linked_with, NULL);
}

#endif
