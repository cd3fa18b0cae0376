/* Fixed texts in a log: which lines hold one, and where they stand. Letters count in both cases.

   Most places of a log hold none of them. So four bytes at every second place are looked up in a
   table that has those of each text for both ways in which it may lie; only where a cell of it is
   set are texts compared. Nothing here writes but to what the caller gives, or keeps a pointer to it. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN __attribute__((visibility("default")))
#define CELLS_BELOW 14 /* bits of a number that do not tell where its cell is; three tell its bit */
#define HEADS_BELOW 18
#define WINDOW 4
#define SHORTEST 3   /* bytes of a text: of a shorter one too little is known in a window */
#define LONGEST 65535
#define MOST 65535   /* texts */
#define NONE UINT32_MAX
#define SHORT 4096 /* bytes of a line whose messages are looked at here */
#define ANCHORS 32 /* that are told apart in one line */
#define MARKED 48 /* bytes of a line in which a mark tells its level */

/* Kinds of texts. One that is BOUND counts only where no letter or digit stands before it, and none
   of its own kind behind it: `fault` is in `default`, and 1002 in 410021. */
enum { KNOWN = 1, FAILING = 2, BOUND = 4 };

struct window {
    uint32_t bytes; /* in which letters are alike */
    uint32_t next;
    uint32_t text;
    int32_t at; /* byte of the text that it begins with; -1 when that is the byte before it */
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
    struct window *windows;
    uint32_t used, room, deepest;
    uint32_t count;
    struct text *texts;
    uint8_t *bytes;
};

/* A number for a window; its highest bits are the best ones. */
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

/* Windows in which one byte is not of the text: every one it may be, letters alike. */
static int add_wild(struct texts *t, uint8_t *bytes, int wild, uint32_t text, int32_t at)
{
    for (uint32_t value = 0; value < 256; value++) {
        bytes[wild] = (uint8_t)value;
        if ((value & 0x20) && !add_window(t, bytes, text, at))
            return 0;
    }
    return 1;
}

/* How often a window may be met. Times of day and processes change from one line to the next, so a
   sample says nothing of windows with digits. */
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
        times[number_of(window_at(bytes + best)) >> CELLS_BELOW]++; /* another text takes other bytes */
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

/* Texts in small letters, one behind the other; NULL when they are none for this, or no memory. Of
   each those bytes are looked for that are rarest in a sample of what will be searched. */
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
    for (int i = 0; i < 256; i++)
        t->small[i] = (uint8_t)(i >= 'A' && i <= 'Z' ? i | 0x20 : i);
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

/* More than can be found at one place. */
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

/* The next place whose bit is set; the end when there is none. Nearly always four cells are empty. */
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
    return at < end ? at : end; /* the last bytes are always looked at */
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

/* Calls `body` for each text of which a window is at a place. */
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

/* Whether one of the texts is there. */
SHOWN int texts_any(const struct texts *t, const uint8_t *data, size_t end)
{
    for (size_t at = 0; (at = next_place(t, data, at, end)) < end; at += 2)
        FOR_TEXTS_AT(t, data, at, end, w, return 1;);
    return 0;
}

/* The same of a line with other bytes behind it: they are read, so that no rest is looked at alone. */
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

/* Messages that were met before, by the style of their heads and their letters: dull ones, which need
   not be told of again, and those that are told with a number. Dull ones are kept with 1 for every number but zero,
   which may mean that nothing failed; the others with a 1 for every digit but the 0 of 0x. */

#define SLOTS (1 << 15)
#define REMEMBERED (SLOTS / 2)
#define LONGEST_MESSAGE 1024

struct message {
    uint32_t length; /* 0: there is none */
    uint32_t number; /* 0: a dull one */
    uint32_t style;
    uint64_t hash;
    uint8_t *form;
};

struct memory {
    uint32_t used;
    struct message slots[SLOTS];
};

static int is_digit(uint8_t byte)
{
    return byte >= '0' && byte <= '9';
}

