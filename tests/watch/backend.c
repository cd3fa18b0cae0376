/* A QNN library for tests: every function checks that its arguments arrive as they were sent, a few
 * also have an effect. With -DLINKED, the program links this library. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t word;
word *expected; /* if set, argument i of every call must be the address of element i */
static word next_handle = 1;
static void (*logger)(const char *, uint32_t, uint64_t, va_list);

static void say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    if (logger) logger(format, 1, 0, list);
    va_end(list);
}

static word right(const word *given, int count) {
    int i;
    for (i = 0; expected && i < count; i++) {
        if (given[i] != (word)(uintptr_t)&expected[i]) return 9000 + (word)i;
    }
    return 0;
}

#define SEE(...)                                                 \
    {                                                            \
        word given[] = {__VA_ARGS__};                            \
        return right(given, (int)(sizeof given / sizeof *given)); \
    }
#define A1(n) static word f##n(word a) SEE(a)
#define A2(n) static word f##n(word a, word b) SEE(a, b)
#define A3(n) static word f##n(word a, word b, word c) SEE(a, b, c)
#define A4(n) static word f##n(word a, word b, word c, word d) SEE(a, b, c, d)
#define A5(n) static word f##n(word a, word b, word c, word d, word e) SEE(a, b, c, d, e)
#define SIX word a, word b, word c, word d, word e, word f
#define A6(n) static word f##n(SIX) SEE(a, b, c, d, e, f)
#define A7(n) static word f##n(SIX, word g) SEE(a, b, c, d, e, f, g)
#define A8(n) static word f##n(SIX, word g, word h) SEE(a, b, c, d, e, f, g, h)
#define A9(n) static word f##n(SIX, word g, word h, word i) SEE(a, b, c, d, e, f, g, h, i)

typedef struct { word words[10]; } op_config;
#define AO(n)                                             \
    static word f##n(word a, op_config o) {               \
        int i;                                            \
        for (i = 0; i < 10; i++)                          \
            if (o.words[i] != 70u + (word)i) return 9100; \
        SEE(a)                                            \
    }

static word made(word *out) {
    *out = next_handle++;
    return 0;
}

A1(0) A2(2) A1(3) A1(4) A4(5) A3(6) AO(7) A1(8) A2(10) A2(11) A4(12) A2(14) A3(16) A2(17) AO(18)
A3(20) A7(21) A9(22) A2(23) A2(24) A2(26) A1(27) A3(28) A2(29) A3(30) A3(31) A2(32) A2(33) A1(34)
A2(36) A2(37) A2(38) A1(39) A3(40) A2(41) A2(42) A1(43) A3(44) A2(45) A1(46) A1(47) A2(48) A2(49)
A1(50) A3(51) A3(52) A2(53) A5(54) A8(55) A5(56) A3(57) A3(58) A4(59) A7(60) A6(61) A2(62) A2(63)
A4(64) A3(65) A2(66) A1(67) A9(68) A9(69) A2(71)

static word f1(word a, word b, word c) {
    if (expected) SEE(a, b, c)
    return made((word *)(uintptr_t)c);
}
static word f9(word a, word b, word c, word d) {
    if (expected) SEE(a, b, c, d)
    return made((word *)(uintptr_t)d);
}
static word f13(SIX, word g) {
    if (expected) SEE(a, b, c, d, e, f, g)
    say("loading %llu bytes for context %d", (unsigned long long)e, (int)next_handle);
    return made((word *)(uintptr_t)f);
}
static word f15(word a, word b, word c, word d) {
    if (expected) SEE(a, b, c, d)
    return made((word *)(uintptr_t)d);
}
static word f19(word a, word b, word c) {
    if (expected) SEE(a, b, c)
    if (b == 8) { /* this graph fails if two threads finalize at once */
        static _Atomic int inside;
        int alone = inside++ == 0;
        usleep(1000);
        inside--;
        return alone ? 0 : 1002;
    }
    say("Operator named %s not sufficiently tiled to fit in TCM. Requires %d bytes", "q::Big", 10000384);
    return b == 7 ? 1002 : 0;
}
static word f25(word a, word b, word c) {
    (void)b;
    logger = (void (*)(const char *, uint32_t, uint64_t, va_list))(uintptr_t)a;
    return made((word *)(uintptr_t)c);
}
static word f35(word a, word b, word c, word d) {
    uint32_t i;
    if (expected) SEE(a, b, c, d)
    for (i = 0; i < (uint32_t)c; i++) made((word *)(uintptr_t)d + i);
    return 0;
}
static word unknown(void) { return 0; }

#define P(n) (void *)(uintptr_t)f##n
#define P10(n) P(n##0), P(n##1), P(n##2), P(n##3), P(n##4), P(n##5), P(n##6), P(n##7), P(n##8), P(n##9)
static struct {
    uint32_t id;
    const char *name;
    uint32_t core[3], backend[3];
    void *functions[75];
} table = {6, "TEST_BACKEND", {2, 40, 0}, {1, 2, 3},
           {P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P10(1), P10(2), P10(3), P10(4),
            P10(5), P10(6), (void *)(uintptr_t)unknown, P(71), (void *)(uintptr_t)unknown,
            (void *)(uintptr_t)unknown, NULL}};

__attribute__((visibility("default"))) word QnnInterface_getProviders(const void ***list, uint32_t *count) {
    static const void *providers[] = {&table};
    *list = providers;
    *count = 1;
    return 0;
}
