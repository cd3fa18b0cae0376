/* Reports the source line of a signal that ends the program. Part of shim.c. */
#if defined __x86_64__
#define WHERE(context) ((word)(context)->uc_mcontext.gregs[REG_RIP])
#define IS_WRITE(context) ((word)(context)->uc_mcontext.gregs[REG_ERR] >> 1 & 1)
#define CALLED_FROM(context) (*(const word *)(uintptr_t)(context)->uc_mcontext.gregs[REG_RSP])
#else
#define WHERE(context) ((word)(context)->uc_mcontext.pc)
#define IS_WRITE(context) 2 /* not known */
#define CALLED_FROM(context) ((word)(context)->uc_mcontext.regs[30])
#endif

/* Uses a connection of its own: that of the thread may be in the middle of a message. */
static void report_signal(int kind, int number, word address, const ucontext_t *context) {
    word words[4 + FRAMES] = {(word)number, address, IS_WRITE(context)}, stack[FRAMES], code;
    char byte;
    struct iovec here = {&byte, 1}, code_there = {(void *)(uintptr_t)WHERE(context), 1};
    size_t depth = 0, i = 0, count = 3;
    int fd;
    if (ledger == NULL || is_stray() || (fd = open_line(CRASH_ROLE)) < 0) return;
    /* The unwinder reads the code at the address, and would crash if there is none. */
    if (process_vm_readv(getpid(), &here, 1, &code_there, 1, 0) == 1) depth = add_stack(stack, 0);
    while (i < depth && stack[i] != WHERE(context)) i++;
    if (i == depth) words[count++] = CALLED_FROM(context); /* it jumped to an address without code */
    else words[count++] = stack[i++] + 1; /* the others are return addresses */
    while (i < depth) words[count++] = stack[i++];
    if (send_words(fd, kind, 0, words, count)) answered(fd, &code);
    close(fd);
}

static struct sigaction theirs[sizeof deadly / sizeof *deadly]; /* handlers of the program */
static int (*real_sigaction)(int, const struct sigaction *, struct sigaction *);

static unsigned deadly_at(int number) {
    unsigned i = 0;
    while (i < sizeof deadly / sizeof *deadly && deadly[i] != number) i++;
    return i;
}

static void on_signal(int number, siginfo_t *info, void *given) {
    const ucontext_t *context = (const ucontext_t *)given;
    word at = number == SIGSEGV || number == SIGBUS ? (word)(uintptr_t)info->si_addr : 0;
    int saved = errno, which = number == SIGSEGV && info->si_code > 0 ? open_traced(at, 1) : -1;
    busy++;
    if (which < 0 && number == SIGSEGV && info->si_code > 0 && open_behind(at)) {
        report_signal(WROTE, number, at, context);
        which = TRACED;
    }
    if (which >= 0) {
        retried = which == TRACED ? at : 0;
        if (which < TRACED && at >= traced[which].start && at < traced[which].start + traced[which].size) {
            report_signal(WROTE, number, at, context);
        }
        busy--;
        errno = saved;
        return; /* the program repeats the access */
    }
    struct sigaction *own = &theirs[deadly_at(number)], handler = *own;
    int is_theirs = handler.sa_handler != SIG_DFL;
    report_signal(is_theirs ? CAUGHT : CRASHED, number, info->si_code > 0 ? at : 0, context);
    busy--;
    if (is_theirs) { /* may end the program, jump away or return to the fault */
        if (handler.sa_flags & SA_RESETHAND) own->sa_handler = SIG_DFL;
        errno = saved;
        if (handler.sa_flags & SA_SIGINFO) handler.sa_sigaction(number, info, given);
        else handler.sa_handler(number);
        return;
    }
    real_sigaction(number, own, NULL);
    raise(number); /* delivered after this function returns */
}

/* Keeps our handler and stores the program's, which ours calls after its report. */
API int sigaction(int number, const struct sigaction *wanted, struct sigaction *before) {
    unsigned i = deadly_at(number);
    struct sigaction asked;
    if (real_sigaction == NULL) *(void **)&real_sigaction = dlsym(RTLD_NEXT, "sigaction");
    if (i == sizeof deadly / sizeof *deadly || !is_watched[i]) return real_sigaction(number, wanted, before);
    if (wanted != NULL) asked = *wanted;
    if (before != NULL) *before = theirs[i];
    if (wanted == NULL) return 0;
    theirs[i] = asked;
    if (asked.sa_handler != SIG_IGN) {
        asked.sa_sigaction = on_signal;
        asked.sa_flags = (asked.sa_flags & ~SA_RESETHAND) | SA_SIGINFO | SA_ONSTACK;
    }
    return real_sigaction(number, &asked, NULL);
}

static sighandler_t set_handler(int number, sighandler_t handler, int flags) {
    struct sigaction wanted = {.sa_handler = handler, .sa_flags = flags}, before;
    return sigaction(number, &wanted, &before) ? SIG_ERR : before.sa_handler;
}

API sighandler_t signal(int number, sighandler_t handler) { return set_handler(number, handler, SA_RESTART); }

/* The name of `signal` in programs compiled for strict ISO C. */
API sighandler_t __sysv_signal(int number, sighandler_t handler) {
    return set_handler(number, handler, SA_RESETHAND | SA_NODEFER);
}

static void watch_signals(void) {
    struct sigaction now, own = {.sa_flags = 0};
    stack_t stack = {.ss_sp = alternate_stack, .ss_size = sizeof alternate_stack};
    unsigned i;
    if (sigaltstack(NULL, &stack) == 0 && (stack.ss_flags & SS_DISABLE)) {
        stack = (stack_t){.ss_sp = alternate_stack, .ss_size = sizeof alternate_stack};
        sigaltstack(&stack, NULL);
    }
    for (i = 0; i < sizeof deadly / sizeof *deadly; i++) {
        if (sigaction(deadly[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL) {
            is_watched[i] = 1; /* a sanitizer would have its own handler */
            sigaction(deadly[i], &own, NULL);
        }
    }
}
