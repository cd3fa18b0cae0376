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

#if STUB == 0
#define PROVIDERS QnnInterface_getProviders
#else
#define PROVIDERS QnnSystemInterface_getProviders
#endif

API word PROVIDERS(const void ***list, uint32_t *count);

word PROVIDERS(const void ***list, uint32_t *count) {
    if (qnnmem_client_providers) return qnnmem_client_providers(STUB, list, count);
    /* Without the preloaded object (its variable was taken out of the environment): not supported. */
    map_ledger();
    if (ledger == NULL) abort(); /* nobody would know */
    ledger->unpreloaded++;
    return 1000;
}

__attribute__((constructor)) static void opened(void) {
    if (qnnmem_client_opened) qnnmem_client_opened(STUB);
}

__attribute__((destructor)) static void closed(void) {
    if (qnnmem_client_closed) qnnmem_client_closed(STUB);
}

#else

#include <stdarg.h>
#include <stddef.h>

#define UNDELIVERED "qnnmem: a call did not reach the checker and was answered 1007\n"
#include "line.h"

enum { WATCHED = 1024, RING = 256, BLOCKS = 1 << 17, PROBES = 8, LARGEST_TEXT = 2048 };
enum { CALL = HELLO + 1, STACK, FREED, CLOSED, DONE };              /* from here */
enum { ANSWER, SEND_STACK, ALLOCATE, RELEASE, LOG, NOTIFY };        /* from there */
enum { LOST = 1007, EXECUTE_ASYNC = 22, PROTECTED = 4 };

typedef struct { word start, size, caller; } block;

/* Read, and its first members written, by the other side. */
static struct {
    word watch_count, lowest, highest;
    word watch[WATCHED][2];
    _Atomic word dropped, ring_next;
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
    void *(*mremap)(void *, size_t, size_t, int, ...);
} real;

static _Atomic int ending, open_count[2], was_open[2];
static __thread int busy;

/* The system puts thread-local variables above the stack, into the same mapping. */
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
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstack(&attr, &low, &size);
        pthread_attr_destroy(&attr);
    }
    word range[2] = {(word)(uintptr_t)low, (word)size};
    dl_iterate_phdr(without_locals, range);
    word words[] = {WHO(role), range[0], range[1], (word)(uintptr_t)&shared, sizeof shared};
    return send_words(fd, HELLO, 0, words, sizeof words / sizeof *words);
}

/* --- What the other side may ask for while a call waits ------------------------------------- */

typedef void (*log_function)(const char *, uint32_t, word, va_list);
typedef struct { word error; } notify_status;
typedef void (*notify_function)(void *, notify_status);

static void log_line(log_function to, uint32_t level, word when, ...) {
    va_list list;
    va_start(list, when);
    to("%s", level, when, list);
    va_end(list);
}

/* Serves one demand; 0 when the connection is of no use any more. */
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
    /* A child that was forked in there has come back: the line is its parent's. */
    return process == atomic_load(&generation) && send_words(fd, DONE, 0, &answer, 1);
}

/* Waits for the answer to what was sent; 0 when none comes. */
static int answered(int fd, word *code) {
    int process = atomic_load(&generation);
    reply got;
    for (;;) {
        if (!receive_all(fd, &got, sizeof got)) break;
        if (got.action == ANSWER) return *code = got.a, 1;
        if (!serve(fd, &got)) break;
    }
    return process != atomic_load(&generation); /* the answer is for its parent */
}

/* Sends a message and waits for its answer; one that does not get through is counted. */
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

static _Atomic int started_in; /* generation of the process that has a thread for notifications */

static void *notifier(void *number) {
    int fd = (int)(intptr_t)number;
    ino_t inode = inode_of(fd);
    reply got;
    busy = 1;
    while (receive_all(fd, &got, sizeof got) && serve(fd, &got)) {
    }
    atomic_store(&started_in, 0); /* the program has closed it, or nobody listens any more */
    if (inode_of(fd) == inode) close(fd);
    return NULL;
}