static int is_word(uint8_t byte)
{
    return is_digit(byte) || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z');
}

static int is_hex(uint8_t byte)
{
    return is_digit(byte) || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f');
}

static size_t dull_form(const uint8_t *text, size_t length, uint8_t *form)
{
    size_t used = 0;
    for (size_t i = 0; i < length;) {
        size_t stop = i, zeros = 0;
        if (!is_digit(text[i])) {
            form[used++] = text[i++];
            continue;
        }
        for (; stop < length && is_digit(text[stop]); stop++)
            zeros += text[stop] == '0';
        int zero = zeros == stop - i;
        if (zero && stop == i + 1 && stop + 1 < length && (text[stop] | 0x20) == 'x') {
            size_t end = stop + 1;
            int nothing = 1;
            for (; end < length && is_hex(text[end]); end++)
                nothing &= text[end] == '0';
            if (!nothing) {
                form[used++] = 1; /* an address */
                i = end;
                continue;
            }
        }
        form[used++] = zero ? '0' : '1';
        i = stop;
    }
    return used;
}

static size_t digits_alike(const uint8_t *text, size_t length, uint8_t *form)
{
    for (size_t i = 0; i < length; i++) {
        int marks = text[i] == '0' && i + 1 < length && (text[i + 1] | 0x20) == 'x';
        form[i] = marks ? '\n' : is_digit(text[i]) ? '1' : text[i];
    }
    return length;
}

static size_t form_of(const uint8_t *text, size_t length, int dull, uint8_t *form)
{
    return dull ? dull_form(text, length, form) : digits_alike(text, length, form);
}

static struct message *slot_of(struct memory *m, const uint8_t *form, size_t length, uint32_t style,
                               int dull)
{
    uint64_t hash = 0xCBF29CE484222325u + 2 * style + (uint64_t)dull;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ form[i]) * 0x100000001B3u;
    struct message *slot;
    for (uint32_t at = (uint32_t)(hash >> 40);; at++) {
        slot = &m->slots[at % SLOTS];
        if (!slot->length)
            break;
        if (slot->hash == hash && slot->length == length && (slot->number == 0) == dull &&
            slot->style == style && !memcmp(slot->form, form, length))
            break;
    }
    slot->hash = hash; /* of an empty one: for whoever fills it */
    return slot;
}

SHOWN struct memory *memory_new(void)
{
    return calloc(1, sizeof(struct memory));
}

SHOWN void memory_clear(struct memory *m)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        if (m->slots[i].length)
            free(m->slots[i].form);
    memset(m, 0, sizeof *m);
}

SHOWN void memory_free(struct memory *m)
{
    if (m)
        memory_clear(m);
    free(m);
}

/* Keeps a message; 0 when that cannot be done any more. */
SHOWN int memory_keep(struct memory *m, const uint8_t *text, size_t length, uint32_t style,
                      uint32_t number)
{
    uint8_t form[LONGEST_MESSAGE];
    if (!length || length > LONGEST_MESSAGE || m->used == REMEMBERED)
        return 0;
    size_t used = form_of(text, length, !number, form);
    struct message *slot = slot_of(m, form, used, style, !number);
    if (!slot->length) {
        slot->form = malloc(used);
        if (!slot->form)
            return 0;
        memcpy(slot->form, form, used);
        slot->length = (uint32_t)used;
        slot->style = style;
        m->used++;
    }
    slot->number = number;
    return 1;
}

static int is_kept(struct memory *m, const uint8_t *text, size_t length, uint32_t style, int dull,
                   uint32_t *number)
{
    uint8_t form[LONGEST_MESSAGE];
    if (!length || length > LONGEST_MESSAGE || !m->used)
        return 0;
    size_t used = form_of(text, length, dull, form);
    struct message *slot = slot_of(m, form, used, style, dull);
    *number = slot->number;
    return slot->length != 0;
}

enum style { NO_HEAD, LOGCAT, STAMPED, KERNEL, TOOL };

