/* Search for fixed texts in a log: which lines contain one, and at which offsets. Case is ignored.

   Few offsets of a log start a text. Therefore four bytes at every second offset are looked up in a
   table. For each text, the table contains one window at an even and one at an odd offset. Texts are
   compared only if the cell is set. The functions write only to the caller's buffers and keep no
   pointer to them. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN __attribute__((visibility("default")))
#define CELLS_BELOW 14 /* low bits of a hash that do not select its cell; three of them select its bit */
#define HEADS_BELOW 18
#define WINDOW 4
#define SHORTEST 3   /* bytes of a text; a window would contain too little of a shorter text */
#define LONGEST 65535
#define MOST 65535   /* texts */
#define NONE UINT32_MAX
#define SHORT 4096 /* bytes of a line that is compared with whole messages */
#define ANCHORS 32 /* anchors stored for one line */
#define SPLIT 3    /* following lines that a message may continue in */

/* Kinds of texts: of a known message, a failure word, a QNN word, a QNN name. A BOUND text needs a word boundary:
   no letter or digit before it, and no digit after a final digit. Otherwise `default` would contain
   `fault`, and 410021 would contain 1002. */
enum { KNOWN = 1, FAILING = 2, BOUND = 4, OURS = 8, NAMED = 16 };

struct window {
    uint32_t bytes; /* in lower case */
    uint32_t next;
    uint32_t text;
    int32_t at; /* offset of the window in the text; -1 if it begins one byte before the text */
};

struct text {
    const uint8_t *bytes;
    uint32_t length;
    uint32_t kind;
};

struct texts {
    uint8_t cells[1 << (32 - CELLS_BELOW)];
    uint32_t heads[1 << (32 - HEADS_BELOW)];
    uint8_t small[256];
    uint32_t common[256]; /* how often each byte, in lower case, occurs in the sample */
    struct window *windows;
    uint32_t used, room, deepest;
    uint32_t count;
    struct text *texts;
    uint8_t *bytes;
};

/* Return the hash of a window; its high bits are mixed best. */
static uint32_t number_of(uint32_t bytes)
{
    return bytes * 0x9E3779B1u;
}

static uint8_t bit_of(uint32_t number)
{
    return (uint8_t)(1u << (number >> (CELLS_BELOW - 3) & 7));
}

static uint32_t alike(uint32_t bytes)
{
    return bytes | 0x20202020u;
}

static uint32_t window_at(const uint8_t *data)
{
    uint32_t bytes;
    memcpy(&bytes, data, WINDOW);
    return alike(bytes);
}

static int add_window(struct texts *t, const uint8_t *bytes, uint32_t text, int32_t at)
{
    if (t->used == t->room) {
        uint32_t room = t->room ? 2 * t->room : 1024;
        struct window *more = realloc(t->windows, room * sizeof *more);
        if (!more)
            return 0;
        t->windows = more;
        t->room = room;
    }
    uint32_t window = window_at(bytes), number = number_of(window);
    uint32_t *head = &t->heads[number >> HEADS_BELOW];
    t->cells[number >> CELLS_BELOW] |= bit_of(number);
    t->windows[t->used] = (struct window){window, *head, text, at};
    *head = t->used++;
    return 1;
}

/* Add the windows with one byte outside the text, for all values of that byte, ignoring case. */
static int add_wild(struct texts *t, uint8_t *bytes, int wild, uint32_t text, int32_t at)
{
    for (uint32_t value = 0; value < 256; value++) {
        bytes[wild] = (uint8_t)value;
        if ((value & 0x20) && !add_window(t, bytes, text, at))
            return 0;
    }
    return 1;
}

/* Return how often a window occurs in the sample. Windows with digits count as frequent: times and
   process ids differ from line to line, so a sample says nothing about them. */
static uint32_t times_of(const uint32_t *times, const uint8_t *bytes)
{
    for (int i = 0; i < WINDOW; i++)
        if (bytes[i] >= '0' && bytes[i] <= '9')
            return NONE / 4;
    return times[number_of(window_at(bytes)) >> CELLS_BELOW];
}

