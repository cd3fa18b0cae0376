/* The inner loops of the planner: greedy placement, elimination and the exact search.

   Python calls these through planner/packing.py. planner/plain_packing.py holds the same
   algorithms in Python, as the fallback and as the oracle of the tests: both give the same offsets,
   and a search counts the same work.

   Buffers are sorted by their first section. Buffer u covers sections lo[u] <= s < hi[u], is size[u]
   units high and sits at multiples of align[u]; first[s] is the first buffer born in section s or
   later. All sizes and alignments add up to at most 2^60, so that no sum here can overflow. Nothing
   looks at a clock: effort is counted in elementary work, the same on every machine. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define NEVER INT64_MAX

typedef int64_t i64;
typedef uint8_t u8;

typedef struct {
    i64 count, sections;
    const i64 *lo, *hi, *size, *align, *first;
} Buffers;

static i64 least_of(i64 a, i64 b) { return a < b ? a : b; }
static i64 most_of(i64 a, i64 b) { return a > b ? a : b; }
static i64 round_up(i64 value, i64 align) { return (value + align - 1) / align * align; }

/* Room for count objects and never none: malloc(0) may return NULL. */
static void *room(i64 count, size_t size) { return malloc((size_t)(count + 1) * size); }
static void *zeros(i64 count, size_t size) { return calloc((size_t)(count + 1), size); }

/* ---- Elimination: buffers that fit whatever the others do ---- */

/* Fenwick trees: prefix sums under point updates, both in O(log n). */
static void tree_add(i64 *tree, i64 length, i64 at, i64 value) {
    for (i64 k = at + 1; k <= length; k += k & -k) tree[k - 1] += value;
}

static i64 tree_sum(const i64 *tree, i64 to) {
    i64 total = 0;
    for (i64 k = to + 1; k > 0; k -= k & -k) total += tree[k - 1];
    return total;
}

typedef struct {
    i64 *born_size, *born_count, *dead_size, *dead_count;
} Census;

static void census_add(const Buffers *b, const Census *c, i64 u, i64 sign) {
    i64 length = b->sections + 1;
    tree_add(c->born_size, length, b->lo[u], sign * b->size[u]);
    tree_add(c->born_count, length, b->lo[u], sign);
    tree_add(c->dead_size, length, b->hi[u], sign * b->size[u]);
    tree_add(c->dead_count, length, b->hi[u], sign);
}

static int always_fits(const Buffers *b, const Census *c, i64 u, i64 limit) {
    i64 size = b->size[u], align = b->align[u], last = b->hi[u] - 1, first = b->lo[u];
    i64 total = tree_sum(c->born_size, last) - tree_sum(c->dead_size, first) - size;
    i64 count = tree_sum(c->born_count, last) - tree_sum(c->dead_count, first) - 1;
    if (size + align > ((i64)1 << 61) / (count + 1)) return 0; /* would overflow below */
    i64 blocked = (total + count * (size + align - 2)) / align;
    return limit / align + 1 > blocked;
}

/* The number of buffers that fit wherever the others are, written to `order` as they may be set
   aside; -1 without memory. planner/plain_packing.py has the argument. */
API i64 packing_eliminate(const Buffers *b, const i64 *limit, i64 most_looks, i64 *order) {
    i64 *trees = zeros(4 * (b->sections + 1), sizeof(i64)), removed = -1;
    u8 *gone = zeros(b->count, 1);
    if (trees && gone) {
        i64 length = b->sections + 1, before = -1, looks = 0;
        Census c = {trees, trees + length, trees + 2 * length, trees + 3 * length};
        for (i64 u = 0; u < b->count; u++) census_add(b, &c, u, 1);
        removed = 0;
        while (removed > before && looks < most_looks) {
            before = removed;
            looks += b->count;
            for (i64 u = 0; u < b->count; u++) {
                if (gone[u] || !always_fits(b, &c, u, limit[u])) continue;
                gone[u] = 1;
                order[removed++] = u;
                census_add(b, &c, u, -1);
            }
        }
    }
    free(trees);
    free(gone);
    return removed;
}

/* ---- Greedy placement ----

   Two things keep it near the number of overlapping pairs. The placed buffers that share a section
   come from an interval tree: `latest` holds for each block of buffers, and each subtree of blocks,
   the largest `hi` placed there. And they come out sorted by offset without sorting: most placed
   buffers carry a rank, marking ranks and reading the marks in order sorts them; only the few placed
   since the ranks were last renewed are really sorted. */