struct head {
    size_t body;      /* where the message begins, before its level; 0 without a head */
    size_t stamp;     /* where its time ends; process and thread stand between that and `names` */
    size_t names;
    uint32_t style;
    uint32_t process; /* NONE where the head has none */
    uint8_t level;    /* 0 where it is not told here */
};

static size_t skip_blanks(const uint8_t *line, size_t at, size_t length)
{
    while (at < length && (line[at] == ' ' || line[at] == '\t'))
        at++;
    return at;
}

static size_t skip_digits(const uint8_t *line, size_t at, size_t length, size_t most)
{
    size_t stop = length - at < most ? length : at + most;
    while (at < stop && is_digit(line[at]))
        at++;
    return at;
}

static size_t skip_word(const uint8_t *line, size_t at, size_t length)
{
    while (at < length && line[at] != ' ' && line[at] != '\t')
        at++;
    return at;
}

/* Whether a piece of a line looks like a shape, in which 1 is any digit and T a blank or a T. */
static int has_shape(const uint8_t *line, size_t length, const char *shape)
{
    size_t i = 0;
    for (; shape[i]; i++) {
        if (i == length)
            return 0;
        uint8_t byte = line[i];
        int fits = shape[i] == '1'   ? is_digit(byte)
                   : shape[i] == 'T' ? byte == ' ' || byte == 'T'
                   : shape[i] == '.' ? byte == '.' || byte == ','
                                     : byte == (uint8_t)shape[i];
        if (!fits)
            return 0;
    }
    return 1;
}

static int is_level(const uint8_t *line, size_t at, size_t length)
{
    return at + 1 < length && line[at] && strchr("VDIWEFA", line[at]) && line[at + 1] == ' ';
}

/* Process, thread and level behind the time that logcat writes; 0 when they are not there. */
static int logcat_head(const uint8_t *line, size_t at, size_t length, struct head *head)
{
    for (int number = 0; number < 2; number++) {
        size_t digits = skip_blanks(line, at, length), stop = skip_digits(line, digits, length, 9);
        if (digits == at || stop == digits)
            return 0;
        if (!number) {
            head->process = 0;
            for (size_t i = digits; i < stop; i++)
                head->process = 10 * head->process + (line[i] - '0');
        }
        at = stop;
    }
    if (at >= length || line[at] != ' ' || !is_level(line, at + 1, length))
        return 0;
    head->style = LOGCAT;
    head->names = head->body = at;
    /* Without a tag it is no head after all. */
    size_t tag = at + 3, most = length - tag < 80 ? length : tag + 80;
    if (memchr(line + tag, ':', most - tag))
        head->level = line[at + 1];
    return 1;
}

/* Process and level as Android Studio writes them: `1234-1240  tag   package   I  message`. */
static void studio_head(const uint8_t *line, size_t at, size_t length, struct head *head)
{
    size_t digits = skip_blanks(line, at, length), stop = skip_digits(line, digits, length, 9);
    if (digits == at || stop == digits || stop >= length || line[stop] != '-')
        return;
    size_t thread = skip_digits(line, stop + 1, length, 9);
    size_t tag = skip_blanks(line, thread, length), behind = skip_word(line, tag, length);
    size_t package = skip_blanks(line, behind, length), end = skip_word(line, package, length);
    size_t level = skip_blanks(line, end, length);
    if (thread == stop + 1 || tag == thread || behind == tag || behind - tag > 60 ||
        package < behind + 2 || end == package || end - package > 120 || level == end ||
        !is_level(line, level, length))
        return;
    head->process = 0;
    for (size_t i = digits; i < stop; i++)
        head->process = 10 * head->process + (line[i] - '0');
    head->level = line[level];
    head->names = thread;
}

