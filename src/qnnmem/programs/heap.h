/* Memory of the client that comes and goes: the heap and mappings, in place of those of libc. Each block
 * has a pattern behind it, and whoever frees what QNN still needs is told. Part of shim.c. */
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

static void *note_block(void *p, size_t size, void *caller) {
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
            at->caller = (word)(uintptr_t)caller | shared.epoch;
            return p;
        }
    }
    atomic_fetch_add(&shared.dropped, 1); /* its size is not known then, and nobody is accused */
    return p;
}

/* A block of ours, with a pattern behind it that tells who writes too far. */
static void *remember(void *p, size_t size, void *caller) {
    if (p != NULL && size <= SIZE_MAX - GUARD) memcpy((char *)p + size, guard_bytes, GUARD);
    return note_block(p, size, caller);
}

/* Bytes to ask for, so that the pattern has room behind them. */
static size_t with_guard(size_t size) { return size <= SIZE_MAX - GUARD ? size + GUARD : size; }

/* Memory of the heap; where writes are traced, each block has pages of its own. */
static void *obtain(size_t align, size_t size) {
    size_t room = with_guard(size);
    if (tracing && size >= ISOLATED && room < SIZE_MAX - 2 * PAGE) {
        align = align < PAGE ? PAGE : align;
        room = (room + PAGE - 1) / PAGE * PAGE + GUARD;
    }
    return align ? real.memalign(align, room) : real.malloc(room);
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
    if (how != PROTECTED) open_traced(start, size);
    busy++;
    ask(FREED, 0, words, add_stack(words, 3));
    busy--;
    errno = saved;
}

static word size_of(void *p, word known) {
    return known ? known : real.usable ? (word)real.usable(p) : 1;
}

API void *malloc(size_t size) {
    resolve();
    return real.malloc ? remember(obtain(0, size), size, CALLER) : early_memory(size);
}

API void *calloc(size_t count, size_t size) {
    size_t all;
    void *made;
    if (__builtin_mul_overflow(count, size, &all)) return errno = ENOMEM, NULL;
    resolve(); /* the early memory is zero */
    if (real.calloc == NULL) return early_memory(all);
    made = tracing ? obtain(0, all) : real.calloc(1, with_guard(all));
    if (tracing && made != NULL) memset(made, 0, all);
    return remember(made, all, CALLER);
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
        made = real.malloc(with_guard(size));
        if (made != NULL) memcpy(made, p, size);
        return remember(made, size, caller);
    }
    if (p == NULL) return remember(obtain(0, size), size, caller);
    before = forget(p, caller);
    if (shared.watch_count) told((word)(uintptr_t)p, size_of(p, before), 1);
    if (size == 0) return real.realloc(p, 0); /* frees */
    made = real.realloc(p, with_guard(size));
    if (made == NULL) return remember(p, before, caller), NULL;
    return remember(made, size, caller);
}

API void *realloc(void *p, size_t size) { return resized(p, size, CALLER); }

API void *reallocarray(void *p, size_t count, size_t size) {
    if (size != 0 && count > SIZE_MAX / size) return errno = ENOMEM, NULL;
    return resized(p, count * size, CALLER);
}

API void *memalign(size_t align, size_t size) {
    resolve();
    return remember(obtain(align, size), size, CALLER);
}

API void *aligned_alloc(size_t align, size_t size) {
    resolve();
    return remember(tracing ? obtain(align, size) : real.aligned_alloc(align, with_guard(size)), size, CALLER);
}

API int posix_memalign(void **out, size_t align, size_t size) {
    int code;
    resolve();
    code = tracing ? (*out = obtain(align, size)) == NULL ? ENOMEM : 0 : real.posix_memalign(out, align, with_guard(size));
    if (code == 0) remember(*out, size, CALLER);
    return code;
}

/* What was asked for; of a block that is not known anything up to the guard may be used. */
API size_t malloc_usable_size(void *p) {
    word start = (word)(uintptr_t)p, size;
    unsigned i;
    if (p == NULL || is_early(p)) return 0;
    resolve();
    for (i = 0; i < PROBES; i++) {
        if (__atomic_load_n(&slot(start, i)->start, __ATOMIC_RELAXED) == start) return slot(start, i)->size;
    }
    size = real.usable ? (word)real.usable(p) : 0;
    return size > GUARD ? size - GUARD : size;
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
    note_block((void *)(uintptr_t)p, size, NULL);
}

static void hooked_free(const volatile void *p) {
    word size = forget((void *)(uintptr_t)p, NULL);
    if (shared.watch_count) told((word)(uintptr_t)p, size ? size : 1, 0);
}
