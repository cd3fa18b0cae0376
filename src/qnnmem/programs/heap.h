/* Replaces libc's functions for heap and mappings. Each block has a pattern after it, and freeing memory that
 * QNN still needs is reported. Part of shim.c. */
static char early[8192]; /* dlsym allocates before `real` is resolved */
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

/* Records a block; returns NULL if the table is full there. Nothing is reported about such a block. */
static void *note_block(void *p, size_t size, void *caller) {
    word start = (word)(uintptr_t)p, empty;
    unsigned i;
    if (p == NULL || size == 0) return NULL;
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
    atomic_fetch_add(&shared.dropped, 1);
    return NULL;
}

/* Records a block and writes the pattern after it that reveals overruns. */
static void *remember(void *p, size_t size, void *caller) {
    if (p != NULL && size <= SIZE_MAX - GUARD) memcpy((char *)p + size, guard_bytes, GUARD);
    note_block(p, size, caller);
    return p;
}

/* Size to allocate, so that the pattern fits after the block. */
static size_t with_guard(size_t size) { return size <= SIZE_MAX - GUARD ? size + GUARD : size; }

/* --- Blocks on pages of their own ------------------------------------------------------------- */

/* A block with an alignment (with --trace-state, every block) has pages of its own, so that their protection
 * reveals each use while the block is closed. The page after a block is readable, and the first write to it
 * is reported. Pages are used only once: a freed block stays closed. */
#define ARENA ((word)1 << 32)
#define IS_ISOLATED ((word)1 << 62)        /* flag in the caller of a block */
enum { UNUSED, FILLED, BEHIND };           /* use of a page */
static unsigned char pages[ARENA / PAGE];
static word arena;                         /* its address; 0: none */
static word required;                      /* alignment that QNN requires; given as the size of a file */
static _Atomic word next_page, isolated_count;
enum { TRIES = 4 };

static int is_isolated(const void *p) { return arena && (word)(uintptr_t)p - arena < ARENA; }

static void reserve_arena(void) {
    struct rlimit limit;
    void *made;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur != RLIM_INFINITY) return; /* the limit is for the program */
    made = (void *)syscall(SYS_mmap, NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
    if (made != MAP_FAILED) shared.arena = arena = (word)(uintptr_t)made;
}

static void give_back(word start, word size) {
    word first = (start - arena) / PAGE, last = (start + size - 1 - arena) / PAGE + 1;
    void *low = (void *)(uintptr_t)(arena + first * PAGE);
    memset(pages + first, UNUSED, last + 1 - first);
    madvise(low, (last - first) * PAGE, MADV_DONTNEED);
    syscall(SYS_mprotect, low, (last + 1 - first) * PAGE, PROT_NONE);
    atomic_fetch_sub(&isolated_count, 1);
}

/* Allocates a block on pages of its own, between patterns; returns NULL if the heap must be used instead. The
 * block ends with its last page, as far as the alignment permits. */
static void *isolated(size_t align, size_t size, void *caller) {
    word least = align < GUARD ? GUARD : align, used = (size + least - 1) / least * least, count, at;
    if (!arena || size < ISOLATED || size > ARENA / 4 || align > PAGE || (align & (align - 1))) return NULL;
    if (!tracing && align < ISOLATED) return NULL;
    if (least < required && used % required == 0) used += least; /* not more aligned than requested */
    count = (used + PAGE - 1) / PAGE;
    if (atomic_fetch_add(&isolated_count, 1) < (tracing ? 4 : 1) * MOST_ISOLATED &&
        (at = atomic_fetch_add(&next_page, count + 1)) + count + 1 <= ARENA / PAGE) {
        word low = arena + at * PAGE, start = low + count * PAGE - used;
        memset(pages + at, FILLED, count);
        pages[at + count] = BEHIND;
        if (syscall(SYS_mprotect, low, count * PAGE, PROT_READ | PROT_WRITE) == 0 &&
            syscall(SYS_mprotect, low + count * PAGE, PAGE, PROT_READ) == 0) {
            if (used - size >= GUARD) memcpy((char *)(uintptr_t)start + size, guard_bytes, GUARD);
            if (start > low) memcpy((char *)(uintptr_t)start - GUARD, guard_bytes, GUARD);
            if (note_block((void *)(uintptr_t)start, size, (void *)((word)(uintptr_t)caller | IS_ISOLATED))) {
                return (void *)(uintptr_t)start;
            }
        }
        give_back(start, size);
    } else {
        atomic_fetch_sub(&isolated_count, 1);
    }
    return NULL;
}

/* Opens the guard page after a block at the first write; returns 0 for any other address. */
static int open_behind(word at) {
    word page = (at - arena) / PAGE;
    if (!arena || at - arena >= ARENA || pages[page] != BEHIND) return 0;
    pages[page] = FILLED;
    return set_protection(at, 1, PROT_READ | PROT_WRITE) == 0;
}