static int add_text(struct texts *t, uint32_t number, uint32_t *times)
{
    const uint8_t *bytes = t->texts[number].bytes;
    uint32_t length = t->texts[number].length;
    uint8_t cut[WINDOW];
    if (length > WINDOW) {
        uint32_t best = 0, least = NONE;
        for (uint32_t at = 0; at + WINDOW < length; at++) {
            uint32_t sum = times_of(times, bytes + at) + times_of(times, bytes + at + 1);
            if (sum < least) {
                least = sum;
                best = at;
            }
        }
        /* Count the chosen windows, so that the next text prefers other bytes. */
        times[number_of(window_at(bytes + best)) >> CELLS_BELOW]++;
        times[number_of(window_at(bytes + best + 1)) >> CELLS_BELOW]++;
        return add_window(t, bytes + best, number, (int32_t)best) &&
               add_window(t, bytes + best + 1, number, (int32_t)best + 1);
    }
    memcpy(cut + 1, bytes, WINDOW - 1);
    if (!add_wild(t, cut, 0, number, -1))
        return 0;
    if (length == WINDOW)
        return add_window(t, bytes, number, 0);
    memcpy(cut, bytes, SHORTEST);
    return add_wild(t, cut, WINDOW - 1, number, 0);
}

SHOWN void texts_free(struct texts *t)
{
    if (!t)
        return;
    free(t->windows);
    free(t->texts);
    free(t->bytes);
    free(t);
}

/* Return the search for these concatenated lower-case texts; NULL if a text is too short or too long,
   or if memory is short. The search looks for the bytes of each text that are rarest in a sample. */
SHOWN struct texts *texts_new(const uint8_t *bytes, const uint32_t *lengths, const uint8_t *kinds,
                              uint32_t count, const uint8_t *sample, size_t size)
{
    struct texts *t = calloc(1, sizeof *t);
    uint32_t *times = calloc(1 << (32 - CELLS_BELOW), sizeof *times);
    size_t total = 0;
    if (!t || !times || count > MOST)
        goto failed;
    for (size_t at = 0; at + WINDOW <= size; at++)
        times[number_of(window_at(sample + at)) >> CELLS_BELOW]++;
    for (int i = 0; i < 256; i++)
        t->small[i] = (uint8_t)(i >= 'A' && i <= 'Z' ? i | 0x20 : i);
    for (size_t at = 0; at < size; at++)
        t->common[t->small[sample[at]]]++;
    for (uint32_t i = 0; i < count; i++) {
        if (lengths[i] < SHORTEST || lengths[i] > LONGEST)
            goto failed;
        total += lengths[i];
    }
    t->bytes = malloc(total + 1);
    t->texts = malloc((count + 1) * sizeof *t->texts);
    if (!t->bytes || !t->texts)
        goto failed;
    memcpy(t->bytes, bytes, total);
    memset(t->heads, 0xFF, sizeof t->heads);
    t->count = count;
    for (uint32_t i = 0, at = 0; i < count; at += lengths[i++]) {
        t->texts[i] = (struct text){t->bytes + at, lengths[i], kinds[i]};
        if (!add_text(t, i, times))
            goto failed;
    }
    for (uint32_t i = 0; i < 1 << (32 - HEADS_BELOW); i++) {
        uint32_t deep = 0;
        for (uint32_t one = t->heads[i]; one != NONE; one = t->windows[one].next)
            deep++;
        if (deep > t->deepest)
            t->deepest = deep;
    }
    free(times);
    return t;
failed:
    free(times);
    texts_free(t);
    return NULL;
}

/* Return an upper bound for the number of texts found at one offset. */
SHOWN uint32_t texts_deepest(const struct texts *t)
{
    return t->deepest;
}

static uint8_t cell_at(const struct texts *t, const uint8_t *data)
{
    return t->cells[number_of(window_at(data)) >> CELLS_BELOW];
}

static uint8_t bit_at(const struct texts *t, const uint8_t *data)
{
    return cell_at(t, data) & bit_of(number_of(window_at(data)));
}

/* Return the next offset whose bit is set, else the end. Nearly always four cells are empty. */
static size_t next_place(const struct texts *t, const uint8_t *data, size_t at, size_t end)
{
    for (; at + 8 + WINDOW <= end; at += 8) {
        const uint8_t *here = data + at;
        if (!(cell_at(t, here) | cell_at(t, here + 2) | cell_at(t, here + 4) | cell_at(t, here + 6)))
            continue;
        if (bit_at(t, here) | bit_at(t, here + 2) | bit_at(t, here + 4) | bit_at(t, here + 6))
            break;
    }
    for (; at + WINDOW <= end; at += 2)
        if (bit_at(t, data + at))
            return at;
    return at < end ? at : end; /* the last bytes are always examined */
}