/* Notifications come on a thread of their own, as those of a real library do. */
static void start_notifier(void) {
    pthread_t thread;
    word code = LOST;
    sigset_t all, before;
    int fd;
    pthread_mutex_lock(&lock);
    if (started_in != atomic_load(&generation) && (fd = open_line(1)) >= 0) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        /* The line is known over there before an execution can end and look for it. */
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

static void at_end(void) { atomic_store(&ending, 1); }

/* Late, so that it runs before the objects of the program are taken down. */
static void at_first_call(void) { atexit(at_end); }

static word call(int function, size_t count, const word *words) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int which = function >= FIRST_SYSTEM, saved = errno, closed;
    word out[12], code;
    count_made();
    /* In a signal handler the line may be in the middle of another message. */
    if (busy || is_stray()) return count_lost(), errno = saved, LOST;
    busy++;
    pthread_once(&once, at_first_call);
    closed = atomic_load(&was_open[which]) && atomic_load(&open_count[which]) <= 0;
    out[0] = (word)closed;
    memcpy(out + 1, words, count * sizeof *words);
    if (function == EXECUTE_ASYNC) start_notifier();
    code = ask(CALL, function, out, count + 1);
    busy--;
    errno = saved;
    return code;
}

/* --- The tables of functions ---------------------------------------------------------------- */

#define SEND(n, takes, ...)                                   \
    static word f##n takes {                                  \
        word words[] = {__VA_ARGS__};                         \
        return call(n, sizeof words / sizeof *words, words);  \
    }
#define F(s, n, k) SEND(n, (TAKES##k), GIVES##k)
#define V(s, n, k) SEND(n, (TAKES##k), WORDS##k)
#define NEWEST(F, s) F(s, 70, 1) F(s, 72, 1) F(s, 73, 1) F(s, 74, 1) /* all are refused */
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
    /* At the end of the process everything is closed, and nobody is to blame. */
    if (atomic_fetch_sub(&open_count[which], 1) > 1 || atomic_load(&ending)) return;
    if (own_row == NULL || busy || is_stray()) return; /* this thread never called anything */
    busy++;
    ask(CLOSED, 0, words, add_stack(words, 1));
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
    FIND(munmap, "munmap"), FIND(mremap, "mremap"), FIND(free, "free");
    resolving = 0;
}

static block *slot(word start, unsigned probe) {
    return &shared.blocks[(((start >> 4) * 0x9E3779B97F4A7C15u >> 40) + probe) % BLOCKS];
}

static void *remember(void *p, size_t size, void *caller) {
    word start = (word)(uintptr_t)p, empty;
    unsigned i;
    if (p == NULL || size == 0) return p;
    for (i = 0; i < PROBES; i++) {
        block *at = slot(start, i);
        empty = 0;
        if (__atomic_load_n(&at->start, __ATOMIC_RELAXED) == start ||
            __atomic_compare_exchange_n(&at->start, &empty, start, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED)) {
            at->size = size;
            at->caller = (word)(uintptr_t)caller;
            return p;
        }
    }
    atomic_fetch_add(&shared.dropped, 1); /* its size is not known then, and nobody is accused */
    return p;
}

static word forget(void *p, void *caller) {
    word start = (word)(uintptr_t)p, size;
    unsigned i;
    for (i = 0; i < PROBES; i++) {
        block *at = slot(start, i);
        if (__atomic_load_n(&at->start, __ATOMIC_RELAXED) == start) {
            block *freed = &shared.ring[atomic_fetch_add(&shared.ring_next, 1) % RING];
            size = at->size;
            freed->start = start;
            freed->size = size;
            freed->caller = (word)(uintptr_t)caller;
            at->size = 0;
            __atomic_store_n(&at->start, 0, __ATOMIC_RELEASE);
            return size;
        }
    }
    return 0;
}

