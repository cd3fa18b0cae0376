/* Shared by the objects that run inside a program: the ledger and the connection to qnnmem.
 *
 * Each thread has its own connection, and a forked process opens new ones. Messages have the byte
 * order of the machine. The program may close or replace any descriptor, so each use first checks
 * the connection, and opens it again if it is gone.
 *
 * The ledger is a file of qnnmem that every process maps. Each thread counts there, in its own row,
 * every message before it is sent, and every message that could not be delivered. qnnmem compares
 * these counts with the messages that arrived, so it never calls an unseen call clean.
 *
 * The including file defines UNDELIVERED, the message for a call that cannot be delivered, and
 * `greet`, which sends the hello message on a new connection. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include "ledger.h"

typedef struct { uint32_t length; uint16_t kind, function; } head;  /* to qnnmem; words follow */
typedef struct { uint32_t length, action; word a, b, c; } reply;    /* from qnnmem; bytes follow */

enum { VERSION = 2, HELLO = 1, FRAMES = 48, MOST_WORDS = 256, FIRST_SYSTEM = 100 };

static char socket_path[108];
static _Atomic int told_user, noted, generation = 1; /* a forked child has its parent's generation + 1 */
static pid_t forked_from, owner;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t at_thread_end;
static __thread int connection = -1;
static __thread ino_t connection_inode;
static __thread ledger_row *own_row;

/* --- The ledger ----------------------------------------------------------------------------- */

/* Records a process that uses QNN: qnnmem checks at the end whether it still runs. */
static void note_process(void) {
    word at;
    if (ledger == NULL || atomic_exchange(&noted, 1)) return;
    at = atomic_fetch_add(&ledger->process_count, 1);
    if (at < PROCESSES) ledger->processes[at] = (word)getpid();
}

/* Returns the row of this thread. Without a ledger, calls would go uncounted: the process is ended. */
static ledger_row *row(void) {
    static const char text[] = "qnnmem: calls cannot be counted in this process, so it is ended\n";
    word at;
    if (own_row != NULL) return own_row;
    if (ledger == NULL) {
        if (write(2, text, sizeof text - 1) < 0) abort();
        abort();
    }
    note_process();
    at = atomic_fetch_add(&ledger->thread_count, 1);
    own_row = &ledger->rows[at < THREADS ? at : THREADS]; /* all further threads share the last row */
    if (at < THREADS) {
        own_row->process = (word)getpid();
        own_row->thread = (word)syscall(SYS_gettid);
    }
    return own_row;
}

static void count_lost(void) {
    static const char text[] = UNDELIVERED;
    atomic_fetch_add_explicit(&row()->lost, 1, memory_order_relaxed);
    if (!atomic_exchange(&told_user, 1) && write(2, text, sizeof text - 1) < 0) return;
}

static void count_made(void) { atomic_fetch_add_explicit(&row()->made, 1, memory_order_relaxed); }

/* --- Connection ----------------------------------------------------------------------------- */

static int send_words(int fd, int kind, int function, const word *words, size_t count) {
    struct {
        head head;
        word words[MOST_WORDS];
    } out;
    const char *at = (const char *)&out;
    size_t size = sizeof out.head + count * sizeof *words;
    out.head.length = (uint32_t)size;
    out.head.kind = (uint16_t)kind;
    out.head.function = (uint16_t)function;
    memcpy(out.words, words, count * sizeof *words);
    while (size > 0) {
        ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return 0;
        at += sent;
        size -= (size_t)sent;
    }
    return 1;
}

static int receive_all(int fd, void *data, size_t size) {
    char *at = (char *)data;
    while (size > 0) {
        ssize_t got = recv(fd, at, size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        at += got;
        size -= (size_t)got;
    }
    return 1;
}

/* Appends return addresses to `words`; returns the new number of words. */
static size_t add_stack(word *words, size_t count) {
    void *frames[FRAMES];
    int depth = backtrace(frames, FRAMES), i;
    for (i = 0; i < depth; i++) words[count++] = (word)(uintptr_t)frames[i];
    return count;
}

static int greet(int fd, int role);
#define WHO(role)                                                                         \
    VERSION, (word)(role), (word)getpid(), (word)forked_from, (word)syscall(SYS_gettid), \
        (word)(row() - ledger->rows)

/* Returns the inode of a socket; 0 for any other descriptor. */
static ino_t inode_of(int fd) {
    struct stat found;
    return fd >= 0 && fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

static int open_line(int role) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd, high, failed;
    if (!socket_path[0]) return -1;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    high = fcntl(fd, F_DUPFD_CLOEXEC, 512); /* programs may rely on low numbers of their own */
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    memcpy(to.sun_path, socket_path, sizeof socket_path);
    do failed = connect(fd, (struct sockaddr *)&to, sizeof to);
    while (failed && errno == EINTR);
    if (!failed && greet(fd, role)) return fd;
    close(fd);
    return -1;
}

/* Closes the connection of this thread, unless the program reused its descriptor. */
static void end_line(void) {
    if (connection >= 0 && inode_of(connection) == connection_inode) close(connection);
    connection = -1;
}

/* Returns the connection of this thread; opens it again if the program closed or replaced it. */
static int connected(void) {
    if (connection >= 0 && inode_of(connection) != connection_inode) connection = -1;
    if (connection < 0 && (connection = open_line(0)) >= 0) {
        connection_inode = inode_of(connection);
        pthread_setspecific(at_thread_end, socket_path);
    }
    return connection;
}

static void end_thread(void *unused) {
    (void)unused;
    end_line();
}

/* Runs in a forked child: connection and lock belong to its parent. */
static void forked(void) {
    atomic_fetch_add(&generation, 1);
    forked_from = getppid();
    owner = getpid();
    own_row = NULL;
    if (atomic_exchange(&noted, 0)) note_process();
    pthread_mutex_init(&lock, NULL);
    end_line();
}

/* Returns 1 in a child of clone() or vfork(), which must not use its parent's connection and row. */
static int is_stray(void) { return getpid() != owner; }

static void begin_line(void) {
    void *frame[1];
    pid_t above = getppid();
    char name[sizeof socket_path];
    owner = getpid();
    if (!beside(name, sizeof name, "/socket")) return;
    map_ledger();
    backtrace(frame, 1); /* loads the unwinder now, not during a call */
    pthread_key_create(&at_thread_end, end_thread);
    pthread_atfork(NULL, NULL, forked);
    /* If qnnmem is killed, the program ends with it. */
    if (ledger != NULL && above == (pid_t)ledger->parent) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != above) raise(SIGKILL); /* qnnmem has already ended */
    }
    strcpy(socket_path, name);
}

/* --- Lookups of QNN's functions --------------------------------------------------------------- */

typedef void *(*dlsym_function)(void *, const char *);
static const char *const provider_names[] = {"QnnInterface_getProviders",
                                             "QnnSystemInterface_getProviders"};

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

static void *providers_found(int which, void *real);

/* For other names this must be a tail call: with RTLD_NEXT, the loader examines the caller. */
API void *dlsym(void *handle, const char *name) {
    if (name[0] == 'Q') {
        int which = strcmp(name, provider_names[0]) == 0 ? 0 : 1;
        if (strcmp(name, provider_names[which]) == 0) {
            return providers_found(which, real_dlsym()(handle, name));
        }
    }
    return real_dlsym()(handle, name);
}

#include "takes.h"
