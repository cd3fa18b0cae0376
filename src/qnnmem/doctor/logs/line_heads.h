/* Parse the head of a log line: time, process and level before the message. */

#define MARKED 48 /* bytes of a line that may contain a mark of its level */

static int is_digit(uint8_t byte)
{
    return byte >= '0' && byte <= '9';
}

static int is_word(uint8_t byte)
{
    return is_digit(byte) || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z');
}

enum style { NO_HEAD, LOGCAT, STAMPED, KERNEL, TOOL };

struct head {
    size_t body;      /* start of the message, before its level; 0 without a head */
    size_t stamp;     /* end of the time; process and thread are between `stamp` and `names` */
    size_t names;
    uint32_t style;
    uint32_t process; /* NONE if the head has none */
    uint8_t level;    /* 0 if unknown */
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

/* Return whether a line begins with a shape: 1 stands for any digit, T for a blank or T, and a dot for
   a dot or comma. */
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

/* Parse process, thread and level after a time, as logcat writes them; return 0 if they are missing. */
static int logcat_head(const uint8_t *line, size_t at, size_t length, struct head *head)
{
    uint32_t process = 0;
    for (int number = 0; number < 2; number++) {
        size_t digits = skip_blanks(line, at, length), stop = skip_digits(line, digits, length, 9);
        if (digits == at || stop == digits)
            return 0;
        for (size_t i = digits; !number && i < stop; i++)
            process = 10 * process + (line[i] - '0');
        at = stop;
    }
    if (at >= length || line[at] != ' ' || !is_level(line, at + 1, length))
        return 0;
    /* Without a tag, the level is not part of a head. */
    size_t tag = at + 3, most = length - tag < 80 ? length : tag + 80;
    if (memchr(line + tag, ':', most - tag))
        head->level = line[at + 1];
    head->names = at;
    head->process = process;
    return 1;
}

/* Parse process and level as Android Studio writes them: `1234-1240  tag   package   I  message`. */
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

/* Return the head of a line in one of the common styles. */
static struct head head_of(const uint8_t *line, size_t length)
{
    static const char year[] = "2011-";
    static const char *const calm[] = {"VERBOSE", "DEBUG", "INFO"};
    struct head head = {0, 0, 0, NO_HEAD, NONE, 0};
    size_t at = has_shape(line, length, year) ? sizeof year - 1 : 0;
    if (has_shape(line + at, length - at, "11-11T11:11:11.1")) {
        size_t second = at + 15, stop = skip_digits(line, second, length, 9);
        head.stamp = head.names = head.body = stop;
        head.style = STAMPED;
        if (logcat_head(line, stop, length, &head)) {
            if (!at && stop == second + 3 && line[5] == ' ' && line[14] == '.') {
                head.style = LOGCAT;
                head.body = head.names;
            }
            return head;
        }
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

/* Return whether a line is at debug or info level, by its head or by a mark near its start. */
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
