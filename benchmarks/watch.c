/* Calls one function of a QNN library many times: `watch LIBRARY FUNCTION TIMES`, prints the
 * nanoseconds of one call and of one clock reading. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef uint64_t word;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

int main(int count, char **words) {
    void *library = count == 4 ? dlopen(words[1], RTLD_NOW) : NULL;
    word (*providers)(const void ***, uint32_t *), (*function)(word, word);
    const void **list;
    uint32_t number;
    word out[2] = {0, 0}, first = (word)(uintptr_t)out, second = first;
    long i, times;
    double begun, best = 1e18;
    int turn;
    if (library == NULL) return 2;
    providers = (word(*)(const void ***, uint32_t *))(uintptr_t)dlsym(library, "QnnInterface_getProviders");
    if (providers == NULL || providers(&list, &number)) return 2;
    function = ((word(**)(word, word))((char *)(uintptr_t)list[0] + 40))[atoi(words[2])];
    if (atoi(words[2]) == 26) { /* QnnLog_setLogLevel takes a log */
        word (*create)(word, word, word *) = ((word(**)(word, word, word *))((char *)(uintptr_t)list[0] + 40))[25];
        if (create(0, 1, &first)) return 2;
        second = 1;
    }
    times = atol(words[3]);
    if (function(first, second)) return 3; /* a failed call would also be reported */
    for (turn = 0; turn < 7; turn++) { /* the fastest turn counts */
        begun = now();
        for (i = 0; i < times; i++) function(first, second);
        if (now() - begun < best) best = now() - begun;
    }
    printf("%.1f", best / (double)times);
    for (turn = 0, best = 1e18; turn < 7; turn++) {
        begun = now();
        for (i = 0; i < times; i++) now();
        if (now() - begun < best) best = now() - begun;
    }
    printf(" %.1f\n", best / (double)times);
    return 0;
}
