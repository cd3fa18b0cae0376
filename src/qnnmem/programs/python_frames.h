/* Finds the Python lines that led to a call, by asking the interpreter in this process.
 *
 * The interpreter's public functions need its lock. A thread that holds the lock asks directly. For
 * a thread that released it, another thread asks and waits for the lock. The wait is short, because
 * the owner of the lock may itself wait for the caller. The caller's frames cannot change meanwhile,
 * because it is in a call. None of the program's code runs. */
enum { PYTHON_FRAMES = 48, LINE = 1900, TEXT_OF_FRAMES = 8192, PATIENCE_S = 2 };
enum { WAITING, ASKING, ASKED, GIVEN_UP };
#define MAKES_SESSIONS "/onnxruntime_inference_collection.py"

typedef void *object; /* a Python object */
typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    void *thread; /* interpreter thread that has the frames */
    int state;
    size_t used;
    char text[TEXT_OF_FRAMES];
} question;

static void write_line(question *to, const char *line, int length) {
    if (length <= 0 || length >= LINE || to->used + (size_t)length > TEXT_OF_FRAMES) return;
    memcpy(to->text + to->used, line, (size_t)length);
    to->used += (size_t)length;
}

/* A function of this process's interpreter; NULL if there is none. */
static void *python(const char *name) { return real_dlsym()(RTLD_DEFAULT, name); }
#define PYTHON(gives, name, ...) gives (*name)(__VA_ARGS__) = (gives(*)(__VA_ARGS__))(uintptr_t)python(#name)

static const char *attribute(object of, const char *name, object *kept) {
    PYTHON(object, PyObject_GetAttrString, object, const char *);
    PYTHON(const char *, PyUnicode_AsUTF8, object);
    const char *text;
    *kept = of && PyObject_GetAttrString ? PyObject_GetAttrString(of, name) : NULL;
    text = *kept && PyUnicode_AsUTF8 ? PyUnicode_AsUTF8(*kept) : NULL;
    return text;
}

/* The model of an ONNX Runtime session: its file, or the address of its bytes. */
static void write_model(question *to, object frame) {
    PYTHON(object, PyFrame_GetLocals, object);
    PYTHON(object, PyMapping_GetItemString, object, const char *);
    PYTHON(object, PyObject_GetAttrString, object, const char *);
    PYTHON(int, PyBytes_AsStringAndSize, object, char **, ssize_t *);
    PYTHON(void, Py_DecRef, object);
    object locals, self = NULL, path = NULL, bytes = NULL;
    char line[LINE + 1], *data;
    const char *name;
    ssize_t size;
    int length = 0;
    if (!PyFrame_GetLocals || !PyMapping_GetItemString || !PyBytes_AsStringAndSize) return;
    locals = PyFrame_GetLocals(frame);
    if (locals) self = PyMapping_GetItemString(locals, "self");
    name = attribute(self, "_model_path", &path);
    if (name) length = snprintf(line, sizeof line, "  Model \"%s\"\n", name);
    else if (self) {
        PYTHON(void, PyErr_Clear, void);
        PyErr_Clear();
        bytes = PyObject_GetAttrString(self, "_model_bytes");
        if (bytes && PyBytes_AsStringAndSize(bytes, &data, &size) == 0) {
            length = snprintf(line, sizeof line, "  Bytes %p %zd\n", (void *)data, size);
        }
    }
    write_line(to, line, length);
    Py_DecRef(bytes), Py_DecRef(path), Py_DecRef(self), Py_DecRef(locals);
}

