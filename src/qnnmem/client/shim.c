/* The client's side of `qnnmem check-client`: QNN's functions, sent to the process that decides.
 *
 * One source, three objects. As it is, it is preloaded: it holds the tables of functions and sees
 * what is allocated and freed. With -DSTUB=0 it is libQnnLpai.so, with -DSTUB=1 libQnnSystem.so:
 * a door to the same tables that the client may open and close.
 *
 * Nothing of QNN is understood here. A call travels as 64-bit words over a socket, one connection
 * for each thread; while it waits, the other side reads and writes the memory of this process. */
#define _GNU_SOURCE
#include <stdint.h>

#define API __attribute__((visibility("default")))

uint64_t qnnmem_client_providers(int which, const void ***list, uint32_t *count)
    __attribute__((weak));
void qnnmem_client_opened(int which) __attribute__((weak));
void qnnmem_client_closed(int which) __attribute__((weak));

#ifdef STUB

#if STUB == 0
#define PROVIDERS QnnInterface_getProviders
#else
#define PROVIDERS QnnSystemInterface_getProviders
#endif

API uint64_t PROVIDERS(const void ***list, uint32_t *count);

uint64_t PROVIDERS(const void ***list, uint32_t *count) {
    /* Without the preloaded object (its variable was taken out of the environment): not supported. */
    return qnnmem_client_providers ? qnnmem_client_providers(STUB, list, count) : 1000;
}

__attribute__((constructor)) static void opened(void) {
    if (qnnmem_client_opened) qnnmem_client_opened(STUB);
}

__attribute__((destructor)) static void closed(void) {
    if (qnnmem_client_closed) qnnmem_client_closed(STUB);
}

#else

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
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

enum { VERSION = 1, WATCHED = 1024, RING = 256, BLOCKS = 1 << 17, PROBES = 8, FRAMES = 48 };
enum { HELLO = 1, CALL, STACK, FREED, CLOSED, DONE };              /* from here */
enum { ANSWER, SEND_STACK, ALLOCATE, RELEASE, LOG, NOTIFY };       /* from there */
enum { LARGEST_TEXT = 2048, LOST = 1007, FIRST_SYSTEM = 100, EXECUTE_ASYNC = 22 };

typedef struct { uint64_t start, size, caller; } block;

/* Read, and its first members written, by the other side. */
static struct {
    uint64_t watch_count, lowest, highest;
    uint64_t watch[WATCHED][2];
    _Atomic uint64_t dropped, ring_next;
    block ring[RING];      /* freed last */
    block blocks[BLOCKS];  /* alive; `start` is the key, 0 is empty */
} shared;

static struct {
    void *(*malloc)(size_t), *(*calloc)(size_t, size_t), *(*realloc)(void *, size_t);
    void *(*memalign)(size_t, size_t), *(*aligned_alloc)(size_t, size_t);
    void (*free)(void *);
    int (*posix_memalign)(void **, size_t, size_t);
    size_t (*usable)(void *);
    int (*munmap)(void *, size_t);
} real;

static char socket_path[108];
static _Atomic int dead, generation = 1, ending;
static _Atomic int open_count[2], was_open[2];
static pid_t forked_from;
static pthread_key_t at_thread_end;
static __thread int connection = -1, connection_generation, busy;

/* --- Words on the socket -------------------------------------------------------------------- */

static int send_words(int fd, int kind, int function, const uint64_t *words, size_t count) {
    struct {
        head head;
        uint64_t words[FRAMES + 8];
    } out;
    out.head.length = (uint32_t)(sizeof out.head + count * sizeof *words);
    out.head.kind = (uint16_t)kind;
    out.head.function = (uint16_t)function;
    memcpy(out.words, words, count * sizeof *words);
    return send_all(fd, &out, out.head.length);
}

static void give_up(void) {
    if (!atomic_exchange(&dead, 1)) {
        static const char text[] = "qnnmem: the checker is gone, every call fails from here on\n";
        if (write(2, text, sizeof text - 1) < 0) return;
    }
}