/* Allocates memory that is not aligned for QNN, if the heap has some. A block can have that alignment by
 * luck, which would hide that the program never asked for it. */
static void *unaligned(size_t size, int is_zero) {
    void *made, *held[2 * TRIES];
    int count = 0;
    for (;;) {
        made = is_zero ? real.calloc(1, size) : real.malloc(size);
        if (required <= ISOLATED / 2 || made == NULL || (word)(uintptr_t)made % required) break;
        if (size < ISOLATED / 2 || count == 2 * TRIES) break;
        held[count++] = made;
        held[count++] = real.malloc(1); /* shifts the next block */
    }
    while (count > 0) real.free(held[--count]);
    return made;
}

static void *obtain(size_t align, size_t size, void *caller) {
    void *made = isolated(align, size, caller);
    if (made != NULL) return made;
    return remember(align ? real.memalign(align, with_guard(size)) : unaligned(with_guard(size), 0), size, caller);
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
            freed->caller = (word)(uintptr_t)caller | (at->caller & IS_ISOLATED);
            at->size = 0;
            __atomic_store_n(&at->start, 0, __ATOMIC_RELEASE);
            return size;
        }
    }
    return 0;
}

/* Reports that the program frees or changes memory that QNN still needs. */
static void told(word start, word size, int how) {
    word i, count = shared.watch_count, words[FRAMES + 3] = {start, size, (word)how};
    int saved = errno;
    if (busy || start >= shared.highest || start + size <= shared.lowest) return;
    for (i = 0; i < count && i < WATCHED; i++) {
        if (start < shared.watch[i][1] && shared.watch[i][0] < start + size) break;
    }
    if (i == count || i == WATCHED) return;
    if (is_stray()) return; /* the parent's memory is not affected */
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
    return real.malloc ? obtain(0, size, CALLER) : early_memory(size);
}

API void *calloc(size_t count, size_t size) {
    size_t all;
    void *made;
    if (__builtin_mul_overflow(count, size, &all)) return errno = ENOMEM, NULL;
    resolve(); /* early memory is zero as well */
    if (real.calloc == NULL) return early_memory(all);
    made = isolated(0, all, CALLER); /* zero, because its pages are used only once */
    return made ? made : remember(unaligned(with_guard(all), 1), all, CALLER);
}

static void release(void *p, word size) {
    if (is_isolated(p)) give_back((word)(uintptr_t)p, size);
    else real.free(p);
}

API void free(void *p) {
    word size;
    if (p == NULL || is_early(p)) return;
    resolve();
    size = forget(p, CALLER);
    if (!size && is_isolated(p)) abort(); /* freed twice, or not a block: abort like the heap */
    if (shared.watch_count) told((word)(uintptr_t)p, size_of(p, size), 0);
    release(p, size);
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
    if (p == NULL) return obtain(0, size, caller);
    before = forget(p, caller);
    if (!before && is_isolated(p)) abort();
    if (shared.watch_count) told((word)(uintptr_t)p, size_of(p, before), 1);
    if (is_isolated(p)) {
        made = size ? obtain(0, size, caller) : NULL;
        if (made != NULL) memcpy(made, p, (size < before ? size : before) % ARENA);
        release(p, before);
        return made;
    }
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
    return obtain(align, size, CALLER);
}

API void *aligned_alloc(size_t align, size_t size) {
    void *made;
    resolve();
    made = isolated(align, size, CALLER);
    return made ? made : remember(real.aligned_alloc(align, with_guard(size)), size, CALLER);
}

API int posix_memalign(void **out, size_t align, size_t size) {
    void *made;
    int code;
    resolve();
    if ((made = isolated(align, size, CALLER)) != NULL) return *out = made, 0;
    code = real.posix_memalign(out, align, with_guard(size));
    if (code == 0) remember(*out, size, CALLER);
    return code;
}

/* Returns the requested size; for an unrecorded block, the size without the guard. */
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

/* Reports pages whose protection changes: QNN may not be able to use them any longer. */
API int mprotect(void *p, size_t size, int protection) {
    int code = (int)syscall(SYS_mprotect, p, size, protection);
    if (code == 0 && shared.watch_count) told((word)(uintptr_t)p, size, PROTECTED);
    return code;
}

API void *mmap(void *p, size_t size, int protection, int flags, int fd, off_t offset) {
    void *made = (void *)syscall(SYS_mmap, p, size, protection, flags, fd, offset);
    if (made != MAP_FAILED) drop_ended_ranges((word)(uintptr_t)made, (word)(uintptr_t)made + size);
    if ((flags & MAP_FIXED) && made == p && shared.watch_count) told((word)(uintptr_t)p, size, 2);
    return made;
}

API void *mmap64(void *p, size_t size, int protection, int flags, int fd, off_t offset) {
    return mmap(p, size, protection, flags, fd, offset); /* off_t has 64 bits */
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

/* If a sanitizer replaces the heap, its hooks report what the functions above would see. */
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