enum { BLOCK = 16 };

typedef struct {
    i64 leaves;
    i64 *latest;
    i64 *rank; /* by offset; -1 for buffers placed since ranks were renewed */
    i64 *by_rank, *recent, *near, *spare;
    u8 *marks; /* padded to whole words of eight */
} Placed;

static void note_placed(const Placed *p, i64 u, i64 hi) {
    for (i64 node = p->leaves + u / BLOCK; node > 0 && p->latest[node] < hi; node /= 2)
        p->latest[node] = hi;
}

/* Merge sort by offset; equal offsets keep their order. */
static void sort_by_offset(i64 *list, i64 count, const i64 *offsets, i64 *spare) {
    if (count < 2) return;
    i64 half = count / 2;
    sort_by_offset(list, half, offsets, spare);
    sort_by_offset(list + half, count - half, offsets, spare);
    memcpy(spare, list, (size_t)half * sizeof(i64));
    for (i64 i = 0, j = half, k = 0; i < half; k++)
        list[k] = j < count && offsets[list[j]] < offsets[spare[i]] ? list[j++] : spare[i++];
}

static i64 renew_ranks(const Placed *p, const i64 *offsets, i64 count) {
    i64 ranked = 0;
    for (i64 u = 0; u < count; u++)
        if (offsets[u] >= 0) p->by_rank[ranked++] = u;
    sort_by_offset(p->by_rank, ranked, offsets, p->spare);
    for (i64 r = 0; r < ranked; r++) p->rank[p->by_rank[r]] = r;
    return ranked;
}

/* Mark the ranked buffers that share a section with `i`, list the others; adds to `seen`. */
static i64 mark_overlapping(const Buffers *b, const Placed *p, const i64 *offsets, i64 i, i64 *seen) {
    i64 lo = b->lo[i], bound = b->first[b->hi[i]], late = 0;
    i64 stack[64], depth = 1; /* two for each level of a tree with fewer than 2^32 leaves */
    stack[0] = 1;
    while (depth > 0) {
        i64 node = stack[--depth];
        if (p->latest[node] <= lo) continue;
        if (node < p->leaves) {
            i64 left = node;
            while (left < p->leaves) left *= 2;
            if ((left - p->leaves) * BLOCK < bound) {
                stack[depth++] = 2 * node + 1;
                stack[depth++] = 2 * node;
            }
            continue;
        }
        i64 begin = (node - p->leaves) * BLOCK, end = least_of(begin + BLOCK, bound);
        *seen += BLOCK;
        for (i64 u = begin; u < end; u++) {
            if (b->hi[u] <= lo || offsets[u] < 0) continue;
            if (p->rank[u] >= 0) p->marks[p->rank[u]] = 1;
            else p->recent[late++] = u;
        }
    }
    return late;
}

/* Write marked and recent buffers to `near` by offset, clear the marks, return the count. */
static i64 read_marks(const Placed *p, const i64 *offsets, i64 late, i64 ranked) {
    i64 k = 0, q = 0;
    for (i64 w = 0; w < (ranked + 7) / 8; w++) {
        uint64_t word;
        memcpy(&word, p->marks + 8 * w, 8);
        if (!word) continue;
        for (i64 r = 8 * w; r < 8 * w + 8; r++) {
            if (!p->marks[r]) continue;
            i64 u = p->by_rank[r];
            while (q < late && offsets[p->recent[q]] < offsets[u]) p->near[k++] = p->recent[q++];
            p->near[k++] = u;
        }
        memset(p->marks + 8 * w, 0, 8);
    }
    while (q < late) p->near[k++] = p->recent[q++];
    return k;
}

/* Lowest offset, or with `best_fit` the one in the tightest gap, that keeps clear of `near`. */
static i64 lowest_gap(const Buffers *b, const i64 *near, i64 count, const i64 *offsets, i64 i,
                      int best_fit) {
    i64 need = b->size[i], align = b->align[i], top = 0, chosen = -1, tightest = -1;
    for (i64 k = 0; k < count; k++) {
        i64 u = near[k];
        if (offsets[u] > top) {
            i64 offset = round_up(top, align), gap = offsets[u] - top;
            if (offsets[u] - offset >= need && (chosen < 0 || gap < tightest)) {
                chosen = offset, tightest = gap;
                if (!best_fit) break;
            }
        }
        top = most_of(top, offsets[u] + b->size[u]);
    }
    return chosen >= 0 ? chosen : round_up(top, align);
}

