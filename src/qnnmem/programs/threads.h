/* Records the memory of threads, which nothing may use once the thread has ended. Part of shim.c. */
static void resolve(void);

typedef struct { void *(*run)(void *); void *argument; } thread_start;

static pthread_mutex_t ranges_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t at_range_end;

/* Records the memory of this thread. It may be that of an ended thread, whose range is then dropped. */
static void note_range(word low, word high) {
    word i, at = shared.range_count;
    pthread_mutex_lock(&ranges_lock);
    for (i = 0; i < shared.range_count; i++) {
        if (low < shared.ranges[i].high && shared.ranges[i].low < high) shared.ranges[i].high = shared.ranges[i].low;
        if (shared.ranges[i].high == shared.ranges[i].low) at = i;
    }
    if (at < RANGES) {
        shared.ranges[at].low = low;
        shared.ranges[at].high = high;
        shared.ranges[at].has_ended = 0;
        if (at == shared.range_count) shared.range_count++;
        pthread_setspecific(at_range_end, &shared.ranges[at].has_ended);
    }
    pthread_mutex_unlock(&ranges_lock);
}

/* The stacks of ended threads may be unmapped, and their addresses used for something else. */
static void drop_ended_ranges(word low, word high) {
    word i;
    for (i = 0; i < shared.range_count; i++) {
        int overlaps = low < shared.ranges[i].high && shared.ranges[i].low < high;
        if (overlaps && shared.ranges[i].has_ended) shared.ranges[i].high = shared.ranges[i].low;
    }
}

static void end_range(void *has_ended) { *(word *)has_ended = 1; }

static void *start_thread(void *given) {
    thread_start start = *(thread_start *)given;
    pthread_attr_t attr;
    void *low = NULL;
    size_t size = 0;
    real.free(given);
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstack(&attr, &low, &size);
        pthread_attr_destroy(&attr);
        note_range((word)(uintptr_t)low, (word)(uintptr_t)low + size);
    }
    return start.run(start.argument);
}

API int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *argument) {
    static int (*real_create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    thread_start *start;
    int code;
    resolve();
    if (real_create == NULL) *(void **)&real_create = dlsym(RTLD_NEXT, "pthread_create");
    start = (thread_start *)real.malloc(sizeof *start);
    if (start == NULL) return EAGAIN;
    start->run = run;
    start->argument = argument;
    code = real_create(thread, attr, start_thread, start);
    if (code) real.free(start);
    return code;
}
