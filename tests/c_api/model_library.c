/* A model library as the vendor's tools build them, with one small graph: x, Relu, y.
 *
 * Written from the public signature. ENTRIES is the length of the interface table in the SDK of the
 * build. An older SDK has a shorter table, so the arguments after the table lie earlier. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef ENTRIES
#define ENTRIES 75
#endif

typedef struct {
    void *functions[ENTRIES];
} table_t;

typedef struct {
    uint32_t id;
    const char *name;
    uint32_t type, format, data_type;
    struct {
        uint32_t definition, encoding;
        float scale;
        int32_t offset;
        uint64_t rest[3];
    } quant;
    uint32_t rank;
    uint32_t *dimensions;
    uint32_t mem_type;
    uint64_t memory[2];
    uint64_t rest[3];
} body_t;

typedef struct {
    uint32_t version;
    body_t body;
} tensor_t;

typedef struct {
    uint32_t version;
    const char *name, *package, *type;
    uint32_t param_count;
    void *params;
    uint32_t input_count;
    tensor_t *inputs;
    uint32_t output_count;
    tensor_t *outputs;
} op_t;

typedef uint64_t (*create_graph_t)(void *, const char *, const void **, void **);
typedef uint64_t (*create_tensor_t)(void *, tensor_t *);
typedef uint64_t (*add_node_t)(void *, op_t);

static uint32_t dimensions[2] = {1, 64};

static tensor_t tensor(const char *name, uint32_t type) {
    tensor_t made;
    memset(&made, 0, sizeof made);
    made.version = 1;
    made.body.name = name;
    made.body.type = type;
    made.body.data_type = 0x0408; /* unsigned fixed point of 8 bits */
    made.body.quant.definition = 1;
    made.body.quant.scale = 0.5f;
    made.body.quant.offset = -100;
    made.body.rank = 2;
    made.body.dimensions = dimensions;
#ifdef MEMHANDLE
    made.body.mem_type = 1;
#endif
    return made;
}

uint32_t QnnModel_composeGraphs(void *backend, table_t table, void *context, const void **configs,
                                uint32_t config_count, void ***infos, uint32_t *count, bool debug,
                                void (*log)(void), uint32_t level) {
    void *graph = 0;
    (void)backend, (void)configs, (void)config_count, (void)infos, (void)level;
    if (debug || log) return 77;
#ifdef CRASH
    *(volatile int *)0 = 1;
#endif
    if (((create_graph_t)table.functions[15])(context, "library_net", 0, &graph)) return 1;
    tensor_t x = tensor("x", 0), y = tensor("y", 1);
    if (((create_tensor_t)table.functions[24])(graph, &x)) return 2;
    if (((create_tensor_t)table.functions[24])(graph, &y)) return 3;
    op_t op = {1, "relu", "qti.aisw", "Relu", 0, 0, 1, &x, 1, &y};
    if (((add_node_t)table.functions[18])(graph, op)) return 4;
    *count = 1;
    return 0;
}