/* Place the buffers of `order` one by one around those whose offset is already >= 0. Returns how
   many were reached before the limit, at least one, or -1 without memory; adds to `work`. */
API i64 packing_place(const Buffers *b, const i64 *order, i64 length, i64 *offsets, int best_fit,
                      i64 work_limit, i64 *work) {
    i64 n = b->count, turn = -1;
    Placed p = {.leaves = 1};
    while (p.leaves * BLOCK < n) p.leaves *= 2;
    p.latest = zeros(2 * p.leaves, sizeof(i64));
    i64 *lists = room(5 * n, sizeof(i64));
    p.marks = zeros(8 * (n / 8 + 1), 1);
    if (p.latest && lists && p.marks) {
        p.rank = lists, p.by_rank = lists + n, p.recent = lists + 2 * n, p.near = lists + 3 * n;
        p.spare = lists + 4 * n;
        for (i64 u = 0; u < n; u++) {
            p.rank[u] = -1;
            if (offsets[u] >= 0) note_placed(&p, u, b->hi[u]);
        }
        i64 ranked = 0, unranked = n;
        for (turn = 0; turn < length; turn++) {
            i64 i = order[turn], seen = 0;
            if (offsets[i] >= 0) continue;
            if (*work > work_limit) break;
            if (unranked > 32 + ranked / 12) {
                ranked = renew_ranks(&p, offsets, n);
                unranked = 0;
                *work += 2 * n;
            }
            i64 late = mark_overlapping(b, &p, offsets, i, &seen);
            sort_by_offset(p.recent, late, offsets, p.spare);
            i64 count = read_marks(&p, offsets, late, ranked);
            offsets[i] = lowest_gap(b, p.near, count, offsets, i, best_fit);
            *work += 64 + seen + ranked / 8 + 2 * count;
            unranked++;
            note_placed(&p, i, b->hi[i]);
        }
    }
    free(p.latest);
    free(lists);
    free(p.marks);
    return turn;
}

/* ---- The exact search; planner/plain_packing.py has the idea and why it is complete ---- */

typedef struct {
    Buffers buffers;
    const i64 *limit; /* highest offset that keeps a buffer below the capacity */
    const i64 *twin;  /* equal for buffers that can be exchanged for each other */
    i64 *start, *near; /* the neighbours of u are near[start[u]] up to near[start[u + 1]] */
    i64 *cap;         /* for each section the highest end that any of its buffers may reach */
} Core;

static void list_neighbours(Core *core, i64 *fill) {
    const Buffers *b = &core->buffers;
    i64 n = b->count, *start = core->start;
    for (i64 i = 0; i < n; i++)
        for (i64 j = i + 1; j < n && b->lo[j] < b->hi[i]; j++) start[i + 1]++, start[j + 1]++;
    for (i64 i = 0; i < n; i++) start[i + 1] += start[i];
    memcpy(fill, start, (size_t)n * sizeof(i64));
    for (i64 i = 0; i < n; i++)
        for (i64 j = i + 1; j < n && b->lo[j] < b->hi[i]; j++) {
            core->near[fill[i]++] = j;
            core->near[fill[j]++] = i;
        }
}

/* Fill in the arrays of a core that follow from the others, all of them the caller's and zero
   before. Returns -1 without memory. */
API int packing_prepare(Core *core) {
    const Buffers *b = &core->buffers;
    i64 *fill = room(b->count, sizeof(i64));
    if (!fill) return -1;
    list_neighbours(core, fill);
    free(fill);
    for (i64 u = 0; u < b->count; u++)
        for (i64 s = b->lo[u]; s < b->hi[u]; s++)
            core->cap[s] = most_of(core->cap[s], core->limit[u] + b->size[u]);
    return 0;
}

enum { FEW, TIGHT, LOW };                        /* branching rules */
enum { EXHAUSTED = 0, SOLVED = 1, CUT = -1, NO_MEMORY = -2 };

/* A choice point: the component it belongs to, the section and floor it fills, its choices
   `next`..`to`, whether the floor must be filled, and what to go back to. */