static uint32_t last_window(const uint8_t *data, size_t at, size_t end)
{
    uint8_t bytes[WINDOW] = {0};
    if (end - at >= WINDOW)
        return window_at(data + at);
    memcpy(bytes, data + at, end - at);
    return window_at(bytes);
}

static int is_text(const struct texts *t, const struct window *w, const uint8_t *data, size_t at,
                   size_t end)
{
    const struct text *text = &t->texts[w->text];
    if (w->at > 0 && (size_t)w->at > at)
        return 0;
    size_t start = w->at < 0 ? at + 1 : at - (size_t)w->at;
    if (start > end || end - start < text->length)
        return 0;
    for (uint32_t i = 0; i < text->length; i++)
        if (t->small[data[start + i]] != text->bytes[i])
            return 0;
    return 1;
}

/* Run the last argument for each text with a window at an offset. */
#define FOR_TEXTS_AT(t, data, at, end, w, ...)                                                     \
    do {                                                                                           \
        uint32_t bytes_ = last_window(data, at, end);                                              \
        uint32_t one_ = (t)->heads[number_of(bytes_) >> HEADS_BELOW];                                     \
        for (; one_ != NONE; one_ = (t)->windows[one_].next) {                                     \
            const struct window *w = &(t)->windows[one_];                                          \
            if (w->bytes == bytes_ && is_text(t, w, data, at, end))                                \
                __VA_ARGS__                                                                        \
        }                                                                                          \
    } while (0)

/* Return whether one of the texts occurs. */
SHOWN int texts_any(const struct texts *t, const uint8_t *data, size_t end)
{
    for (size_t at = 0; (at = next_place(t, data, at, end)) < end; at += 2)
        FOR_TEXTS_AT(t, data, at, end, w, return 1;);
    return 0;
}

/* Return whether one of the texts occurs in a line. The bytes after the line are readable, so the end
   of the line needs no special case. */
static int any_in_line(const struct texts *t, const uint8_t *line, size_t length, size_t behind)
{
    if (behind < 8 + WINDOW)
        return texts_any(t, line, length);
    for (size_t at = 0; at < length; at += 8) {
        const uint8_t *here = line + at;
        if (!(cell_at(t, here) | cell_at(t, here + 2) | cell_at(t, here + 4) | cell_at(t, here + 6)))
            continue;
        for (size_t place = at; place < at + 8 && place < length; place += 2)
            if (bit_at(t, line + place))
                FOR_TEXTS_AT(t, line, place, length, w, return 1;);
    }
    return 0;
}

#include "line_heads.h"
#include "kept_messages.h"

enum { START, STOP, LINES, BODY, NUMBER, PROCESS, STYLE, ALONE, COLUMNS };

SHOWN size_t texts_newlines(const uint8_t *data, size_t end);

/* Return whether a BOUND text has its word boundaries. */
static int is_bound(const struct text *text, const uint8_t *data, size_t start, size_t end)
{
    size_t stop = start + text->length;
    if (start && is_word(data[start - 1]))
        return 0;
    return !is_digit(text->bytes[text->length - 1]) || stop >= end || !is_digit(data[stop]);
}

/* The fixed texts of messages, in lower case and in order; alternatives are separated by NUL bytes.
   The entries for index i of one list are those from x[i] to x[i + 1] of the next list. */
struct messages {
    const uint32_t *of_anchor; /* indexes of `messages` */
    const uint32_t *messages;
    const uint32_t *of_message; /* indexes of `ends` */
    const uint32_t *ends;       /* ends of the texts in `bytes`; the first text begins at 0 */
    const uint8_t *bytes;
};

/* Texts found in the current line. */
struct found {
    uint32_t kinds;
    uint32_t count; /* number of anchors; only the first ANCHORS are stored */
    uint32_t anchors[ANCHORS];
};

/* Record the texts at an offset. */
static void find_at(const struct texts *t, const uint8_t *data, size_t at, size_t end,
                    struct found *found)
{
    FOR_TEXTS_AT(t, data, at, end, w, {
        const struct text *text = &t->texts[w->text];
        size_t start = w->at < 0 ? at + 1 : at - (size_t)w->at;
        uint32_t kinds = text->kind;
        if ((kinds & BOUND) && !is_bound(text, data, start, end))
            kinds &= ~(uint32_t)FAILING;
        found->kinds |= kinds;
        if (kinds & KNOWN) {
            if (found->count < ANCHORS)
                found->anchors[found->count] = w->text;
            found->count++;
        }
    });
}