static int hello(int role) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd, high;
    pthread_attr_t attr;
    void *low = NULL;
    size_t size = 0;
    if (atomic_load(&dead) || !socket_path[0]) return -1;
    memcpy(to.sun_path, socket_path, sizeof socket_path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    high = fcntl(fd, F_DUPFD_CLOEXEC, 512); /* out of the way of programs that count theirs */
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstack(&attr, &low, &size);
        pthread_attr_destroy(&attr);
    }
    uint64_t words[] = {VERSION, (uint64_t)role, (uint64_t)getpid(), (uint64_t)forked_from,
                        (uint64_t)syscall(SYS_gettid), (uint64_t)(uintptr_t)low, (uint64_t)size,
                        (uint64_t)(uintptr_t)&shared, sizeof shared};
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0 ||
        !send_words(fd, HELLO, 0, words, sizeof words / sizeof *words)) {
        close(fd);
        give_up();
        return -1;
    }
    return fd;
}

static int connected(void) {
    if (connection >= 0 && connection_generation == atomic_load(&generation)) return connection;
    if (connection >= 0) close(connection); /* of the process that this one was forked from */
    connection = hello(0);
    connection_generation = atomic_load(&generation);
    if (connection >= 0) pthread_setspecific(at_thread_end, &shared);
    return connection;
}

static void end_thread(void *unused) {
    (void)unused;
    if (connection >= 0) close(connection);
    connection = -1;
}

static int send_stack(int fd, int kind, const uint64_t *first, size_t count) {
    void *frames[FRAMES];
    uint64_t words[FRAMES + 8];
    int depth = backtrace(frames, FRAMES), i;
    if (count > 0) memcpy(words, first, count * sizeof *words);
    for (i = 0; i < depth; i++) words[count + (size_t)i] = (uint64_t)(uintptr_t)frames[i];
    return send_words(fd, kind, 0, words, count + (size_t)depth);
}

/* --- What the other side may ask for while a call waits ------------------------------------- */

typedef void (*log_function)(const char *, uint32_t, uint64_t, va_list);
typedef struct { uint64_t error; } notify_status;
typedef void (*notify_function)(void *, notify_status);

static void log_line(log_function to, uint32_t level, uint64_t when, ...) {
    va_list list;
    va_start(list, when);
    to("%s", level, when, list);
    va_end(list);
}

/* Serves one demand; 0 when the connection is of no use any more. */
static int serve(int fd, const reply *asked) {
    char text[LARGEST_TEXT + 1];
    uint64_t answer = 0;
    size_t extra = asked->length - sizeof *asked;
    if (asked->length < sizeof *asked || extra > LARGEST_TEXT || !receive_all(fd, text, extra)) {
        return 0;
    }
    text[extra] = 0;
    switch (asked->action) {
    case SEND_STACK:
        return send_stack(fd, STACK, NULL, 0);
    case ALLOCATE:
        answer = (uint64_t)(uintptr_t)real.calloc(1, asked->a);
        break;
    case RELEASE:
        real.free((void *)(uintptr_t)asked->a);
        break;
    case LOG:
        busy--; /* the client's own code runs, and what it frees counts */
        log_line((log_function)(uintptr_t)asked->a, (uint32_t)asked->b, asked->c, text);
        busy++;
        break;
    case NOTIFY: {
        notify_status status = {asked->c};
        busy--;
        ((notify_function)(uintptr_t)asked->a)((void *)(uintptr_t)asked->b, status);
        busy++;
        break;
    }
    default:
        return 0;
    }
    return send_words(fd, DONE, 0, &answer, 1);
}

/* The answer to what was sent. */
static uint64_t answered(int fd) {
    reply got;
    for (;;) {
        if (!receive_all(fd, &got, sizeof got)) break;
        if (got.action == ANSWER) return got.a;
        if (!serve(fd, &got)) break;
    }
    give_up();
    return LOST;
}

static void *notifier(void *number) {
    int fd = (int)(intptr_t)number;
    reply got;
    busy = 1;
    while (receive_all(fd, &got, sizeof got) && serve(fd, &got)) {
    }
    close(fd);
    return NULL;
}