typedef struct {
    i64 a, b, parent, section, floor, must, to, next, marks, head, length;
    uint64_t key, check;
} Frame;

typedef struct { i64 buffer, least; } Mark;      /* buffer < 0: -1 - buffer was placed */
typedef struct { i64 a, b, parent, next; } Component;
typedef struct { uint64_t key, check; } Failed;  /* hashes of a state; 0 where there is none */

typedef struct {
    const Core *core;
    const i64 *rank;           /* of buffers that could sit on one floor: the lowest goes first */
    i64 rule, wall_bonus;
    i64 *least;                /* least offset a buffer can still take; of a placed one its offset */
    double *weight;            /* for each section the conflicts met there */
    u8 *placed, *viable;       /* viable: can take part in covering its pit */
    i64 *total;                /* for each section the size of its unplaced buffers */
    i64 *floor, *second, *height; /* least offset, the next above it, height if stacked */
    i64 *options, *must;       /* ways to go on at a floor; 1 where it has to be covered */
    u8 *reach;                 /* bit 0: sections before can be covered, bit 1: those from here */
    i64 *alive, *links;        /* changes at a section: buffers, and links to the one before */
    i64 *bounds;               /* components that a split found: from, to */
    i64 *order, *chosen, *worth;
    Mark *trail;
    Component *agenda;
    Frame *frames;
    i64 *choice;
    i64 trail_room, agenda_room, frame_room, choice_room;
    i64 marks, head, length, depth, work;
    Failed *memo;
    i64 memo_slots;            /* a power of two */
} Search;

static int grow(void **table, i64 *there, i64 needed, size_t size) {
    if (needed <= *there) return 1;
    void *larger = realloc(*table, (size_t)(*there + needed) * size);
    if (!larger) return 0;
    *table = larger;
    *there += needed;
    return 1;
}

/* Whether the tables hold whatever the next choice adds; makes them longer where they do not. */
static int make_room(Search *s) {
    i64 count = s->core->buffers.count, used = s->depth > 0 ? s->frames[s->depth - 1].to : 0;
    return grow((void **)&s->trail, &s->trail_room, s->marks + count + 1, sizeof(Mark)) &&
           grow((void **)&s->agenda, &s->agenda_room, s->length + s->core->buffers.sections + 1,
                sizeof(Component)) &&
           grow((void **)&s->frames, &s->frame_room, s->depth + 1, sizeof(Frame)) &&
           grow((void **)&s->choice, &s->choice_room, used + count, sizeof(i64));
}

static double heaviest(const double *weight, i64 a, i64 b) {
    double most = weight[a];
    for (i64 s = a + 1; s < b; s++)
        if (weight[s] > most) most = weight[s];
    return most;
}

/* List the components of the unplaced buffers in sections a..b, least conflicted first. */
static i64 split(Search *s, i64 a, i64 b) {
    const Buffers *box = &s->core->buffers;
    i64 *alive = s->alive, *links = s->links, *bounds = s->bounds;
    memset(alive + a, 0, (size_t)(b + 2 - a) * sizeof(i64));
    memset(links + a, 0, (size_t)(b + 2 - a) * sizeof(i64));
    for (i64 u = box->first[a]; u < box->first[b]; u++) {
        if (s->placed[u]) continue;
        alive[box->lo[u]]++, alive[box->hi[u]]--;
        links[box->lo[u] + 1]++, links[box->hi[u]]--;
    }
    i64 found = 0, living = 0, linked = 0, start = -1;
    for (i64 q = a; q <= b; q++) {
        living += alive[q];
        linked += links[q];
        if (start >= 0 && linked == 0) {
            double heavy = heaviest(s->weight, start, q);
            i64 k = found++;
            for (; k > 0 && heaviest(s->weight, bounds[2 * k - 2], bounds[2 * k - 1]) > heavy; k--)
                bounds[2 * k] = bounds[2 * k - 2], bounds[2 * k + 1] = bounds[2 * k - 1];
            bounds[2 * k] = start, bounds[2 * k + 1] = q;
            start = -1;
        }
        if (start < 0 && living > 0) start = q;
    }
    return found;
}