/* Appends the lines from a frame outwards; releases the frame. */
static void ask_frames(question *to, object frame) {
    PYTHON(object, PyFrame_GetBack, object);
    PYTHON(object, PyFrame_GetCode, object);
    PYTHON(int, PyFrame_GetLineNumber, object);
    PYTHON(void, PyErr_Fetch, object *, object *, object *);
    PYTHON(void, PyErr_Restore, object, object, object);
    PYTHON(void, PyErr_Clear, void);
    PYTHON(void, Py_DecRef, object);
    object kind, value, trace, next, code, kept[2];
    char line[LINE + 1];
    int at, length;
    if (!PyFrame_GetBack || !PyFrame_GetCode || !PyErr_Restore) return;
    PyErr_Fetch(&kind, &value, &trace); /* an exception may be pending */
    for (at = 0; frame && at < PYTHON_FRAMES; at++) {
        const char *file, *name;
        code = PyFrame_GetCode(frame);
        file = attribute(code, "co_filename", &kept[0]);
        name = attribute(code, "co_name", &kept[1]);
        length = snprintf(line, sizeof line, "  File \"%s\", line %d in %s\n", file ? file : "",
                          PyFrame_GetLineNumber(frame), name ? name : "");
        write_line(to, line, length);
        if (file && strstr(file, MAKES_SESSIONS) && name && strcmp(name, "_create_inference_session") == 0) {
            write_model(to, frame);
        }
        Py_DecRef(kept[0]), Py_DecRef(kept[1]), Py_DecRef(code);
        next = PyFrame_GetBack(frame);
        Py_DecRef(frame);
        frame = next;
    }
    Py_DecRef(frame);
    PyErr_Clear();
    PyErr_Restore(kind, value, trace);
}

/* Runs in a thread of its own and waits for the lock. */
static void *ask_for_another(void *given) {
    PYTHON(int, PyGILState_Ensure, void);
    PYTHON(void, PyGILState_Release, int);
    PYTHON(object, PyThreadState_GetFrame, void *);
    question *to = given;
    int held = PyGILState_Ensure(), wanted;
    pthread_mutex_lock(&to->mutex);
    wanted = to->state == WAITING;
    if (wanted) to->state = ASKING;
    pthread_mutex_unlock(&to->mutex);
    if (wanted) ask_frames(to, PyThreadState_GetFrame(to->thread));
    PyGILState_Release(held);
    if (!wanted) return free(to), NULL;
    pthread_mutex_lock(&to->mutex);
    to->state = ASKED;
    pthread_cond_signal(&to->changed);
    pthread_mutex_unlock(&to->mutex);
    return NULL;
}

/* Returns 1 if the answer is ready; otherwise the other thread owns `to`. */
static int was_asked(question *to) {
    struct timespec end;
    pthread_condattr_t clock;
    pthread_attr_t detached;
    pthread_t other;
    sigset_t all, before;
    int failed, given_up;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&to->changed, &clock);
    pthread_mutex_init(&to->mutex, NULL);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's own threads receive signals */
    failed = pthread_create(&other, &detached, ask_for_another, to);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    if (failed) return 1;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&to->mutex);
    while (to->state == WAITING && pthread_cond_timedwait(&to->changed, &to->mutex, &end) == 0) {
    }
    given_up = to->state == WAITING;
    if (given_up) to->state = GIVEN_UP;
    while (!given_up && to->state != ASKED) pthread_cond_wait(&to->changed, &to->mutex);
    pthread_mutex_unlock(&to->mutex);
    return !given_up;
}

/* Sends the lines in parts, innermost first; sends nothing without Python. */
static void python_frames(void (*send)(const char *, size_t)) {
    PYTHON(int, Py_IsInitialized, void);
    PYTHON(void *, PyGILState_GetThisThreadState, void);
    PYTHON(void *, PyThreadState_GetUnchecked, void);  /* Python 3.13 and later */
    PYTHON(void *, _PyThreadState_UncheckedGet, void); /* before 3.13 */
    PYTHON(object, PyThreadState_GetFrame, void *);
    void *own, *current = NULL;
    question *to;
    size_t at, part;
    if (!Py_IsInitialized || !PyThreadState_GetFrame || !Py_IsInitialized()) return;
    own = PyGILState_GetThisThreadState();
    if (own == NULL || (to = calloc(1, sizeof *to)) == NULL) return;
    to->thread = own;
    if (PyThreadState_GetUnchecked) current = PyThreadState_GetUnchecked();
    else if (_PyThreadState_UncheckedGet) current = _PyThreadState_UncheckedGet();
    if (own == current) ask_frames(to, PyThreadState_GetFrame(own));
    else if (!was_asked(to)) return;
    for (at = 0; at < to->used; at += part) { /* parts end with whole lines */
        part = to->used - at < LINE ? to->used - at : LINE;
        while (to->text[at + part - 1] != '\n') part--;
        send(to->text + at, part);
    }
    free(to);
}