/* Return the earliest end of one of several texts in a line; NULL if none occurs. */
static const uint8_t *first_of(const uint8_t *texts, const uint8_t *end, const uint8_t *line,
                               size_t length)
{
    const uint8_t *first = NULL;
    while (texts < end) {
        const uint8_t *stop = memchr(texts, 0, (size_t)(end - texts));
        size_t size = (size_t)((stop ? stop : end) - texts);
        const uint8_t *place = memmem(line, length, texts, size);
        if (place && (!first || place + size < first))
            first = place + size;
        texts += size + 1;
    }
    return first;
}

static int holds_message(const struct messages *m, uint32_t message, const uint8_t *low,
                         size_t length)
{
    const uint8_t *at = low, *end = low + length;
    for (uint32_t i = m->of_message[message]; at && i < m->of_message[message + 1]; i++)
        at = first_of(m->bytes + (i ? m->ends[i - 1] : 0), m->bytes + m->ends[i], at,
                      (size_t)(end - at));
    return at != NULL;
}

/* Copy bytes with letters in lower case; without branches, so that compilers use vectors. */
static void copy_lower(uint8_t *low, const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        low[i] = (uint8_t)(bytes[i] | ((uint8_t)(bytes[i] - 'A') < 26) << 5);
}

/* Return whether a line may contain a whole message that has one of the anchors found. A line with
   colours or NUL bytes, which Python removes first, always may. */
static int may_match(const struct texts *t, const struct messages *m, const struct found *found,
                     const uint8_t *line, size_t length)
{
    uint8_t low[SHORT];
    if (length > SHORT || found->count > ANCHORS || memchr(line, '\x1b', length) ||
        memchr(line, '\0', length))
        return 1;
    copy_lower(low, line, length);
    for (uint32_t i = 0; i < found->count; i++) {
        uint32_t anchor = found->anchors[i];
        for (uint32_t one = m->of_anchor[anchor]; one < m->of_anchor[anchor + 1]; one++)
            if (holds_message(m, m->messages[one], low, length))
                return 1;
    }
    return 0;
}

/* Return whether line ends may split a text: its start stands before a line end, and the rest follows,
   whole or split again. Blanks at the line end may be missing. */
static int is_cut(const uint8_t *text, size_t size, const uint8_t *low, size_t length)
{
    const uint8_t *newline = low, *end = low + length;
    for (; (newline = memchr(newline, '\n', (size_t)(end - newline))); newline++) {
        size_t stop = (size_t)(newline - low), last = stop;
        while (last && (low[last - 1] == '\r' || low[last - 1] == ' ' || low[last - 1] == '\t'))
            last--;
        for (size_t cut = 1; last && cut < size; cut++) {
            size_t first = cut, rest = cut;
            while (first && (text[first - 1] == ' ' || text[first - 1] == '\t'))
                first--;
            if (!first || first > last || text[first - 1] != low[last - 1] ||
                memcmp(low + last - first, text, first))
                continue;
            while (rest < size && (text[rest] == ' ' || text[rest] == '\t'))
                rest++;
            if (memmem(low + stop, length - stop, text + rest, size - rest) ||
                is_cut(text + rest, size - rest, low + stop + 1, length - stop - 1))
                return 1;
        }
    }
    return 0;
}

/* Return whether the byte of a text that is rarest in the sample occurs in lower-case lines. Mostly it
   does not, and no search for the text is needed. A split text lacks at most blanks. */
static int has_rarest(const struct texts *t, const uint8_t *text, size_t size, const uint8_t *low,
                      size_t length)
{
    uint8_t rarest = text[0];
    for (size_t i = 1; i < size; i++)
        if (t->common[text[i]] < t->common[rarest] && text[i] != ' ' && text[i] != '\t')
            rarest = text[i];
    return memchr(low, rarest, length) != NULL;
}

/* Return whether one of several texts occurs in some lines, whole or split. */
static int one_may_span(const struct texts *t, const uint8_t *texts, const uint8_t *end,
                        const uint8_t *low, size_t length)
{
    while (texts < end) {
        const uint8_t *stop = memchr(texts, 0, (size_t)(end - texts));
        size_t size = (size_t)((stop ? stop : end) - texts);
        if (has_rarest(t, texts, size, low, length) &&
            (memmem(low, length, texts, size) || is_cut(texts, size, low, length)))
            return 1;
        texts += size + 1;
    }
    return 0;
}