/* Says that memory goes which was handed to QNN and is still needed there. */
static void told(word start, word size, int how) {
    word i, count = shared.watch_count, words[FRAMES + 3] = {start, size, (word)how};
    int saved = errno;
    if (busy || start >= shared.highest || start + size <= shared.lowest) return;
    for (i = 0; i < count && i < WATCHED; i++) {
        if (start < shared.watch[i][1] && shared.watch[i][0] < start + size) break;
    }
    if (i == count || i == WATCHED) return;
    if (is_stray()) return; /* its parent's memory stays */
    busy++;
    ask(FREED, 0, words, add_stack(words, 3));
    busy--;
    errno = saved;
}

static word size_of(void *p, word known) {
    return known ? known : real.usable ? (word)real.usable(p) : 1;
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
    word size;
    if (p == NULL || is_early(p)) return;
    resolve();
    size = forget(p, CALLER);
    if (shared.watch_count) told((word)(uintptr_t)p, size_of(p, size), 0);
    real.free(p);
}

static void *resized(void *p, size_t size, void *caller) {
    void *made;
    word before;
    resolve();
    if (is_early(p)) {
        made = real.malloc(size);
        if (made != NULL) memcpy(made, p, size);
        return remember(made, size, caller);
    }
    if (p == NULL) return remember(real.realloc(p, size), size, caller);
    before = forget(p, caller);
    if (shared.watch_count) told((word)(uintptr_t)p, size_of(p, before), 1);
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
    if (shared.watch_count) told((word)(uintptr_t)p, size, 2);
    return real.munmap(p, size);
}

/* Pages may be others at the same place, or not to be written any more. */
API int mprotect(void *p, size_t size, int protection) {
    int code = (int)syscall(SYS_mprotect, p, size, protection);
    if (code == 0 && shared.watch_count) told((word)(uintptr_t)p, size, PROTECTED);
    return code;
}

API void *mmap(void *p, size_t size, int protection, int flags, int fd, off_t offset) {
    void *made = (void *)syscall(SYS_mmap, p, size, protection, flags, fd, offset);
    if ((flags & MAP_FIXED) && made == p && shared.watch_count) told((word)(uintptr_t)p, size, 2);
    return made;
}

API void *mmap64(void *p, size_t size, int protection, int flags, int fd, off_t offset) {
    return mmap(p, size, protection, flags, fd, offset); /* the same on machines of 64 bits */
}

API void *mremap(void *p, size_t size, size_t wanted, int flags, ...) {
    va_list list;
    void *to, *made;
    word start = (word)(uintptr_t)p;
    resolve();
    va_start(list, flags);
    to = flags & MREMAP_FIXED ? va_arg(list, void *) : NULL;
    va_end(list);
    made = real.mremap(p, size, wanted, flags, to);
    if (!shared.watch_count || made == MAP_FAILED) return made;
    if (made != p) told(start, size, 2);
    else if (wanted < size) told(start + wanted, size - wanted, 2);
    if (to != NULL) told((word)(uintptr_t)to, wanted, 2);
    return made;
}

/* Where a sanitizer has the heap, its hooks say what the functions above would see. */
int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void *, size_t),
                                              void (*)(const volatile void *))
    __attribute__((weak));

static void hooked_malloc(const volatile void *p, size_t size) {
    remember((void *)(uintptr_t)p, size, NULL);
}

static void hooked_free(const volatile void *p) {
    word size = forget((void *)(uintptr_t)p, NULL);
    if (shared.watch_count) told((word)(uintptr_t)p, size ? size : 1, 0);
}

/* --- Other libraries of the same name -------------------------------------------------------- */

static int is_ours(const char *path) {
    char own[sizeof socket_path];
    return beside(own, sizeof own, "/libQnn") && strncmp(path, own, strlen(own)) == 0;
}

static void count_foreign(void) {
    if (ledger != NULL) atomic_fetch_add(&ledger->foreign, 1);
}

/* Only QNN for LPAI is checked: a program may have that of other backends beside it. */
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

/* --- Beginning ------------------------------------------------------------------------------ */

__attribute__((constructor)) static void begin(void) {
    resolve();
    if (__sanitizer_install_malloc_and_free_hooks) {
        __sanitizer_install_malloc_and_free_hooks(hooked_malloc, hooked_free);
    }
    begin_line();
    dl_iterate_phdr(linked_with, NULL);
}

#endif