/* Notifications come on a thread of their own, as those of a real library do. */
static void start_notifier(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int started_in;
    pthread_t thread;
    sigset_t all, before;
    int fd;
    pthread_mutex_lock(&lock);
    if (started_in != atomic_load(&generation) && (fd = hello(1)) >= 0) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        /* The line is known over there before an execution can end and look for it. */
        if (answered(fd) == 0 && pthread_create(&thread, NULL, notifier, (void *)(intptr_t)fd) == 0) {
            pthread_detach(thread);
            started_in = atomic_load(&generation);
        } else {
            close(fd);
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    pthread_mutex_unlock(&lock);
}

static void at_end(void) { atomic_store(&ending, 1); }

/* Late, so that it runs before the objects of the program are taken down. */
static void at_first_call(void) { atexit(at_end); }

static uint64_t call(int function, size_t count, const uint64_t *words) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int which = function >= FIRST_SYSTEM, fd, saved = errno, closed;
    uint64_t out[12], code = LOST;
    busy++;
    pthread_once(&once, at_first_call);
    closed = atomic_load(&was_open[which]) && atomic_load(&open_count[which]) <= 0;
    out[0] = (uint64_t)closed;
    memcpy(out + 1, words, count * sizeof *words);
    if (function == EXECUTE_ASYNC) start_notifier();
    fd = connected();
    if (fd >= 0) {
        if (send_words(fd, CALL, function, out, count + 1)) code = answered(fd);
        else give_up();
    }
    busy--;
    errno = saved;
    return code;
}

/* --- The tables of functions ---------------------------------------------------------------- */

typedef uint64_t word;
#define SEND(n, ...)                                      \
    {                                                     \
        word words[] = {__VA_ARGS__};                     \
        return call(n, sizeof words / sizeof *words, words); \
    }
#define F1(n) static word f##n(word a) SEND(n, a)
#define F2(n) static word f##n(word a, word b) SEND(n, a, b)
#define F3(n) static word f##n(word a, word b, word c) SEND(n, a, b, c)
#define F4(n) static word f##n(word a, word b, word c, word d) SEND(n, a, b, c, d)
#define F5(n) static word f##n(word a, word b, word c, word d, word e) SEND(n, a, b, c, d, e)
#define SIX word a, word b, word c, word d, word e, word f
#define F6(n) static word f##n(SIX) SEND(n, a, b, c, d, e, f)
#define F7(n) static word f##n(SIX, word g) SEND(n, a, b, c, d, e, f, g)
#define F8(n) static word f##n(SIX, word g, word h) SEND(n, a, b, c, d, e, f, g, h)
#define F9(n) static word f##n(SIX, word g, word h, word i) SEND(n, a, b, c, d, e, f, g, h, i)
/* What comes by value behind the first argument (7, 18), or is a Buffer by value (70), is not sent:
 * no answer depends on it. */
F1(0) F3(1) F2(2) F1(3) F1(4) F4(5) F3(6) F1(7) F1(8) F4(9) F2(10) F2(11) F4(12) F7(13) F2(14)
F4(15) F3(16) F2(17) F1(18) F3(19) F3(20) F7(21) F9(22) F2(23) F2(24) F3(25) F2(26) F1(27) F3(28)
F2(29) F3(30) F3(31) F2(32) F2(33) F1(34) F4(35) F2(36) F2(37) F2(38) F1(39) F3(40) F2(41) F2(42)
F1(43) F3(44) F2(45) F1(46) F1(47) F2(48) F2(49) F1(50) F3(51) F3(52) F2(53) F5(54) F8(55) F5(56)
F3(57) F3(58) F4(59) F7(60) F6(61) F2(62) F2(63) F4(64) F3(65) F2(66) F1(67) F9(68) F9(69) F1(70)
F2(71) F1(72) F1(73) F1(74)
F1(100) F5(101) F4(102) F1(103) F3(105) F2(106) F1(107)

typedef struct { word words[18]; } tensor_by_value;
static word f104(tensor_by_value tensor, word out) SEND(104, (word)(uintptr_t)&tensor, out)

static word f199(word a) SEND(199, a)

#define P(n) (void *)(uintptr_t)f##n
#define P10(n) P(n##0), P(n##1), P(n##2), P(n##3), P(n##4), P(n##5), P(n##6), P(n##7), P(n##8), P(n##9)
typedef struct {
    uint32_t id;
    const char *name;
    uint32_t core[3], backend[3];
    void *functions[80];
} backend_interface;

static const backend_interface backend = {
    12, "LPAI_QTI_AISW", {2, 40, 0}, {2, 33, 0},
    {P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P10(1), P10(2), P10(3), P10(4),
     P10(5), P10(6), P(70), P(71), P(72), P(73), P(74)}};