static int message_may_span(const struct texts *t, const struct messages *m, uint32_t message,
                            const uint8_t *low, size_t length)
{
    for (int choices = 0; choices < 2; choices++) /* single texts first: they cost less */
        for (uint32_t i = m->of_message[message]; i < m->of_message[message + 1]; i++) {
            const uint8_t *text = m->bytes + (i ? m->ends[i - 1] : 0), *end = m->bytes + m->ends[i];
            int is_choice = memchr(text, 0, (size_t)(end - text)) != NULL;
            if (is_choice == choices && !one_may_span(t, text, end, low, length))
                return 0;
        }
    return 1;
}

/* Return whether a line and its neighbours may contain a message that has one of the anchors found:
   each text of the message is in the line before, in the line or in the next lines. If the buffer
   does not contain all of these lines, they may. */
static int may_span(const struct texts *t, const struct messages *m, const struct found *found,
                    const uint8_t *data, size_t start, size_t stop, size_t end)
{
    uint8_t low[SHORT];
    const uint8_t *before = start < 2 ? NULL : memrchr(data, '\n', start - 1);
    size_t first = before ? (size_t)(before - data) + 1 : 0, last = stop;
    if (stop - first > SHORT)
        return 1;
    for (int lines = 0; lines < SPLIT; lines++) {
        size_t most = end - first > SHORT ? first + SHORT : end;
        const uint8_t *behind = last < most ? memchr(data + last + 1, '\n', most - last - 1) : NULL;
        if (!behind)
            return 1;
        last = (size_t)(behind - data);
    }
    size_t length = last - first;
    if (found->count > ANCHORS || memchr(data + first, '\x1b', length) ||
        memchr(data + first, '\0', length))
        return 1;
    copy_lower(low, data + first, length);
    for (uint32_t i = 0; i < found->count; i++) {
        uint32_t anchor = found->anchors[i];
        for (uint32_t one = m->of_anchor[anchor]; one < m->of_anchor[anchor + 1]; one++)
            if (message_may_span(t, m, m->messages[one], low, length))
                return 1;
    }
    return 0;
}

/* Return whether two lines have the same process and thread: loggers that split a message repeat its
   head. */
static int is_same(const uint8_t *line, const struct head *head, const uint8_t *other,
                   const struct head *others)
{
    if (head->style != others->style || head->process == NONE)
        return 0;
    size_t length = head->names - head->stamp;
    return others->names - others->stamp == length &&
           !memcmp(line + head->stamp, other + others->stamp, length);
}

/* Return whether a line is certainly a whole message: it and the next line have a head, and neither
   the next line nor the line before is from the same thread. */
static int is_alone(const uint8_t *data, size_t start, size_t stop, size_t end,
                    const struct head *head)
{
    const uint8_t *behind = stop < end ? memchr(data + stop + 1, '\n', end - stop - 1) : NULL;
    if (start < 2 || !behind || head->style == NO_HEAD)
        return 0;
    const uint8_t *next = data + stop + 1;
    struct head other = head_of(next, (size_t)(behind - next));
    if (other.style == NO_HEAD || is_same(data + start, head, next, &other))
        return 0;
    const uint8_t *before = memrchr(data, '\n', start - 1);
    const uint8_t *last = before ? before + 1 : data;
    other = head_of(last, (size_t)(data + start - 1 - last));
    return !is_same(data + start, head, last, &other);
}

/* The texts to search for in lines. */
struct looked {
    const struct texts *first;   /* anchors of known messages, QNN words and QNN names */
    const struct texts *failing; /* failure words: they count only in a line with a QNN word */
    const struct texts *relayed; /* marks that a calm line needs as well */
    struct messages messages;
};

/* Return whether a line with a QNN word reports a failure. */
static int is_failure(const struct looked *l, const uint8_t *line, size_t length, size_t behind,
                      const struct head *head)
{
    if (is_calm(line, length, head) && !any_in_line(l->relayed, line, length, behind))
        return 0;
    struct found found = {0, 0, {0}};
    for (size_t at = 0; (at = next_place(l->failing, line, at, length)) < length; at += 2) {
        find_at(l->failing, line, at, length, &found);
        if (found.kinds & FAILING)
            return 1;
    }
    return 0;
}

/* Report lines that may contain a known message or a piece of one, or a failure in other words, each
   once. Lines that `m` knows as irrelevant are skipped. The columns of a report are: start and end of
   the line, number of line ends before it, start of its message, number of a stored message, process,
   style of the head, and whether the line is certainly a whole message. `from` must be the start of a
   line. After `most` reports, `from` is where to continue, and `lines` counts the line ends before it.
   `named` becomes 1 if a QNN name occurs, also in a line that is not reported. The bytes up to `fill`
   belong to lines that may continue the last ones. */