static void add_components(Search *s, i64 found, i64 parent) {
    for (i64 k = 0; k < found; k++) {
        s->agenda[s->length] = (Component){s->bounds[2 * k], s->bounds[2 * k + 1], parent, s->head};
        s->head = s->length++;
    }
}

/* Write the unplaced buffers of a component to `order` by least offset; return how many. */
static i64 gather(Search *s, i64 begin, i64 end) {
    i64 *order = s->order, *least = s->least, m = 0, gap = 1;
    for (i64 u = begin; u < end; u++)
        if (!s->placed[u]) order[m++] = u;
    while (3 * gap + 1 < m) gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3) /* Shell's sort: short lists, sorted again and again */
        for (i64 k = gap; k < m; k++) {
            i64 u = order[k], j = k;
            for (; j >= gap && least[order[j - gap]] > least[u]; j -= gap) order[j] = order[j - gap];
            order[j] = u;
        }
    return m;
}

/* The finaliser of splitmix64 spreads a state over 64 bits. */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* Two hashes of the unplaced buffers and their least offsets, whatever their order. */
static Failed hash_state(const Search *s, i64 count) {
    Failed state = {0, 0};
    for (i64 k = 0; k < count; k++) {
        uint64_t u = (uint64_t)s->order[k];
        uint64_t word = (uint64_t)s->least[u] * UINT64_C(0x9E3779B97F4A7C15) + u;
        state.key += mix(word);
        state.check += mix(word ^ UINT64_C(0x632BE59BD9B4E019));
    }
    return state;
}

enum { PROBES = 4 };

static Failed *memo_slot(const Search *s, Failed state, int probe) {
    return s->memo + ((state.key + (uint64_t)probe) & (uint64_t)(s->memo_slots - 1));
}

static int is_known(const Search *s, Failed state) {
    for (int probe = 0; probe < PROBES; probe++) {
        Failed *slot = memo_slot(s, state, probe);
        if (slot->key == state.key && slot->check == state.check) return 1;
    }
    return 0;
}

/* Keep a state that failed; the last slot of a full row is overwritten. */
static void remember(const Search *s, Failed state) {
    int probe = 0;
    while (probe < PROBES - 1 && memo_slot(s, state, probe)->key) probe++;
    *memo_slot(s, state, probe) = state;
}

/* Find floors, the next least offsets and the heights of sections a..b. */
static void stack_up(Search *s, i64 count, i64 a, i64 b) {
    const Buffers *box = &s->core->buffers;
    for (i64 q = a; q < b; q++) s->floor[q] = s->second[q] = NEVER, s->height[q] = 0;
    for (i64 k = 0; k < count; k++) {
        i64 u = s->order[k], lo = box->lo[u], width = box->hi[u] - lo;
        i64 level = s->least[u], size = box->size[u];
        /* Separate plain loops: the hottest lines of the search, which the compiler vectorises. */
        i64 *restrict low = s->floor + lo, *restrict above = s->second + lo;
        i64 *restrict high = s->height + lo;
        for (i64 q = 0; q < width; q++) low[q] = least_of(low[q], level);
        for (i64 q = 0; q < width; q++) above[q] = least_of(above[q], level > low[q] ? level : NEVER);
        for (i64 q = 0; q < width; q++) high[q] = most_of(high[q], level) + size;
        s->work += width / 4;
    }
}

/* Whether some section passes its capacity; such sections gain weight. */
static int too_high(Search *s, i64 a, i64 b) {
    int failed = 0;
    for (i64 q = a; q < b; q++)
        if (s->height[q] > s->core->cap[q]) s->weight[q] += 1.0, failed = 1;
    return failed;
}

static int by_number(const void *a, const void *b) {
    i64 x = *(const i64 *)a, y = *(const i64 *)b;
    return (x > y) - (x < y);
}

/* Buffers inside sections s..t that could sit on the floor, by first section. */
static i64 list_on_floor(Search *s, i64 count, i64 from, i64 to, i64 level) {
    const Buffers *box = &s->core->buffers;
    i64 low = 0, high = count, found = 0;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (s->least[s->order[middle]] < level) low = middle + 1;
        else high = middle;
    }
    for (; low < count && s->least[s->order[low]] == level; low++) {
        i64 u = s->order[low];
        if (from <= box->lo[u] && box->hi[u] <= to) s->chosen[found++] = u;
    }
    qsort(s->chosen, (size_t)found, sizeof(i64), by_number);
    return found;
}