/* The head of a line, as far as that can be told at a glance. */
static struct head head_of(const uint8_t *line, size_t length)
{
    static const char year[] = "2011-";
    static const char *const calm[] = {"VERBOSE", "DEBUG", "INFO"};
    struct head head = {0, 0, 0, NO_HEAD, NONE, 0};
    size_t at = has_shape(line, length, year) ? sizeof year - 1 : 0;
    if (has_shape(line + at, length - at, "11-11T11:11:11.1")) {
        size_t second = at + 15, stop = skip_digits(line, second, length, 9);
        head.stamp = head.names = stop;
        if (!at && stop == second + 3 && line[5] == ' ' && line[14] == '.' &&
            logcat_head(line, stop, length, &head))
            return head;
        head.style = STAMPED;
        head.body = stop;
        studio_head(line, stop, length, &head);
        if (head.process == NONE && has_shape(line + stop, length - stop, " [") &&
            has_shape(line + stop + 3, length - stop - 3, ":onnxruntime"))
            head.level = line[stop + 2];
        return head;
    }
    at = 0;
    if (length && line[0] == '<') {
        size_t stop = skip_digits(line, 1, length, 3);
        if (stop == 1 || stop >= length || line[stop] != '>')
            return head;
        at = stop + 1;
    }
    if (at < length && line[at] == '[') {
        size_t digits = skip_blanks(line, at + 1, length), stop = skip_digits(line, digits, length, 9);
        if (stop > digits && has_shape(line + stop, length - stop, ".111111]")) {
            head.style = KERNEL;
            head.body = stop + 8;
        }
        return head;
    }
    size_t digits = skip_blanks(line, 0, length), stop = skip_digits(line, digits, length, 12);
    if (digits <= 12 && stop > digits && has_shape(line + stop, length - stop, ".1ms [")) {
        size_t level = skip_blanks(line, stop + 6, length);
        head.style = TOOL;
        head.body = stop + 4;
        for (size_t i = 0; i < sizeof calm / sizeof *calm; i++) {
            size_t behind = skip_blanks(line, level + strlen(calm[i]), length);
            if (has_shape(line + level, length - level, calm[i]) && behind < length &&
                line[behind] == ']')
                head.level = (uint8_t)calm[i][0];
        }
    }
    return head;
}

/* Whether a line is at debug or info level, by its head or by a mark near its start. */
static int is_calm(const uint8_t *line, size_t length, const struct head *head)
{
    if (head->level == 'V' || head->level == 'D' || head->level == 'I')
        return 1;
    size_t stop = length < MARKED ? length : MARKED;
    for (size_t i = 0; i + 3 <= stop; i++) {
        uint8_t level = line[i + 1] | 0x20;
        if ((level == 'v' || level == 'd' || level == 'i') &&
            ((line[i] == '<' && line[i + 2] == '>') || (line[i] == '[' && line[i + 2] == ':')))
            return 1;
    }
    return 0;
}

enum { START, STOP, LINES, BODY, NUMBER, PROCESS, STYLE, COLUMNS };

SHOWN size_t texts_newlines(const uint8_t *data, size_t end);

/* Whether a text stands by itself where it was found. */
static int is_bound(const struct text *text, const uint8_t *data, size_t start, size_t end)
{
    size_t stop = start + text->length;
    if (start && is_word(data[start - 1]))
        return 0;
    return !is_digit(text->bytes[text->length - 1]) || stop >= end || !is_digit(data[stop]);
}

/* The fixed texts of messages between their holes, in small letters and in order. What belongs to
   number i of a list stands from the i-th place of the other one to the next. */
struct messages {
    const uint32_t *of_anchor; /* places in `messages` */
    const uint32_t *messages;
    const uint32_t *of_message; /* places in `ends` */
    const uint32_t *ends;       /* of the texts in `bytes`; the first one begins at 0 */
    const uint8_t *bytes;
};

/* What was found in the line at hand. */
struct found {
    uint32_t kinds;
    uint32_t count; /* of anchors; more than ANCHORS when there are too many */
    uint32_t anchors[ANCHORS];
};

/* Notes what texts are at a place. */
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