SHOWN size_t texts_lines(const struct looked *l, struct memory *m, const uint8_t *data, size_t end,
                         size_t fill, size_t *from, size_t *lines, uint32_t *named, uint32_t *told,
                         size_t most)
{
    const struct texts *t = l->first;
    size_t count = 0, at = *from;
    size_t counted = at;
    while (count < most && (at = next_place(t, data, at, end)) < end) {
        struct found found = {0, 0, {0}};
        find_at(t, data, at, end, &found);
        if (!found.kinds) {
            at += 2;
            continue;
        }
        /* A text may begin before its window, or a byte behind it: never with the end of a line. */
        size_t inside = data[at] == '\n' ? at + 1 : at;
        const uint8_t *before = memrchr(data, '\n', inside);
        const uint8_t *behind = memchr(data + inside, '\n', end - inside);
        size_t start = before ? (size_t)(before - data) + 1 : 0;
        size_t stop = behind ? (size_t)(behind - data) : end;
        for (at += 2; (at = next_place(t, data, at, stop)) < stop; at += 2)
            find_at(t, data, at, stop, &found);
        at = stop;
        if (found.kinds & NAMED)
            *named = 1;
        if (!(found.kinds & (KNOWN | OURS)))
            continue;
        const uint8_t *line = data + start;
        size_t length = stop - start, last = stop;
        struct head head = head_of(line, length);
        if (!((found.kinds & KNOWN) &&
              (may_match(t, &l->messages, &found, line, length) ||
               (!is_alone(data, start, stop, fill, &head) &&
                may_span(t, &l->messages, &found, data, start, stop, fill)))) &&
            !((found.kinds & OURS) && is_failure(l, line, length, end - stop, &head)))
            continue;
        uint32_t number = 0;
        while (last > start && data[last - 1] == '\r')
            last--;
        if (head.body < last - start) {
            const uint8_t *message = line + head.body;
            size_t body = last - start - head.body;
            if (is_kept(m, message, body, head.style, 1, &number))
                continue;
            if (!is_kept(m, message, body, head.style, 0, &number))
                number = 0;
        }
        *lines += texts_newlines(data + counted, start - counted);
        counted = start;
        uint32_t *row = told + COLUMNS * count++;
        row[START] = (uint32_t)start;
        row[STOP] = (uint32_t)stop;
        row[LINES] = (uint32_t)*lines;
        row[BODY] = (uint32_t)head.body;
        row[NUMBER] = number;
        row[PROCESS] = head.process;
        row[STYLE] = head.style;
        row[ALONE] = (uint32_t)is_alone(data, start, stop, fill, &head);
    }
    *lines += texts_newlines(data + counted, at - counted);
    *from = at;
    return count;
}

/* Report the end and the number of each text found. `last` starts with a zero for each text, and calls
   that continue a search pass it again. If a text occurs again in a line within `apart` bytes, the
   repeat is dropped. The function returns when the next offset might need more than `most` reports. */
SHOWN size_t texts_hits(const struct texts *t, const uint8_t *data, size_t end, size_t *from,
                        uint32_t *last, uint32_t *told, size_t most, size_t apart)
{
    size_t count = 0, at = *from;
    while (count + t->deepest <= most && (at = next_place(t, data, at, end)) < end) {
        FOR_TEXTS_AT(t, data, at, end, w, {
            size_t start = w->at < 0 ? at + 1 : at - (size_t)w->at;
            size_t stop = start + t->texts[w->text].length;
            uint32_t *seen = &last[w->text];
            size_t other = *seen ? *seen - 1 : 0;
            size_t low = stop < other ? stop : other, high = stop < other ? other : stop;
            int again = *seen && high - low < apart && !memchr(data + low, '\n', high - low);
            if (!again) {
                *seen = (uint32_t)stop + 1;
                told[2 * count] = (uint32_t)stop;
                told[2 * count++ + 1] = w->text;
            }
        });
        at += 2;
    }
    *from = at;
    return count;
}

/* Return the number of line ends. */
SHOWN size_t texts_newlines(const uint8_t *data, size_t end)
{
    size_t count = 0;
    while (end) {
        size_t part = end < 192 ? end : 192;
        uint8_t here = 0;
        for (size_t i = 0; i < part; i++)
            here = (uint8_t)(here + (data[i] == '\n'));
        count += here;
        data += part;
        end -= part;
    }
    return count;
}