/* Whether the floor of sections from..to can be filled as far as it must be.

   A section whose buffers would pass the capacity if none of them sat on the floor must be covered
   by one that does. Buffers on one floor do not overlap in time, so going along the sections from
   both ends tells which of them can take part in such a covering. Fills in `must`, `options`
   (buffers that can, plus one if the section may stay empty) and `viable`. */
static int cover(Search *s, i64 count, i64 from, i64 to, i64 smallest) {
    const Buffers *box = &s->core->buffers;
    i64 level = s->floor[from], *must = s->must;
    u8 *reach = s->reach;
    for (i64 q = from; q < to; q++) {
        /* The next thing to rest on is a buffer of the run on this floor or something higher up. */
        i64 empty = least_of(s->second[q], level + smallest);
        must[q] = empty + s->total[q] > s->core->cap[q];
        s->options[q] = 1 - must[q];
        reach[q + 1] = 0;
    }
    reach[from] = 1;
    i64 found = list_on_floor(s, count, from, to, level), k = 0;
    for (i64 q = from; q < to; q++) {
        if (reach[q] && !must[q]) reach[q + 1] = 1;
        for (; k < found && box->lo[s->chosen[k]] == q; k++)
            if (reach[q]) reach[box->hi[s->chosen[k]]] = 1;
    }
    if (!reach[to]) return 0;
    reach[to] = 3;
    k = found - 1;
    for (i64 q = to - 1; q >= from; q--) {
        if (!must[q] && reach[q + 1] >= 2) reach[q] |= 2;
        for (; k >= 0 && box->lo[s->chosen[k]] == q; k--) {
            i64 u = s->chosen[k];
            if (reach[box->hi[u]] < 2) continue;
            if (reach[q] & 1) {
                s->viable[u] = 1;
                for (i64 p = q; p < box->hi[u]; p++) s->options[p]++;
            }
            reach[q] |= 2;
        }
    }
    return 1;
}

typedef struct { i64 section, left, right; } Pit;

/* The section to branch on and the ends of its pit; -1: a dead end.

   A pit is a run of sections with one floor and higher floors on both sides. A section scores by
   its choices and by how few conflicts it has met: the branching rules. */
static Pit choose(Search *s, i64 count, i64 a, i64 b) {
    const i64 *cap = s->core->cap, *floor = s->floor;
    i64 smallest = NEVER;
    for (i64 k = 0; k < count; k++) {
        smallest = least_of(smallest, s->core->buffers.size[s->order[k]]);
        s->viable[s->order[k]] = 0;
    }
    Pit best = {-1, -1, -1};
    double lowest = 0.0;
    for (i64 from = a, to; from < b; from = to) {
        for (to = from + 1; to < b && floor[to] == floor[from]; to++) {}
        int is_pit = (from == a || floor[from - 1] > floor[from]) && (to == b || floor[to] > floor[from]);
        if (!is_pit) continue;
        if (!cover(s, count, from, to, smallest)) {
            for (i64 q = from; q < to; q++) s->weight[q] += (double)s->must[q] / (double)(to - from);
            return (Pit){-1, -1, -1};
        }
        for (i64 q = from; q < to; q++) {
            double score = (double)s->options[q] / s->weight[q];
            if (s->options[q] > 1 && s->rule == TIGHT)
                score *= (double)(cap[q] - s->height[q]) / (double)cap[q] + 0.05;
            else if (s->options[q] > 1 && s->rule == LOW)
                score *= (double)floor[q] + 1.0;
            if (best.section < 0 || score < lowest) best = (Pit){q, from, to}, lowest = score;
        }
    }
    return best;
}

/* Write the buffers that can sit on the floor, the best first and each kind once. A buffer that
   touches a wall of the pit leaves no narrow pit beside it. */
static i64 list_choices(Search *s, i64 count, Pit pit, i64 *choice) {
    const Buffers *box = &s->core->buffers;
    const i64 *twin = s->core->twin;
    i64 end = 0, *worth = s->worth;
    for (i64 i = 0; i < count; i++) {
        i64 u = s->order[i], k = 0;
        if (!s->viable[u] || box->lo[u] > pit.section || box->hi[u] <= pit.section) continue;
        while (k < end && twin[choice[k]] != twin[u]) k++;
        if (k < end) continue;
        i64 touched = (box->lo[u] == pit.left) + (box->hi[u] == pit.right);
        i64 value = s->rank[u] - s->wall_bonus * touched;
        for (; k > 0 && worth[k - 1] > value; k--)
            choice[k] = choice[k - 1], worth[k] = worth[k - 1];
        choice[k] = u, worth[k] = value;
        end++;
    }
    return end;
}