static int holds_message(const struct messages *m, uint32_t message, const uint8_t *low,
                         size_t length)
{
    size_t at = 0;
    for (uint32_t i = m->of_message[message]; i < m->of_message[message + 1]; i++) {
        uint32_t begin = i ? m->ends[i - 1] : 0;
        const uint8_t *place = memmem(low + at, length - at, m->bytes + begin, m->ends[i] - begin);
        if (!place)
            return 0;
        at = (size_t)(place - low) + m->ends[i] - begin;
    }
    return 1;
}

/* Whether a line may hold a whole message, by the anchors in it. What would have to be taken out of it
   first is not told apart here. */
static int may_match(const struct texts *t, const struct messages *m, const struct found *found,
                     const uint8_t *line, size_t length)
{
    uint8_t low[SHORT];
    if (length > SHORT || found->count > ANCHORS || memchr(line, '\x1b', length) ||
        memchr(line, '\0', length))
        return 1;
    for (size_t i = 0; i < length; i++)
        low[i] = t->small[line[i]];
    for (uint32_t i = 0; i < found->count; i++) {
        uint32_t anchor = found->anchors[i];
        for (uint32_t one = m->of_anchor[anchor]; one < m->of_anchor[anchor + 1]; one++)
            if (holds_message(m, m->messages[one], low, length))
                return 1;
    }
    return 0;
}

/* Whether a line may go on in another of the same head: loggers repeat it when they split messages. */
static int is_same(const uint8_t *line, const struct head *head, const uint8_t *other,
                   const struct head *others)
{
    if (head->style != others->style || head->process == NONE)
        return 0;
    size_t length = head->names - head->stamp;
    return others->names - others->stamp == length &&
           !memcmp(line + head->stamp, other + others->stamp, length);
}

/* Whether a line is a message of its own: the next one has a head, and neither that one nor the one
   before is of the same thread. Where the next one is not at hand whole, it is not known. */
static int is_alone(const uint8_t *data, size_t start, size_t stop, size_t end,
                    const struct head *head)
{
    const uint8_t *behind = stop < end ? memchr(data + stop + 1, '\n', end - stop - 1) : NULL;
    if (start < 2 || !behind)
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

/* What is looked for in lines. */
struct looked {
    const struct texts *first;   /* anchors of known messages, and words of failure */
    const struct texts *ours;    /* a failure counts beside one of these */
    const struct texts *relayed; /* and in a calm line beside one of these */
    struct messages messages;
};

/* Whether the words of failure in a line count. */
static int is_failure(const struct looked *l, const uint8_t *line, size_t length, size_t behind,
                      const struct head *head)
{
    return any_in_line(l->ours, line, length, behind) &&
           (!is_calm(line, length, head) || any_in_line(l->relayed, line, length, behind));
}

/* Lines that may hold a known message or a piece of one, or that tell of a failure in other words, but
   for dull ones; each once. Of each: where it starts and stops, how many lines end before it, where
   its message begins, the number that such a message is told with, the process and the style of its
   head. A line starts at `from`. Stops when `most` are told; then `from` is where to go on, and
   `lines` how many end before. */
SHOWN size_t texts_lines(const struct looked *l, struct memory *m, const uint8_t *data, size_t end,
                         size_t *from, size_t *lines, uint32_t *told, size_t most)
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
        const uint8_t *line = data + start;
        size_t length = stop - start, last = stop;
        struct head head = head_of(line, length);
        if (!((found.kinds & KNOWN) && (may_match(t, &l->messages, &found, line, length) ||
                                        !is_alone(data, start, stop, end, &head))) &&
            !((found.kinds & FAILING) && is_failure(l, line, length, end - stop, &head)))
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
    }
    *lines += texts_newlines(data + counted, at - counted);
    *from = at;
    return count;
}

/* Ends and numbers of the texts. `last` has a zero for each text at first, and is kept between calls
   that go on: a text that a line holds again fewer than `apart` bytes on is left out. Stops when `most` might not do for what is at the next place. */
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

/* How many lines end in a piece. */
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
