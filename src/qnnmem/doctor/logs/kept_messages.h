/* Memory of messages seen before, by the style of their heads and their letters. Irrelevant messages
   are skipped from then on; they are stored with 1 for every number except zero, which may mean
   success. Known messages are reported with a number; they are stored with 1 for every digit, except
   the 0 of 0x. */

#define SLOTS (1 << 15)
#define REMEMBERED (SLOTS / 2)
#define LONGEST_MESSAGE 1024

struct message {
    uint32_t length; /* 0: the slot is empty */
    uint32_t number; /* 0: the message is irrelevant */
    uint32_t style;
    uint64_t hash;
    uint8_t *form;
};

struct memory {
    uint32_t used;
    struct message slots[SLOTS];
};

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
    slot->hash = hash; /* memory_keep fills an empty slot */
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

/* Store a message; return 0 if it cannot be stored. */
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