/* Make a choice point for a component and return it; its parent where there is no choice. */
static i64 open_component(Search *s, Component c) {
    const Core *core = s->core;
    i64 count = gather(s, core->buffers.first[c.a], core->buffers.first[c.b]);
    Failed state = hash_state(s, count);
    s->work += 256 + 8 * count + 3 * (c.b - c.a);
    if (is_known(s, state)) return c.parent;
    stack_up(s, count, c.a, c.b);
    if (too_high(s, c.a, c.b)) return c.parent;
    Pit pit = choose(s, count, c.a, c.b);
    if (pit.section < 0) return c.parent;
    i64 start = s->depth > 0 ? s->frames[s->depth - 1].to : 0;
    i64 listed = list_choices(s, count, pit, s->choice + start);
    s->frames[s->depth] = (Frame){
        .a = c.a, .b = c.b, .parent = c.parent, .section = pit.section,
        .floor = s->floor[pit.section], .must = s->must[pit.section],
        .next = start, .to = start + listed,
        .marks = s->marks, .head = s->head, .length = s->length,
        .key = state.key, .check = state.check,
    };
    return s->depth;
}

/* Take back everything above position `to` of the trail. */
static void undo(Search *s, i64 to) {
    const Buffers *box = &s->core->buffers;
    for (i64 k = s->marks - 1; k >= to; k--) {
        i64 u = s->trail[k].buffer;
        if (u >= 0) {
            s->least[u] = s->trail[k].least;
            continue;
        }
        u = -1 - u;
        s->placed[u] = 0;
        for (i64 q = box->lo[u]; q < box->hi[u]; q++) s->total[q] += box->size[u];
    }
    s->marks = to;
}

/* Place u at its least offset and lift what must lie above it; 0 if that cannot fit. */
static int sit(Search *s, i64 u) {
    const Core *core = s->core;
    const Buffers *box = &core->buffers;
    i64 begin = core->start[u], end = core->start[u + 1], top = s->least[u] + box->size[u];
    s->work += end - begin + 1;
    s->placed[u] = 1;
    for (i64 q = box->lo[u]; q < box->hi[u]; q++) s->total[q] -= box->size[u];
    s->trail[s->marks++] = (Mark){-1 - u, 0};
    for (i64 k = begin; k < end; k++) {
        i64 v = core->near[k];
        if (s->placed[v] || s->least[v] >= top) continue;
        i64 raised = round_up(top, box->align[v]);
        if (raised > core->limit[v]) {
            i64 left = most_of(box->lo[u], box->lo[v]), right = least_of(box->hi[u], box->hi[v]);
            for (i64 q = left; q < right; q++) s->weight[q] += 1.0 / (double)(right - left);
            return 0;
        }
        s->trail[s->marks++] = (Mark){v, s->least[v]};
        s->least[v] = raised;
    }
    return 1;
}

static int covers(const Buffers *box, i64 u, i64 section) {
    return box->lo[u] <= section && section < box->hi[u];
}

/* Lowest height above `level` at which a buffer of a section can rest, or -1. */
static i64 next_rest(Search *s, i64 section, i64 level, i64 begin, i64 end) {
    const Core *core = s->core;
    const Buffers *box = &core->buffers;
    i64 height = -1;
    s->work += end - begin;
    for (i64 u = begin; u < end; u++) {
        if (s->placed[u] || !covers(box, u, section)) continue;
        if (s->least[u] > level) {
            if (height < 0 || s->least[u] < height) height = s->least[u];
            continue;
        }
        /* The lowest buffer of the section rests on one from outside it. */
        s->work += core->start[u + 1] - core->start[u];
        for (i64 k = core->start[u]; k < core->start[u + 1]; k++) {
            i64 v = core->near[k];
            if (s->placed[v] || covers(box, v, section)) continue;
            i64 rest = round_up(s->least[v] + box->size[v], box->align[u]);
            if (rest > level && (height < 0 || rest < height)) height = rest;
        }
    }
    return height;
}