#define NONE P(199), P(199), P(199), P(199), P(199), P(199), P(199), P(199)
typedef struct {
    uint32_t id;
    const char *name;
    uint32_t version[3];
    void *functions[40];
} system_interface;

static const system_interface system_table = {
    0, "SYSTEM_QTI_AISW", {1, 15, 0},
    {P(100), P(101), P(102), P(103), P(104), P(105), P(106), P(107), NONE, NONE, NONE}};

_Static_assert(offsetof(backend_interface, functions) == 40, "where QNN has its functions");
_Static_assert(offsetof(system_interface, functions) == 32, "where QNN has its functions");

API uint64_t qnnmem_client_providers(int which, const void ***list, uint32_t *count) {
    static const void *backends[] = {&backend}, *systems[] = {&system_table};
    if (list == NULL || count == NULL) return 1004;
    *list = which ? systems : backends;
    *count = 1;
    return 0;
}

API void qnnmem_client_opened(int which) {
    atomic_store(&was_open[which], 1);
    atomic_fetch_add(&open_count[which], 1);
}

API void qnnmem_client_closed(int which) {
    uint64_t word = (uint64_t)which;
    /* At the end of the process everything is closed, and nobody is to blame. */
    if (atomic_fetch_sub(&open_count[which], 1) > 1 || atomic_load(&ending)) return;
    if (connection < 0) return; /* this thread never called anything */
    busy++;
    if (send_stack(connection, CLOSED, &word, 1)) answered(connection);
    busy--;
}

/* --- Memory that comes and goes ------------------------------------------------------------- */

static char early[8192]; /* for dlsym itself, before anything is resolved */
static _Atomic size_t early_used;

static int is_early(const void *p) {
    return (const char *)p >= early && (const char *)p < early + sizeof early;
}

static void *early_memory(size_t size) {
    size_t at = atomic_fetch_add(&early_used, (size + 15) / 16 * 16);
    return at + size <= sizeof early ? early + at : NULL;
}

static void resolve(void) {
    static __thread int resolving;
    if (real.free != NULL || resolving) return;
    resolving = 1;
#define FIND(member, name) *(void **)&real.member = dlsym(RTLD_NEXT, name)
    FIND(malloc, "malloc"), FIND(calloc, "calloc"), FIND(realloc, "realloc");
    FIND(memalign, "memalign"), FIND(aligned_alloc, "aligned_alloc");
    FIND(posix_memalign, "posix_memalign"), FIND(usable, "malloc_usable_size");
    FIND(munmap, "munmap"), FIND(free, "free");
    resolving = 0;
}

static block *slot(uint64_t start, unsigned probe) {
    return &shared.blocks[(((start >> 4) * 0x9E3779B97F4A7C15u >> 40) + probe) % BLOCKS];
}

static void *remember(void *p, size_t size, void *caller) {
    uint64_t start = (uint64_t)(uintptr_t)p, empty;
    unsigned i;
    if (p == NULL || size == 0) return p;
    for (i = 0; i < PROBES; i++) {
        block *at = slot(start, i);
        empty = 0;
        if (__atomic_load_n(&at->start, __ATOMIC_RELAXED) == start ||
            __atomic_compare_exchange_n(&at->start, &empty, start, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED)) {
            at->size = size;
            at->caller = (uint64_t)(uintptr_t)caller;
            return p;
        }
    }
    atomic_fetch_add(&shared.dropped, 1); /* its size is not known then, and nobody is accused */
    return p;
}

static uint64_t forget(void *p, void *caller) {
    uint64_t start = (uint64_t)(uintptr_t)p, size;
    unsigned i;
    for (i = 0; i < PROBES; i++) {
        block *at = slot(start, i);
        if (__atomic_load_n(&at->start, __ATOMIC_RELAXED) == start) {
            block *freed = &shared.ring[atomic_fetch_add(&shared.ring_next, 1) % RING];
            size = at->size;
            freed->start = start;
            freed->size = size;
            freed->caller = (uint64_t)(uintptr_t)caller;
            at->size = 0;
            __atomic_store_n(&at->start, 0, __ATOMIC_RELEASE);
            return size;
        }
    }
    return 0;
}