/* Leave a floor empty: lift its section to the next height at which something can rest. */
static int leave_empty(Search *s, const Frame *frame) {
    const Core *core = s->core;
    const Buffers *box = &core->buffers;
    i64 begin = box->first[frame->a], end = box->first[frame->b], section = frame->section;
    i64 height = next_rest(s, section, frame->floor, begin, end);
    if (height < 0) return 0;
    for (i64 u = begin; u < end; u++) {
        if (s->placed[u] || !covers(box, u, section) || s->least[u] >= height) continue;
        i64 raised = round_up(height, box->align[u]);
        if (raised > core->limit[u]) {
            s->weight[section] += 1.0;
            return 0;
        }
        s->trail[s->marks++] = (Mark){u, s->least[u]};
        s->least[u] = raised;
    }
    return 1;
}

/* Take the next choice of choice point `last` that is possible; return the point, or -1. A point
   without a choice left is given up for the point whose choice created its component. */
static i64 take_next(Search *s, i64 last) {
    while (last >= 0) {
        Frame *frame = s->frames + last;
        s->depth = last + 1;
        undo(s, frame->marks);
        s->head = frame->head, s->length = frame->length;
        i64 taken = frame->next++;
        if (taken + frame->must > frame->to) { /* a floor that must be filled is never skipped */
            remember(s, (Failed){frame->key, frame->check});
            last = frame->parent;
        } else if (taken < frame->to) {
            if (sit(s, s->choice[taken])) return last;
        } else if (leave_empty(s, frame)) {
            return last;
        }
    }
    return -1;
}

static int run(Search *s, i64 work_limit) {
    i64 a = 0, b = s->core->buffers.sections, parent = -1; /* the component that changed last */
    for (;;) {
        if (!make_room(s)) return NO_MEMORY;
        add_components(s, split(s, a, b), parent);
        if (s->head < 0) return SOLVED;
        if (s->work > work_limit) return CUT;
        Component next = s->agenda[s->head];
        s->head = next.next;
        i64 last = take_next(s, open_component(s, next));
        if (last < 0) return EXHAUSTED;
        a = s->frames[last].a, b = s->frames[last].b, parent = last;
    }
}

/* One search from the start: how it ended, with offsets in `least` where it is SOLVED. `weight`
   (conflicts met by each section) and `memo` (failed states) help the next search for the same
   capacity. */
API int packing_search(const Core *core, const i64 *rank, i64 rule, i64 wall_bonus, i64 *least,
                       double *weight, Failed *memo, i64 memo_slots, i64 work_limit, i64 *work) {
    i64 n = core->buffers.count, sections = core->buffers.sections;
    Search s = {.core = core, .rank = rank, .rule = rule, .wall_bonus = wall_bonus, .least = least,
                .weight = weight, .memo = memo, .memo_slots = memo_slots, .head = -1};
    i64 *lines = room(8 * (sections + 2) + 2 * (sections + 2), sizeof(i64));
    i64 *lists = room(3 * n, sizeof(i64));
    u8 *flags = zeros(2 * n + sections + 1, 1);
    int status = NO_MEMORY;
    if (lines && lists && flags) {
        i64 length = sections + 2;
        s.total = lines, s.floor = lines + length, s.second = lines + 2 * length;
        s.height = lines + 3 * length, s.options = lines + 4 * length, s.must = lines + 5 * length;
        s.alive = lines + 6 * length, s.links = lines + 7 * length, s.bounds = lines + 8 * length;
        s.order = lists, s.chosen = lists + n, s.worth = lists + 2 * n;
        s.placed = flags, s.viable = flags + n, s.reach = flags + 2 * n;
        memset(s.total, 0, (size_t)length * sizeof(i64));
        for (i64 u = 0; u < n; u++) {
            least[u] = 0;
            s.total[core->buffers.lo[u]] += core->buffers.size[u];
            s.total[core->buffers.hi[u]] -= core->buffers.size[u];
        }
        for (i64 q = 1; q < sections; q++) s.total[q] += s.total[q - 1];
        status = run(&s, work_limit);
    }
    *work = s.work;
    free(lines);
    free(lists);
    free(flags);
    free(s.trail);
    free(s.agenda);
    free(s.frames);
    free(s.choice);
    return status;
}