/* Says that memory goes which was handed to QNN and is still needed there. */
static void told(uint64_t start, uint64_t size, int how) {
    uint64_t i, count = shared.watch_count, words[3] = {start, size, (uint64_t)how};
    int saved = errno;
    if (busy || start >= shared.highest || start + size <= shared.lowest) return;
    for (i = 0; i < count && i < WATCHED; i++) {
        if (start < shared.watch[i][1] && shared.watch[i][0] < start + size) break;
    }
    if (i == count || i == WATCHED) return;
    busy++;
    if (connected() >= 0 && send_stack(connection, FREED, words, 3)) answered(connection);
    busy--;
    errno = saved;
}

static uint64_t size_of(void *p, uint64_t known) {
    return known ? known : real.usable ? (uint64_t)real.usable(p) : 1;
}

#define CALLER __builtin_return_address(0)

API void *malloc(size_t size) {
    resolve();
    return real.malloc ? remember(real.malloc(size), size, CALLER) : early_memory(size);
}

API void *calloc(size_t count, size_t size) {
    resolve(); /* the early memory is zero */
    if (real.calloc == NULL) return early_memory(count * size);
    return remember(real.calloc(count, size), count * size, CALLER);
}

API void free(void *p) {
    uint64_t size;
    if (p == NULL || is_early(p)) return;
    resolve();
    size = forget(p, CALLER);
    if (shared.watch_count) told((uint64_t)(uintptr_t)p, size_of(p, size), 0);
    real.free(p);
}

static void *resized(void *p, size_t size, void *caller) {
    void *made;
    uint64_t before;
    resolve();
    if (is_early(p)) {
        made = real.malloc(size);
        if (made != NULL) memcpy(made, p, size);
        return remember(made, size, caller);
    }
    if (p == NULL) return remember(real.realloc(p, size), size, caller);
    before = forget(p, caller);
    if (shared.watch_count) told((uint64_t)(uintptr_t)p, size_of(p, before), 1);
    made = real.realloc(p, size);
    if (made == NULL && size > 0) return remember(p, before, caller), NULL;
    return remember(made, size, caller);
}

API void *realloc(void *p, size_t size) { return resized(p, size, CALLER); }

API void *reallocarray(void *p, size_t count, size_t size) {
    if (size != 0 && count > SIZE_MAX / size) return errno = ENOMEM, NULL;
    return resized(p, count * size, CALLER);
}

API void *memalign(size_t align, size_t size) {
    resolve();
    return remember(real.memalign(align, size), size, CALLER);
}

API void *aligned_alloc(size_t align, size_t size) {
    resolve();
    return remember(real.aligned_alloc(align, size), size, CALLER);
}

API int posix_memalign(void **out, size_t align, size_t size) {
    int code;
    resolve();
    code = real.posix_memalign(out, align, size);
    if (code == 0) remember(*out, size, CALLER);
    return code;
}

API int munmap(void *p, size_t size) {
    resolve();
    if (shared.watch_count) told((uint64_t)(uintptr_t)p, size, 2);
    return real.munmap(p, size);
}

/* Where a sanitizer has the heap, its hooks say what the functions above would see. */
int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void *, size_t),
                                              void (*)(const volatile void *))
    __attribute__((weak));

static void hooked_malloc(const volatile void *p, size_t size) {
    remember((void *)(uintptr_t)p, size, NULL);
}

static void hooked_free(const volatile void *p) {
    uint64_t size = forget((void *)(uintptr_t)p, NULL);
    if (shared.watch_count) told((uint64_t)(uintptr_t)p, size ? size : 1, 0);
}

/* --- Beginning ------------------------------------------------------------------------------ */

static void forked(void) {
    atomic_fetch_add(&generation, 1);
    forked_from = getppid();
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("QNNMEM_CLIENT_SOCKET"), *parent = getenv("QNNMEM_CLIENT_PARENT");
    void *frame[1];
    resolve();
    if (__sanitizer_install_malloc_and_free_hooks) {
        __sanitizer_install_malloc_and_free_hooks(hooked_malloc, hooked_free);
    }
    if (path == NULL || strlen(path) >= sizeof socket_path) return;
    strcpy(socket_path, path);
    backtrace(frame, 1); /* loads the unwinder now and not inside of somebody's free() */
    pthread_key_create(&at_thread_end, end_thread);
    pthread_atfork(NULL, NULL, forked);
    /* Whoever started the program to watch it takes it along when it is killed. */
    if (parent != NULL && getppid() == (pid_t)atol(parent)) prctl(PR_SET_PDEATHSIG, SIGKILL);
}

#endif
