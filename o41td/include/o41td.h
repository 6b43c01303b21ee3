/* o41td.h: the batches of a loader that `o41td serve` runs on this host, in C11 on Linux, with libc alone.
 *
 * One source file of a program says
 *
 *     #define O41TD_IMPLEMENTATION
 *     #include "o41td.h"
 *
 * before it includes anything else (or is compiled with -D_GNU_SOURCE), and all others just include this file. So the
 * functions are compiled once, and what they need of the system is seen by that file alone. `o41td.get_include()` in
 * Python names the folder.
 *
 *     o41td_stream *stream;
 *     if (o41td_connect("pretrain", rank, NULL, &stream) != O41TD_OK) { puts(o41td_error(stream)); ... }
 *     int32_t *tokens = malloc((size_t)o41td_max_rows(stream) * o41td_field_at(stream, 0)->row_bytes);
 *     void *buffers[] = {tokens};
 *     o41td_batch batch;
 *     while ((status = o41td_next(stream, buffers, &batch)) == O41TD_OK) { ... batch.num_rows rows of tokens ... }
 *     o41td_close(stream);
 *
 * The batches, the order digest, the dropped rows and the checkpoints are those of the Python stream of the same rank.
 * What the client does about deaths, bad data and the rest is in docs/c.md, what it says on the socket in
 * docs/protocol.md.
 *
 * A stream belongs to one thread at a time and to the process that connected; there is no state beside it.
 */
#ifndef O41TD_H
#define O41TD_H

#ifdef O41TD_IMPLEMENTATION
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#endif

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The messages that this file speaks. A loader that speaks others, older or newer, is refused by name. */
#define O41TD_PROTOCOL "1ff31cf7"
/* The order that its checkpoints are taken under. */
#define O41TD_ORDER_VERSION 2

typedef struct o41td_stream o41td_stream;

typedef enum {
    O41TD_OK = 0,
    O41TD_END = 1,     /* the stage is over */
    O41TD_STOPPED = 2, /* `options.stop` was raised while a call waited; the stream can go on */
    O41TD_ERROR = -1   /* `o41td_error` has the words */
} o41td_status;

typedef enum { O41TD_I32, O41TD_I64, O41TD_F32, O41TD_F64, O41TD_BOOL } o41td_dtype;

typedef struct {
    const char *name; /* UTF-8 */
    o41td_dtype dtype;
    size_t num_dims; /* axes of one row: 0 is a single value */
    const int64_t *shape;
    size_t row_bytes;
} o41td_field;

typedef struct {
    int64_t batch_index; /* number of the batch among those of all stages and ranks, as in Python */
    int64_t num_rows;
    int32_t stage;
    int64_t number;        /* number of the batch in its stage */
    uint64_t order_digest; /* what the batch adds to the digest of the stream */
} o41td_batch;

typedef struct {
    double wait_s; /* how long a server that ended is waited for; 60 by default */
    /* Where it is not NULL: once the flag is not 0, calls that wait return O41TD_STOPPED. For a signal handler. */
    const volatile sig_atomic_t *stop;
    /* Where it is not NULL: told what the loader has to say. The text is valid during the call, which may call no
     * function of the stream.
     */
    void (*on_notice)(void *user, const char *text, int is_warning);
    void *user;
} o41td_options;

o41td_options o41td_default_options(void);

/* Opens the stream of `rank` with the loader that this user's `o41td serve` runs under `name`. `options` may be NULL.
 *
 * `*stream` is set in any case, to be asked for its error and to be closed; it is NULL only where memory ran out.
 * Blocks until the server is open.
 */
o41td_status o41td_connect(const char *name, int64_t rank, const o41td_options *options, o41td_stream **stream);

/* Leaves; the rank is free for another. NULL is allowed. */
void o41td_close(o41td_stream *stream);

/* What the last call that failed had to say, as one line of text; "" before the first. NULL is allowed. */
const char *o41td_error(const o41td_stream *stream);

/* What is streamed. All of it stays valid, and the same, until the stream is closed. */
size_t o41td_num_fields(const o41td_stream *stream);
const o41td_field *o41td_field_at(const o41td_stream *stream, size_t number);
/* The number of the field of that name, -1 if there is none. */
int o41td_field_number(const o41td_stream *stream, const char *name);
/* The most rows that a batch of any stage has. */
int64_t o41td_max_rows(const o41td_stream *stream);
int64_t o41td_world_size(const o41td_stream *stream);
size_t o41td_num_stages(const o41td_stream *stream);
const char *o41td_stage_name(const o41td_stream *stream, size_t stage);

/* Takes the next batch of this rank: its rows are copied into the caller's memory, field by field.
 *
 * `buffers[i]` takes field i, `o41td_max_rows` times its `row_bytes`, rows one behind the other in C order, aligned for
 * its dtype; a field whose buffer is NULL is left out, and all are where `buffers` is. A bool is a byte of 0 or 1. The
 * batch is counted when this returns O41TD_OK. O41TD_END comes at the end of a finite stage, which does not advance by
 * itself.
 *
 * Blocks until the batch is there. Where the server has ended, until one of its name is back, `wait_s` at most.
 */
o41td_status o41td_next(o41td_stream *stream, void *const *buffers, o41td_batch *batch);

/* Tells the loader now that the batches taken so far are done with, as calls of o41td_next do from time to time. Worth
 * it before the loop stands still for long, to evaluate, say: the loader can use the room.
 */
o41td_status o41td_release(o41td_stream *stream);

/* Goes to another stage from the next batch on; one visited before goes on where it was left. All ranks must do so
 * after the same number of batches. Nothing for the current stage.
 */
o41td_status o41td_advance(o41td_stream *stream, size_t stage);
size_t o41td_stage(const o41td_stream *stream);

/* Rows that batching left out on this rank; 0 until o41td_next has returned O41TD_END. */
int64_t o41td_dropped_rows(const o41td_stream *stream);
/* Additive 64-bit digest of which row came where, over everything that this rank took. */
uint64_t o41td_order_digest(const o41td_stream *stream);

/* Where the stream is, as the text that Python's Checkpoint.save writes: all batches taken so far count as consumed.
 *
 * Any rank of any world size resumes from it, in either language. The text ends in a 0 byte and is to be given to
 * free(). Needs no server, so it can still be had after an error. NULL where memory ran out or the stream was never
 * opened, which o41td_error tells.
 */
char *o41td_checkpoint(o41td_stream *stream);

/* Goes to where a checkpoint was taken. `text` is a whole checkpoint, of `length` bytes, of either language. One that
 * is damaged, or of another config, order or data, is refused, and the stream stays where it is.
 */
o41td_status o41td_resume(o41td_stream *stream, const char *text, size_t length);

#ifdef __cplusplus
}
#endif
#endif /* O41TD_H */

#if defined(O41TD_IMPLEMENTATION) && !defined(O41TD_IMPLEMENTED)
#define O41TD_IMPLEMENTED

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef __linux__
#error "o41td.h speaks to loaders on Linux"
#endif
#if defined(__GLIBC__) && !defined(__USE_GNU)
#error "include o41td.h before all others where O41TD_IMPLEMENTATION is defined, or compile with -D_GNU_SOURCE"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the arena holds little-endian numbers"
#endif

/* ---- text that grows --------------------------------------------------------------------------------------------- */

typedef struct {
    char *data;
    size_t length, capacity;
    bool failed; /* memory ran out; nothing is added any more */
} o41td__text;

static void o41td__put(o41td__text *text, const void *data, size_t length) {
    if (text->failed)
        return;
    if (length >= text->capacity - text->length) { /* one byte more, for the 0 at the end */
        size_t wanted = text->length + length + 1, capacity = text->capacity ? text->capacity : 256;
        while (capacity < wanted)
            capacity = capacity > SIZE_MAX / 2 ? wanted : 2 * capacity;
        char *grown = wanted > length ? realloc(text->data, capacity) : NULL;
        if (grown == NULL) {
            text->failed = true;
            return;
        }
        text->data = grown;
        text->capacity = capacity;
    }
    if (length)
        memcpy(text->data + text->length, data, length);
    text->length += length;
    text->data[text->length] = 0;
}

static void o41td__puts(o41td__text *text, const char *words) { o41td__put(text, words, strlen(words)); }

static void o41td__put_int(o41td__text *text, int64_t number) {
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRId64, number);
    o41td__puts(text, digits);
}

/* ---- msgpack: reading, within bounds ----------------------------------------------------------------------------- */

#define O41TD__MAX_DEPTH 64

typedef struct {
    const unsigned char *at, *end;
} o41td__reader;

typedef enum {
    O41TD__NIL,
    O41TD__BOOL,
    O41TD__UINT, /* `number` */
    O41TD__INT,  /* below 0: `number` in two's complement */
    O41TD__REAL,
    O41TD__STR, /* `number` bytes at `bytes` */
    O41TD__BIN,
    O41TD__ARRAY, /* `number` values follow */
    O41TD__MAP    /* `number` pairs follow */
} o41td__kind;

typedef struct {
    o41td__kind kind;
    uint64_t number;
    double real;
    const unsigned char *bytes;
} o41td__value;

static bool o41td__take(o41td__reader *reader, size_t num_bytes, uint64_t *number) {
    if ((size_t)(reader->end - reader->at) < num_bytes)
        return false;
    *number = 0;
    for (size_t i = 0; i < num_bytes; i++)
        *number = *number << 8 | *reader->at++;
    return true;
}

/* Reads a value that holds no others, or the head of one that does. Extension types are refused, as by Python. */
static bool o41td__read(o41td__reader *reader, o41td__value *value) {
    uint64_t byte, bits;
    if (!o41td__take(reader, 1, &byte))
        return false;
    memset(value, 0, sizeof *value);
    bool has_bytes = false;
    if (byte < 0x80) {
        value->kind = O41TD__UINT;
        value->number = byte;
    } else if (byte < 0xa0) {
        value->kind = byte < 0x90 ? O41TD__MAP : O41TD__ARRAY;
        value->number = byte & 0x0f;
    } else if (byte < 0xc0) {
        value->kind = O41TD__STR;
        value->number = byte & 0x1f;
        has_bytes = true;
    } else if (byte >= 0xe0) {
        value->kind = O41TD__INT;
        value->number = byte | ~(uint64_t)0xff;
    } else {
        switch (byte) {
        case 0xc0:
            value->kind = O41TD__NIL;
            break;
        case 0xc2:
        case 0xc3:
            value->kind = O41TD__BOOL;
            value->number = byte & 1;
            break;
        case 0xc4:
        case 0xc5:
        case 0xc6:
        case 0xd9:
        case 0xda:
        case 0xdb: {
            bool is_str = byte >= 0xd9;
            value->kind = is_str ? O41TD__STR : O41TD__BIN;
            if (!o41td__take(reader, (size_t)1 << (byte - (is_str ? 0xd9 : 0xc4)), &value->number))
                return false;
            has_bytes = true;
            break;
        }
        case 0xca:
        case 0xcb:
            value->kind = O41TD__REAL;
            if (!o41td__take(reader, byte == 0xca ? 4 : 8, &bits))
                return false;
            if (byte == 0xca) {
                uint32_t half = (uint32_t)bits;
                float real;
                memcpy(&real, &half, sizeof real);
                value->real = (double)real;
            } else {
                memcpy(&value->real, &bits, sizeof value->real);
            }
            break;
        case 0xcc:
        case 0xcd:
        case 0xce:
        case 0xcf:
            value->kind = O41TD__UINT;
            return o41td__take(reader, (size_t)1 << (byte - 0xcc), &value->number);
        case 0xd0:
        case 0xd1:
        case 0xd2:
        case 0xd3: {
            size_t num_bytes = (size_t)1 << (byte - 0xd0);
            if (!o41td__take(reader, num_bytes, &bits))
                return false;
            uint64_t sign = (uint64_t)1 << (8 * num_bytes - 1);
            value->kind = bits & sign ? O41TD__INT : O41TD__UINT;
            value->number = bits & sign ? bits | ~(sign | (sign - 1)) : bits;
            break;
        }
        case 0xdc:
        case 0xdd:
            value->kind = O41TD__ARRAY;
            return o41td__take(reader, byte == 0xdc ? 2 : 4, &value->number);
        case 0xde:
        case 0xdf:
            value->kind = O41TD__MAP;
            return o41td__take(reader, byte == 0xde ? 2 : 4, &value->number);
        default:
            return false;
        }
    }
    if (has_bytes) {
        if ((uint64_t)(reader->end - reader->at) < value->number)
            return false;
        value->bytes = reader->at;
        reader->at += value->number;
    }
    return true;
}

/* Passes over a value and all that it holds, building nothing. */
static bool o41td__skip(o41td__reader *reader, int depth) {
    o41td__value value;
    if (depth > O41TD__MAX_DEPTH || !o41td__read(reader, &value))
        return false;
    if (value.kind != O41TD__ARRAY && value.kind != O41TD__MAP)
        return true;
    uint64_t left = value.kind == O41TD__MAP ? 2 * value.number : value.number;
    while (left--)
        if (!o41td__skip(reader, depth + 1)) /* each takes a byte at least, or fails */
            return false;
    return true;
}

static bool o41td__read_array(o41td__reader *reader, uint64_t *count) {
    o41td__value value;
    if (!o41td__read(reader, &value) || value.kind != O41TD__ARRAY)
        return false;
    *count = value.number;
    return true;
}

static bool o41td__read_int(o41td__reader *reader, int64_t least, int64_t most, int64_t *number) {
    o41td__value value;
    if (!o41td__read(reader, &value) || (value.kind != O41TD__UINT && value.kind != O41TD__INT))
        return false;
    if (value.kind == O41TD__UINT && value.number > INT64_MAX)
        return false;
    memcpy(number, &value.number, sizeof *number);
    return *number >= least && *number <= most;
}

static bool o41td__read_bool(o41td__reader *reader, bool *truth) {
    o41td__value value;
    if (!o41td__read(reader, &value) || value.kind != O41TD__BOOL)
        return false;
    *truth = value.number != 0;
    return true;
}

static bool o41td__read_bytes(o41td__reader *reader, o41td__kind kind, o41td__reader *bytes) {
    o41td__value value;
    if (!o41td__read(reader, &value) || value.kind != kind)
        return false;
    bytes->at = value.bytes;
    bytes->end = value.bytes + value.number;
    return true;
}

static o41td__reader o41td__over(const char *text, size_t length) {
    return (o41td__reader){(const unsigned char *)text, (const unsigned char *)text + length};
}

static size_t o41td__length(o41td__reader bytes) { return (size_t)(bytes.end - bytes.at); }

static bool o41td__is(o41td__reader bytes, const char *words) {
    return o41td__length(bytes) == strlen(words) && memcmp(bytes.at, words, strlen(words)) == 0;
}

/* A copy that ends in a 0 byte; NULL where memory ran out. */
static char *o41td__copied(o41td__reader bytes) {
    char *copy = malloc(o41td__length(bytes) + 1);
    if (copy != NULL) {
        memcpy(copy, bytes.at, o41td__length(bytes));
        copy[o41td__length(bytes)] = 0;
    }
    return copy;
}

/* Finds the value of a map's key; all of the map must be there. */
static bool o41td__find(o41td__reader map, const char *key, o41td__reader *found) {
    o41td__value head;
    if (!o41td__read(&map, &head) || head.kind != O41TD__MAP)
        return false;
    while (head.number--) {
        o41td__reader words, value;
        if (!o41td__read_bytes(&map, O41TD__STR, &words))
            return false;
        value = map;
        if (!o41td__skip(&map, 0))
            return false;
        value.end = map.at;
        if (o41td__is(words, key)) {
            *found = value;
            return true;
        }
    }
    return false;
}

static bool o41td__find_int(o41td__reader map, const char *key, int64_t least, int64_t most, int64_t *number) {
    o41td__reader value;
    return o41td__find(map, key, &value) && o41td__read_int(&value, least, most, number);
}

static bool o41td__find_str(o41td__reader map, const char *key, o41td__reader *words) {
    o41td__reader value;
    return o41td__find(map, key, &value) && o41td__read_bytes(&value, O41TD__STR, words);
}

static bool o41td__find_bool(o41td__reader map, const char *key, bool *truth) {
    o41td__reader value;
    return o41td__find(map, key, &value) && o41td__read_bool(&value, truth);
}

/* ---- messages: what this client sends, and the tags of what it is sent ------------------------------------------- */

enum {
    O41TD__JOIN_LOADER = 0,
    O41TD__SERVE_FROM = 1,
    O41TD__BATCHES_GATHERED = 2,
    O41TD__STATS_REQUEST = 3,
    O41TD__LOADER_JOINED = 4,
    O41TD__OPEN_PROGRESS = 5,
    O41TD__LOADER_OPENED = 6,
    O41TD__LOADER_FAILED = 7,
    O41TD__BATCHES_READY = 8,
    O41TD__STREAM_ENDED = 9,
    O41TD__STREAM_FAILED = 10,
    O41TD__LOADER_NOTICE = 11,
    O41TD__STATS_REPLY = 12
};

typedef struct {
    unsigned char bytes[4 + 2 + 8 * 9];
    size_t length;
} o41td__frame;

static void o41td__frame_number(o41td__frame *frame, unsigned char code, uint64_t number, size_t num_bytes) {
    if (code)
        frame->bytes[frame->length++] = code;
    while (num_bytes--)
        frame->bytes[frame->length++] = (unsigned char)(number >> 8 * num_bytes);
}

/* As few bytes as will do: a loader takes frames of at most 64. */
static void o41td__frame_int(o41td__frame *frame, int64_t number) {
    uint64_t bits = (uint64_t)number;
    if (bits < 0x80)
        o41td__frame_number(frame, 0, bits, 1);
    else if (bits <= 0xff)
        o41td__frame_number(frame, 0xcc, bits, 1);
    else if (bits <= 0xffff)
        o41td__frame_number(frame, 0xcd, bits, 2);
    else if (bits <= 0xffffffff)
        o41td__frame_number(frame, 0xce, bits, 4);
    else
        o41td__frame_number(frame, number < 0 ? 0xd3 : 0xcf, bits, 8);
}

static void o41td__frame_real(o41td__frame *frame, double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    o41td__frame_number(frame, 0xcb, bits, 8);
}

static void o41td__frame_begin(o41td__frame *frame, int tag, size_t num_fields) {
    frame->length = 4; /* the payload's length, known at the end */
    o41td__frame_number(frame, (unsigned char)(0x91 + num_fields), (uint64_t)tag, 1);
}

static void o41td__frame_end(o41td__frame *frame) {
    for (size_t i = 0; i < 4; i++)
        frame->bytes[i] = (unsigned char)((frame->length - 4) >> 8 * i);
}

/* ---- JSON: writing, as Python's json does ------------------------------------------------------------------------ */

/* Decodes one code point of a text that ought to be UTF-8; returns its bytes. What is none is a file name's byte, which
 * Python turns into a lone surrogate.
 */
static size_t o41td__code_point(const unsigned char *at, const unsigned char *end, uint32_t *point) {
    unsigned char first = at[0];
    size_t length = first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : 4;
    *point = first;
    if (length == 1)
        return 1;
    bool is_text = first >= 0xc2 && first < 0xf5 && (size_t)(end - at) >= length;
    uint32_t decoded = first & (0xffu >> (length + 1));
    for (size_t i = 1; is_text && i < length; i++) {
        is_text = (at[i] & 0xc0) == 0x80;
        decoded = decoded << 6 | (at[i] & 0x3fu);
    }
    const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    is_text = is_text && decoded >= least[length] && decoded <= 0x10ffff && (decoded < 0xd800 || decoded > 0xdfff);
    *point = is_text ? decoded : 0xdc00u + first;
    return is_text ? length : 1;
}

static void o41td__json_str(o41td__text *text, o41td__reader words) {
    const unsigned char *at = words.at;
    o41td__puts(text, "\"");
    while (at < words.end) {
        const unsigned char *plain = at; /* what needs no escape goes at once */
        while (at < words.end && *at >= ' ' && *at < 0x7f && *at != '"' && *at != '\\')
            at++;
        o41td__put(text, plain, (size_t)(at - plain));
        if (at == words.end)
            break;
        uint32_t point;
        char escaped[16];
        at += o41td__code_point(at, words.end, &point);
        const char *letter = point && point < 0x7f ? strchr("\"\"\\\\\nn\rr\tt\bb\ff", (int)point) : NULL;
        if (letter != NULL)
            snprintf(escaped, sizeof escaped, "\\%c", letter[1]);
        else if (point < 0x10000)
            snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)point);
        else
            snprintf(escaped, sizeof escaped, "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (point >> 10)),
                     (unsigned)(0xdc00 + (point & 0x3ff)));
        o41td__puts(text, escaped);
    }
    o41td__puts(text, "\"");
}

/* The fewest digits that give the number again, laid out as repr() lays them out; locales do not matter. */
static void o41td__json_real(o41td__text *text, double number) {
    char printed[40], digits[24], laid[64];
    int precision = 0;
    do {
        snprintf(printed, sizeof printed, "%.*e", precision, number);
    } while (++precision < 17 && strtod(printed, NULL) != number);
    int num_digits = 0, exponent = atoi(strchr(printed, 'e') + 1);
    for (const char *at = printed; *at != 'e'; at++)
        if (*at >= '0' && *at <= '9')
            digits[num_digits++] = *at;
    while (num_digits > 1 && digits[num_digits - 1] == '0')
        num_digits--;
    digits[num_digits] = 0;
    char *out = laid;
    if (printed[0] == '-')
        *out++ = '-';
    if (exponent < -4 || exponent >= 16) {
        out += sprintf(out, "%c%s%s", digits[0], num_digits > 1 ? "." : "", digits + 1);
        sprintf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        out += sprintf(out, "0.%.*s%s", -1 - exponent, "000", digits);
    } else {
        int num_whole = exponent + 1;
        for (int i = 0; i < num_whole; i++)
            *out++ = i < num_digits ? digits[i] : '0';
        sprintf(out, ".%s", num_digits > num_whole ? digits + num_whole : "0");
    }
    o41td__puts(text, laid);
}

/* Writes a msgpack value as JSON; false where JSON has none like it. */
static bool o41td__json_value(o41td__text *text, o41td__reader *reader) {
    o41td__value value;
    if (!o41td__read(reader, &value))
        return false;
    char digits[24];
    switch (value.kind) {
    case O41TD__NIL:
        o41td__puts(text, "null");
        return true;
    case O41TD__BOOL:
        o41td__puts(text, value.number ? "true" : "false");
        return true;
    case O41TD__UINT:
        snprintf(digits, sizeof digits, "%" PRIu64, value.number);
        o41td__puts(text, digits);
        return true;
    case O41TD__INT:
        snprintf(digits, sizeof digits, "-%" PRIu64, -value.number);
        o41td__puts(text, digits);
        return true;
    case O41TD__REAL:
        if (!(value.real - value.real == 0)) /* no number, or infinite */
            return false;
        o41td__json_real(text, value.real);
        return true;
    case O41TD__STR:
        o41td__json_str(text, (o41td__reader){value.bytes, value.bytes + value.number});
        return true;
    case O41TD__BIN:
        return false;
    case O41TD__ARRAY:
        o41td__puts(text, "[");
        for (uint64_t i = 0; i < value.number; i++) {
            o41td__puts(text, i ? "," : "");
            if (!o41td__json_value(text, reader))
                return false;
        }
        o41td__puts(text, "]");
        return true;
    case O41TD__MAP:
        o41td__puts(text, "{");
        for (uint64_t i = 0; i < value.number; i++) {
            o41td__reader key;
            o41td__puts(text, i ? "," : "");
            if (!o41td__read_bytes(reader, O41TD__STR, &key))
                return false;
            o41td__json_str(text, key);
            o41td__puts(text, ":");
            if (!o41td__json_value(text, reader))
                return false;
        }
        o41td__puts(text, "}");
        return true;
    }
    return false;
}

/* ---- JSON: reading, within bounds -------------------------------------------------------------------------------- */

static void o41td__json_space(o41td__reader *reader) {
    while (reader->at < reader->end && (*reader->at == ' ' || *reader->at == '\n' || *reader->at == '\t' ||
                                        *reader->at == '\r'))
        reader->at++;
}

static bool o41td__json_mark(o41td__reader *reader, char mark) {
    o41td__json_space(reader);
    if (reader->at == reader->end || *reader->at != (unsigned char)mark)
        return false;
    reader->at++;
    return true;
}

/* Passes over a string; `words` is what stands between the quotes, escapes and all. */
static bool o41td__json_words(o41td__reader *reader, o41td__reader *words) {
    if (!o41td__json_mark(reader, '"'))
        return false;
    words->at = reader->at;
    while (reader->at < reader->end && *reader->at != '"' && *reader->at >= ' ')
        reader->at += *reader->at == '\\' && reader->end - reader->at > 1 ? 2 : 1;
    words->end = reader->at;
    return o41td__json_mark(reader, '"');
}

static bool o41td__json_skip(o41td__reader *reader, int depth) {
    o41td__reader words;
    o41td__json_space(reader);
    if (depth > O41TD__MAX_DEPTH || reader->at == reader->end)
        return false;
    char first = (char)*reader->at;
    if (first == '"')
        return o41td__json_words(reader, &words);
    if (first == '{' || first == '[') {
        char last = first == '{' ? '}' : ']';
        reader->at++;
        if (o41td__json_mark(reader, last))
            return true;
        do {
            if (first == '{' && !(o41td__json_words(reader, &words) && o41td__json_mark(reader, ':')))
                return false;
            if (!o41td__json_skip(reader, depth + 1))
                return false;
        } while (o41td__json_mark(reader, ','));
        return o41td__json_mark(reader, last);
    }
    const unsigned char *start = reader->at; /* a number or a word */
    while (reader->at < reader->end && *reader->at && strchr("+-.0123456789aeflnrstuE", *reader->at))
        reader->at++;
    return reader->at > start;
}

/* Finds the value of an object's key, which has no escapes. */
static bool o41td__json_find(o41td__reader object, const char *key, o41td__reader *found) {
    o41td__reader name;
    if (!o41td__json_mark(&object, '{'))
        return false;
    do {
        if (!(o41td__json_words(&object, &name) && o41td__json_mark(&object, ':')))
            return false;
        o41td__json_space(&object);
        found->at = object.at;
        if (!o41td__json_skip(&object, 0))
            return false;
        found->end = object.at;
        if (o41td__is(name, key))
            return true;
    } while (o41td__json_mark(&object, ','));
    return false;
}

/* Reads an integer of 0 or more. */
static bool o41td__json_int(o41td__reader *reader, int64_t *number) {
    o41td__json_space(reader);
    const unsigned char *start = reader->at;
    *number = 0;
    while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9') {
        int digit = *reader->at++ - '0';
        if (*number > (INT64_MAX - digit) / 10)
            return false;
        *number = *number * 10 + digit;
    }
    return reader->at > start;
}

static bool o41td__json_find_int(o41td__reader object, const char *key, int64_t *number) {
    o41td__reader value;
    return o41td__json_find(object, key, &value) && o41td__json_int(&value, number) && value.at == value.end;
}

static bool o41td__json_find_words(o41td__reader object, const char *key, o41td__reader *words) {
    o41td__reader value;
    return o41td__json_find(object, key, &value) && o41td__json_words(&value, words);
}

/* Reads a pair of integers out of an array of them; `*is_over` at its end. Begin behind its bracket. */
static bool o41td__json_pair(o41td__reader *reader, bool is_first, int64_t pair[2], bool *is_over) {
    *is_over = o41td__json_mark(reader, ']');
    if (*is_over)
        return true;
    if (!is_first && !o41td__json_mark(reader, ','))
        return false;
    return o41td__json_mark(reader, '[') && o41td__json_int(reader, &pair[0]) && o41td__json_mark(reader, ',') &&
           o41td__json_int(reader, &pair[1]) && o41td__json_mark(reader, ']');
}

/* ---- BLAKE2b with a digest of 8 bytes (RFC 7693) ----------------------------------------------------------------- */

static uint64_t o41td__turned(uint64_t word, int right) { return word >> right | word << (64 - right); }

static void o41td__blake2b_mix(uint64_t v[16], const unsigned char line[4], uint64_t first, uint64_t second) {
    uint64_t *a = &v[line[0]], *b = &v[line[1]], *c = &v[line[2]], *d = &v[line[3]];
    *a += *b + first;
    *d = o41td__turned(*d ^ *a, 32);
    *c += *d;
    *b = o41td__turned(*b ^ *c, 24);
    *a += *b + second;
    *d = o41td__turned(*d ^ *a, 16);
    *c += *d;
    *b = o41td__turned(*b ^ *c, 63);
}

/* The digest's bytes in their order, as a little-endian number. */
static uint64_t o41td__blake2b(const void *data, size_t length) {
    static const uint64_t start[8] = {0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu,
                                      0xa54ff53a5f1d36f1u, 0x510e527fade682d1u, 0x9b05688c2b3e6c1fu,
                                      0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u};
    static const unsigned char orders[10][16] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
        {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
        {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
        {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
        {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};
    static const unsigned char lines[8][4] = {{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15},
                                              {0, 5, 10, 15}, {1, 6, 11, 12}, {2, 7, 8, 13}, {3, 4, 9, 14}};
    uint64_t state[8];
    memcpy(state, start, sizeof state);
    state[0] ^= 0x01010000u ^ 8u; /* no key, 8 bytes of digest */
    size_t done = 0;
    do {
        unsigned char block[128] = {0};
        size_t part = length - done < sizeof block ? length - done : sizeof block;
        if (part)
            memcpy(block, (const unsigned char *)data + done, part);
        done += part;
        uint64_t words[16], v[16];
        memcpy(words, block, sizeof words);
        memcpy(v, state, sizeof state);
        memcpy(v + 8, start, sizeof start);
        v[12] ^= done;
        v[14] ^= done == length ? UINT64_MAX : 0;
        for (int round = 0; round < 12; round++)
            for (int i = 0; i < 8; i++) {
                const unsigned char *order = orders[round % 10];
                o41td__blake2b_mix(v, lines[i], words[order[2 * i]], words[order[2 * i + 1]]);
            }
        for (int i = 0; i < 8; i++)
            state[i] ^= v[i] ^ v[i + 8];
    } while (done < length);
    return state[0];
}

static void o41td__put_digest(o41td__text *text, uint64_t digest) {
    char digits[3];
    for (int i = 0; i < 8; i++) {
        snprintf(digits, sizeof digits, "%02x", (unsigned)(digest >> 8 * i & 0xff));
        o41td__puts(text, digits);
    }
}

/* ---- what is streamed -------------------------------------------------------------------------------------------- */

#define O41TD__MAX_ROWS ((int64_t)1 << 43) /* of a source; with as many lanes as there may be, sums stay in 63 bits */
#define O41TD__MAX_LANES 65536
#define O41TD__MAX_STALL_S 1e9 /* more is as good as for ever, and must be countable in milliseconds */

typedef struct {
    int64_t start, stop;
} o41td__range;

typedef struct {
    int64_t stage, batches;
} o41td__run;

typedef struct {
    char *name;
    int64_t batch_size;  /* also the most rows that one has */
    int64_t num_batches; /* -1: it has no end */
    int64_t *lane_rows;  /* [lanes]: of one epoch, where it has no end */
    size_t num_sources;
    bool infinite, drop_last;
} o41td__stage;

typedef struct {
    o41td__text quoted_name;
    size_t stage;
    int64_t epoch_rows; /* over all lanes */
} o41td__source;

/* All that is the same before and behind the death of a server. */
typedef struct {
    o41td_field *fields;
    o41td__stage *stages;
    o41td__source *sources;
    o41td__range *excluded; /* ascending, neither touching nor overlapping */
    size_t num_fields, num_stages, num_sources, num_excluded;
    int64_t world_size, lanes, max_rows;
    double stall_timeout_s;
    o41td__text config, shards;          /* of checkpoints: JSON */
    uint64_t job_digest, shards_digest; /* of what determines which bytes come when */
} o41td__facts;

static void o41td__facts_free(o41td__facts *facts) {
    for (size_t i = 0; i < facts->num_fields; i++) {
        free((void *)facts->fields[i].name);
        free((void *)facts->fields[i].shape);
    }
    for (size_t i = 0; i < facts->num_stages; i++) {
        free(facts->stages[i].name);
        free(facts->stages[i].lane_rows);
    }
    for (size_t i = 0; i < facts->num_sources; i++)
        free(facts->sources[i].quoted_name.data);
    free(facts->fields);
    free(facts->stages);
    free(facts->sources);
    free(facts->excluded);
    free(facts->config.data);
    free(facts->shards.data);
    memset(facts, 0, sizeof *facts);
}

/* An array of zeroes for values that were announced. Each takes a byte of what is read, so there are no more. */
static void *o41td__array(o41td__reader reader, uint64_t count, size_t item_bytes) {
    return count <= o41td__length(reader) ? calloc(count ? (size_t)count : 1, item_bytes) : NULL;
}

/* The settings that may differ when a server comes back: they have no part in which bytes come when. */
static bool o41td__is_free_to_change(o41td__reader key) {
    static const char *const names[] = {"threads",           "lookahead",          "prefetch_batches",
                                        "block_rows",        "memory_limit_bytes", "max_row_group_bytes",
                                        "stall_timeout_s",   "quarantine_file",    "cache_dir",
                                        "cache_limit_bytes", "cluster"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (o41td__is(key, names[i]))
            return true;
    return false;
}

/* Of a config's document, with the lanes that were filled in. */
static bool o41td__write_config(o41td__text *text, o41td__reader config, int64_t lanes) {
    o41td__value head;
    bool has_lanes = false;
    if (!o41td__read(&config, &head) || head.kind != O41TD__MAP)
        return false;
    for (uint64_t i = 0; i < head.number; i++) {
        o41td__reader key;
        if (!o41td__read_bytes(&config, O41TD__STR, &key))
            return false;
        o41td__puts(text, i ? "," : "{");
        o41td__json_str(text, key);
        o41td__puts(text, ":");
        if (o41td__is(key, "lanes")) {
            has_lanes = true;
            o41td__put_int(text, lanes);
            if (!o41td__skip(&config, 0))
                return false;
        } else if (!o41td__json_value(text, &config)) {
            return false;
        }
    }
    o41td__puts(text, "}");
    return has_lanes;
}

static bool o41td__read_job(o41td__facts *facts, o41td__reader job) {
    o41td__reader stages, ranges, value, map = job;
    o41td__value head, timeout;
    uint64_t count;
    if (!o41td__find_int(job, "lanes", 1, O41TD__MAX_LANES, &facts->lanes))
        return false;
    if (!o41td__find(job, "stall_timeout_s", &value) || !o41td__read(&value, &timeout))
        return false;
    facts->stall_timeout_s = timeout.kind == O41TD__UINT ? (double)timeout.number : timeout.real;
    if (!(facts->stall_timeout_s > 0))
        return false;
    if (facts->stall_timeout_s > O41TD__MAX_STALL_S)
        facts->stall_timeout_s = O41TD__MAX_STALL_S;
    if (!o41td__find(job, "stages", &stages) || !o41td__read_array(&stages, &count) || !count || count > INT32_MAX)
        return false;
    if ((facts->stages = o41td__array(stages, count, sizeof *facts->stages)) == NULL)
        return false;
    for (facts->num_stages = 0; facts->num_stages < count;) {
        o41td__stage *stage = &facts->stages[facts->num_stages++];
        o41td__reader sources, name, this = stages;
        uint64_t num_sources;
        if (!o41td__find_str(this, "name", &name) || (stage->name = o41td__copied(name)) == NULL ||
            !o41td__find_int(this, "batch_size", 1, (int64_t)1 << 40, &stage->batch_size) ||
            !o41td__find_bool(this, "infinite", &stage->infinite) ||
            !o41td__find_bool(this, "drop_last", &stage->drop_last) || !o41td__find(this, "sources", &sources) ||
            !o41td__read_array(&sources, &num_sources) || !o41td__skip(&stages, 0))
            return false;
        stage->num_sources = (size_t)num_sources;
        if ((stage->lane_rows = calloc((size_t)facts->lanes, sizeof *stage->lane_rows)) == NULL)
            return false;
    }
    if (!o41td__find(job, "excluded", &ranges) || !o41td__read_array(&ranges, &count) ||
        (facts->excluded = o41td__array(ranges, count, sizeof *facts->excluded)) == NULL)
        return false;
    for (int64_t before = -1; facts->num_excluded < count; facts->num_excluded++) {
        o41td__range *range = &facts->excluded[facts->num_excluded];
        uint64_t two;
        if (before == INT64_MAX || !o41td__read_array(&ranges, &two) || two != 2 ||
            !o41td__read_int(&ranges, before + 1, INT64_MAX - 1, &range->start) ||
            !o41td__read_int(&ranges, range->start + 1, INT64_MAX, &range->stop))
            return false;
        before = range->stop;
    }
    o41td__text kept = {0};
    if (!o41td__read(&map, &head) || head.kind != O41TD__MAP)
        return false;
    while (head.number--) {
        o41td__reader key, entry = map;
        if (!o41td__read_bytes(&map, O41TD__STR, &key) || !o41td__skip(&map, 0))
            break;
        entry.end = map.at;
        if (!o41td__is_free_to_change(key))
            o41td__put(&kept, entry.at, o41td__length(entry));
    }
    o41td__put_int(&kept, facts->world_size);
    facts->job_digest = o41td__blake2b(kept.data, kept.length);
    free(kept.data);
    return !kept.failed;
}

/* A `LoaderJoined` that was checked to be whole. */
static bool o41td__read_joined(o41td__facts *facts, o41td__reader payload) {
    uint64_t count, tag;
    o41td__reader config, job;
    if (!o41td__read_array(&payload, &count) || count != 4 || !o41td__take(&payload, 1, &tag))
        return false;
    config = payload;
    if (!o41td__skip(&payload, 0))
        return false;
    job = payload;
    return o41td__skip(&payload, 0) && o41td__read_int(&payload, 1, (int64_t)1 << 31, &facts->world_size) &&
           o41td__read_job(facts, job) && o41td__write_config(&facts->config, config, facts->lanes);
}

static bool o41td__read_fields(o41td__facts *facts, o41td__reader layout) {
    static const struct {
        const char *code;
        o41td_dtype dtype;
        size_t bytes;
    } dtypes[] = {{"<i4", O41TD_I32, 4}, {"<i8", O41TD_I64, 8}, {"<f4", O41TD_F32, 4}, {"<f8", O41TD_F64, 8},
                  {"|b1", O41TD_BOOL, 1}};
    o41td__reader fields;
    uint64_t count;
    if (!o41td__find(layout, "fields", &fields) || !o41td__read_array(&fields, &count) || !count ||
        (facts->fields = o41td__array(fields, count, sizeof *facts->fields)) == NULL)
        return false;
    while (facts->num_fields < count) {
        o41td_field *field = &facts->fields[facts->num_fields++];
        o41td__reader name, code;
        uint64_t three, num_dims;
        int64_t *shape;
        if (!o41td__read_array(&fields, &three) || three != 3 || !o41td__read_bytes(&fields, O41TD__STR, &name) ||
            (field->name = o41td__copied(name)) == NULL || !o41td__read_bytes(&fields, O41TD__STR, &code) ||
            !o41td__read_array(&fields, &num_dims) ||
            (field->shape = shape = o41td__array(fields, num_dims, sizeof *shape)) == NULL)
            return false;
        for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
            if (o41td__is(code, dtypes[i].code)) {
                field->dtype = dtypes[i].dtype;
                field->row_bytes = dtypes[i].bytes;
            }
        if (!field->row_bytes)
            return false;
        for (field->num_dims = 0; field->num_dims < num_dims; field->num_dims++)
            if (!o41td__read_int(&fields, 1, INT64_MAX, &shape[field->num_dims]) ||
                __builtin_mul_overflow(field->row_bytes, shape[field->num_dims], &field->row_bytes))
                return false;
    }
    return true;
}

/* How many bytes all texts begin with in common, cut between two code points. */
static size_t o41td__common_start(const o41td__reader *texts, size_t num_texts) {
    size_t length = num_texts ? o41td__length(texts[0]) : 0;
    for (size_t i = 1; i < num_texts; i++) {
        size_t at = 0;
        while (at < length && at < o41td__length(texts[i])) {
            uint32_t point, other;
            size_t step = o41td__code_point(texts[0].at + at, texts[0].end, &point);
            o41td__code_point(texts[i].at + at, texts[i].end, &other);
            if (point != other)
                break;
            at += step;
        }
        length = at;
    }
    return length;
}

static bool o41td__is_between_points(o41td__reader text, size_t place) {
    if (place == o41td__length(text) || text.at[place] < 0x80)
        return true;
    size_t at = 0;
    uint32_t point;
    while (at < place)
        at += o41td__code_point(text.at + at, text.end, &point);
    return at == place;
}

/* How many bytes all texts end with in common, cut between two code points of each. */
static size_t o41td__common_end(const o41td__reader *texts, size_t num_texts) {
    size_t length = num_texts ? o41td__length(texts[0]) : 0;
    for (size_t i = 1; i < num_texts; i++) {
        size_t same = 0;
        while (same < length && same < o41td__length(texts[i]) && texts[0].end[-1 - (ptrdiff_t)same] ==
                                                                      texts[i].end[-1 - (ptrdiff_t)same])
            same++;
        length = same;
    }
    for (size_t i = 0; i < num_texts; i++)
        if (!o41td__is_between_points(texts[i], o41td__length(texts[i]) - length)) {
            length--; /* and all are looked at once more */
            i = (size_t)-1;
        }
    return length;
}

/* Writes one column of a source's shards, each of which is [uri, rows, size in bytes, time, version]. */
static bool o41td__write_column(o41td__text *text, o41td__reader shards, uint64_t count, int column) {
    o41td__puts(text, "[");
    for (uint64_t i = 0; i < count; i++) {
        uint64_t five;
        o41td__puts(text, i ? "," : "");
        if (!o41td__read_array(&shards, &five) || five != 5)
            return false;
        for (int at = 0; at < 5; at++)
            if (!(at == column ? o41td__json_value(text, &shards) : o41td__skip(&shards, 0)))
                return false;
    }
    o41td__puts(text, "]");
    return true;
}

static bool o41td__write_uris(o41td__text *text, o41td__reader shards, uint64_t count) {
    o41td__reader *uris = o41td__array(shards, count, sizeof *uris), at = shards;
    bool is_right = uris != NULL;
    for (uint64_t i = 0; is_right && i < count; i++) {
        uint64_t five;
        is_right = o41td__read_array(&at, &five) && five == 5 && o41td__read_bytes(&at, O41TD__STR, &uris[i]);
        for (int rest = 1; is_right && rest < 5; rest++)
            is_right = o41td__skip(&at, 0);
    }
    if (is_right) {
        size_t num_before = o41td__common_start(uris, (size_t)count);
        o41td__reader first = count ? uris[0] : (o41td__reader){NULL, NULL};
        o41td__puts(text, "\"prefix\":");
        o41td__json_str(text, (o41td__reader){first.at, first.at + num_before});
        for (uint64_t i = 0; i < count; i++)
            uris[i].at += num_before;
        size_t num_behind = o41td__common_end(uris, (size_t)count);
        o41td__puts(text, ",\"suffix\":");
        o41td__json_str(text, (o41td__reader){first.end - num_behind, first.end});
        o41td__puts(text, ",\"uris\":[");
        for (uint64_t i = 0; i < count; i++) {
            o41td__puts(text, i ? "," : "");
            o41td__json_str(text, (o41td__reader){uris[i].at, uris[i].end - num_behind});
        }
        o41td__puts(text, "]");
    }
    free(uris);
    return is_right;
}

/* Writes a source as checkpoints have it, and adds its rows to its stage's lanes. */
static bool o41td__read_source(o41td__facts *facts, o41td__reader map, size_t stage_number, int64_t *largest_lane) {
    o41td__stage *stage = &facts->stages[stage_number];
    o41td__source *source = &facts->sources[facts->num_sources];
    o41td__text *text = &facts->shards;
    o41td__reader name, encoding, shards, units;
    uint64_t num_shards;
    int64_t number, rows = 0;
    if (!o41td__find_str(map, "name", &name) || !o41td__find_int(map, "source", 0, INT32_MAX, &number) ||
        !o41td__find_str(map, "encoding", &encoding) || !o41td__find(map, "shards", &shards) ||
        !o41td__read_array(&shards, &num_shards) || !o41td__find(map, "unit_rows", &units) ||
        !o41td__read_bytes(&units, O41TD__BIN, &units) || o41td__length(units) % 8)
        return false;
    for (size_t i = 0; i < o41td__length(units); i += 8) {
        int64_t of_unit;
        memcpy(&of_unit, units.at + i, sizeof of_unit);
        if (of_unit < 0 || of_unit > O41TD__MAX_ROWS - rows)
            return false;
        rows += of_unit;
    }
    uint64_t units_digest = o41td__blake2b(units.at, o41td__length(units));
    facts->shards_digest ^= o41td__turned(units_digest, 1 + (int)(facts->num_sources % 61));
    facts->num_sources++;
    source->stage = stage_number;
    o41td__json_str(&source->quoted_name, name);
    bool is_whole = stage->infinite && rows < facts->lanes; /* every lane walks all of it */
    for (int64_t lane = 0; lane < facts->lanes; lane++) {
        int64_t of_lane = is_whole ? rows : rows * (lane + 1) / facts->lanes - rows * lane / facts->lanes;
        stage->lane_rows[lane] += of_lane;
        source->epoch_rows += of_lane;
    }
    *largest_lane += (rows + facts->lanes - 1) / facts->lanes;
    o41td__puts(text, text->length > 1 ? ",{\"name\":" : "{\"name\":");
    o41td__json_str(text, name);
    o41td__puts(text, ",\"stage\":");
    o41td__put_int(text, (int64_t)stage_number);
    o41td__puts(text, ",\"source\":");
    o41td__put_int(text, number);
    o41td__puts(text, ",\"encoding\":");
    o41td__json_str(text, encoding);
    o41td__puts(text, ",");
    if (!o41td__write_uris(text, shards, num_shards))
        return false;
    static const char *const titles[] = {",\"rows\":", ",\"size_bytes\":", ",\"versions\":"};
    static const int columns[] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        o41td__puts(text, titles[i]);
        if (!o41td__write_column(text, shards, num_shards, columns[i]))
            return false;
    }
    o41td__puts(text, "}");
    return !source->quoted_name.failed;
}

static void o41td__count_batches(const o41td__facts *facts, o41td__stage *stage, int64_t largest_lane) {
    stage->num_batches = -1;
    if (stage->infinite)
        return;
    if (stage->batch_size > largest_lane + 1) /* the batches are the same, and need less room */
        stage->batch_size = largest_lane + 1;
    for (int64_t lane = 0; lane < facts->lanes; lane++) {
        int64_t whole = stage->lane_rows[lane] / stage->batch_size, rest = stage->lane_rows[lane] % stage->batch_size;
        int64_t first_missing = (whole + (rest && !stage->drop_last)) * facts->lanes + lane;
        if (stage->num_batches < 0 || first_missing < stage->num_batches)
            stage->num_batches = first_missing;
    }
}

static bool o41td__read_sources(o41td__facts *facts, o41td__reader sources) {
    uint64_t count;
    if (!o41td__read_array(&sources, &count) ||
        (facts->sources = o41td__array(sources, count, sizeof *facts->sources)) == NULL)
        return false;
    o41td__puts(&facts->shards, "[");
    for (size_t stage = 0; stage < facts->num_stages; stage++) {
        o41td__reader at = sources;
        int64_t largest_lane = 0;
        size_t num_before = facts->num_sources;
        for (uint64_t i = 0; i < count; i++) {
            o41td__reader map = at;
            int64_t its_stage;
            if (!o41td__skip(&at, 0) || !o41td__find_int(map, "stage", 0, INT32_MAX, &its_stage))
                return false;
            if ((size_t)its_stage == stage && !o41td__read_source(facts, map, stage, &largest_lane))
                return false;
        }
        if (facts->num_sources - num_before != facts->stages[stage].num_sources)
            return false;
        o41td__count_batches(facts, &facts->stages[stage], largest_lane);
        if (facts->stages[stage].batch_size > facts->max_rows)
            facts->max_rows = facts->stages[stage].batch_size;
    }
    o41td__puts(&facts->shards, "]");
    facts->shards_digest ^= o41td__blake2b(facts->shards.data, facts->shards.length);
    return facts->num_sources == count && !facts->shards.failed && !facts->config.failed;
}

/* ---- arithmetic on batches: what o41td.order and o41td.exclusions do --------------------------------------------- */

/* Where the next `num_taken` batches from `start` on end that are not excluded. */
static int64_t o41td__after(const o41td__facts *facts, int64_t start, int64_t num_taken) {
    for (size_t i = 0; num_taken && i < facts->num_excluded; i++) {
        o41td__range range = facts->excluded[i];
        if (range.stop <= start)
            continue;
        int64_t room = range.start > start ? range.start - start : 0;
        if (num_taken <= room)
            break;
        num_taken -= room;
        start = range.stop;
    }
    return num_taken < INT64_MAX - start ? start + num_taken : INT64_MAX; /* all to the last number may be excluded */
}

static int64_t o41td__num_excluded(const o41td__facts *facts, int64_t start, int64_t stop) {
    int64_t count = 0;
    for (size_t i = 0; i < facts->num_excluded; i++) {
        int64_t first = facts->excluded[i].start > start ? facts->excluded[i].start : start;
        int64_t last = facts->excluded[i].stop < stop ? facts->excluded[i].stop : stop;
        count += last > first ? last - first : 0;
    }
    return count;
}

/* Rows of a stage's batches [0, batch). */
static int64_t o41td__rows_before(const o41td__facts *facts, const o41td__stage *stage, int64_t batch) {
    if (stage->infinite)
        return batch * stage->batch_size;
    int64_t rows = 0;
    if (batch > stage->num_batches)
        batch = stage->num_batches;
    for (int64_t lane = 0; lane < facts->lanes; lane++) {
        int64_t taken = (batch - lane + facts->lanes - 1) / facts->lanes * stage->batch_size;
        rows += taken < stage->lane_rows[lane] ? taken : stage->lane_rows[lane];
    }
    return rows;
}

/* ---- the stream -------------------------------------------------------------------------------------------------- */

#define O41TD__MAX_FRAME_BYTES ((size_t)1 << 30)
#define O41TD__MAX_ENTRY_BYTES 65536
#define O41TD__MAX_LOSSES 5
#define O41TD__ACKNOWLEDGE_EVERY 16
#define O41TD__FIRST_JOIN_MS 5000
#define O41TD__ANSWER_MS 60000
#define O41TD__LOOK_AGAIN_MS 100

enum { O41TD__LOST = -2, O41TD__SILENT = -3 }; /* beside o41td_status: the peer is gone, the peer says nothing */

typedef struct {
    int64_t number, num_rows;
    int64_t first_row; /* the arena row that its rows begin at, or -1: they are listed in `rows` */
    uint64_t order_digest;
    bool release; /* the loader asks to hear when the batch is done with */
} o41td__ready;

struct o41td_stream {
    char *name;
    int64_t rank;
    o41td_options options;
    pid_t pid;
    o41td__text error, fatal; /* the last error; the one that nothing goes on behind */
    char why[200];            /* the peer was lost */
    o41td__facts facts;

    /* The connection, and what came over it. */
    int socket, descriptor;
    unsigned char *received; /* bytes [received_start, received_end) are not used yet */
    size_t received_start, received_end, received_room;
    const unsigned char *arena;
    size_t arena_bytes, *offsets; /* of each field's region */
    int64_t arena_rows;

    /* Where the stream is: the history, whose last run is as it was when serving began, and the rounds taken since. */
    o41td__run *history;
    size_t num_runs;
    int64_t rounds_taken, global_offset; /* of a batch's number in all stages from that in its own */
    uint64_t order_digest;
    int64_t dropped_rows;

    /* What is served: batches announced and not taken, and the arena rows of those that list them. */
    int64_t generation, gathered, acknowledged;
    o41td__ready *ready;
    size_t num_ready, next_ready;
    unsigned char *rows;
    size_t next_row;
    bool has_ended, has_failed;
    o41td__text failure;

    int num_losses; /* since the last batch */
    int64_t batches, rows_taken, waited_ms;
};

static int o41td__fail(o41td_stream *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Keeps the words of an error; returns O41TD_ERROR. */
static int o41td__fail(o41td_stream *stream, const char *format, ...) {
    char words[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    stream->error.length = 0;
    o41td__puts(&stream->error, words);
    return O41TD_ERROR;
}

static int o41td__fail_text(o41td_stream *stream, const o41td__text *text) {
    stream->error.length = 0;
    o41td__put(&stream->error, text->data, text->length);
    return O41TD_ERROR;
}

static int o41td__no_memory(o41td_stream *stream) { return o41td__fail(stream, "memory ran out"); }

static int o41td__lost(o41td_stream *stream, const char *why) {
    snprintf(stream->why, sizeof stream->why, "%s", why);
    return O41TD__LOST;
}

static int64_t o41td__now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool o41td__is_stopped(const o41td_stream *stream) {
    return stream->options.stop != NULL && *stream->options.stop != 0;
}

static int o41td__stopped(o41td_stream *stream) {
    o41td__fail(stream, "stopped while it waited");
    return O41TD_STOPPED;
}

static int o41td__pause(o41td_stream *stream) {
    struct timespec step = {0, O41TD__LOOK_AGAIN_MS * 1000000};
    nanosleep(&step, NULL);
    return o41td__is_stopped(stream) ? o41td__stopped(stream) : O41TD_OK;
}

static void o41td__notice(const o41td_stream *stream, const char *text, bool is_warning) {
    if (stream->options.on_notice != NULL)
        stream->options.on_notice(stream->options.user, text, is_warning);
}

static void o41td__disconnect(o41td_stream *stream) {
    if (stream->socket >= 0)
        close(stream->socket);
    if (stream->descriptor >= 0)
        close(stream->descriptor);
    if (stream->arena != NULL)
        munmap((void *)stream->arena, stream->arena_bytes);
    free(stream->received);
    free(stream->ready);
    free(stream->rows);
    stream->socket = stream->descriptor = -1;
    stream->arena = NULL;
    stream->received = stream->rows = NULL;
    stream->ready = NULL;
    stream->received_start = stream->received_end = stream->received_room = 0;
    stream->num_ready = stream->next_ready = stream->next_row = 0;
}

/* Turns an error record into one line: class, what, where, and what to do. */
static void o41td__tell(o41td__text *text, o41td__reader record) {
    static const char *const places[][2] = {{"where", ""},          {"source", "source "}, {"node", "node "},
                                            {"shard", "shard "},    {"row_group", "row group "}, {"row", "row "},
                                            {"column", "column "},  {"path", ""},          {"uri", ""}};
    o41td__reader kind, fields, words, value;
    const char *before = " (";
    text->length = 0;
    if (!o41td__find_str(record, "kind", &kind) || !o41td__find(record, "fields", &fields) ||
        !o41td__find_str(fields, "detail", &words)) {
        o41td__puts(text, "the loader told of an error in a way that cannot be read");
        return;
    }
    o41td__put(text, kind.at, o41td__length(kind));
    o41td__puts(text, ": ");
    while (words.end > words.at && words.end[-1] == '.')
        words.end--;
    o41td__put(text, words.at, o41td__length(words));
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        o41td__value head;
        if (!o41td__find(fields, places[i][0], &value) || !o41td__read(&value, &head) || head.kind == O41TD__NIL)
            continue;
        o41td__puts(text, before);
        o41td__puts(text, places[i][1]);
        if (head.kind == O41TD__STR)
            o41td__put(text, head.bytes, (size_t)head.number);
        else
            o41td__put_int(text, (int64_t)head.number);
        before = ", ";
    }
    o41td__puts(text, before[0] == ',' ? ")" : "");
    if (o41td__find(fields, "problems", &value)) {
        uint64_t count, two;
        o41td__reader path, problem;
        before = ": ";
        if (o41td__read_array(&value, &count))
            while (count-- && o41td__read_array(&value, &two) && two == 2 &&
                   o41td__read_bytes(&value, O41TD__STR, &path) && o41td__read_bytes(&value, O41TD__STR, &problem)) {
                o41td__puts(text, before);
                o41td__put(text, path.at, o41td__length(path));
                o41td__puts(text, o41td__length(path) ? ": " : "");
                o41td__put(text, problem.at, o41td__length(problem));
                before = "; ";
            }
    }
    if (o41td__find_str(fields, "advice", &words) && o41td__length(words)) {
        o41td__puts(text, ". ");
        o41td__put(text, words.at, o41td__length(words));
    }
    if (text->length && !strchr(".?!", text->data[text->length - 1]))
        o41td__puts(text, ".");
}

/* ---- the socket -------------------------------------------------------------------------------------------------- */

static int o41td__wait(o41td_stream *stream, short events, int64_t until_ms) {
    for (;;) {
        struct pollfd look = {stream->socket, events, 0};
        if (o41td__is_stopped(stream))
            return o41td__stopped(stream);
        int64_t left_ms = until_ms - o41td__now_ms();
        int num_there = poll(&look, 1, left_ms <= 0 ? 0 : left_ms > 100 ? 100 : (int)left_ms);
        if (num_there > 0)
            return O41TD_OK;
        if (num_there < 0 && errno != EINTR)
            return o41td__lost(stream, strerror(errno));
        if (num_there == 0 && left_ms <= 0)
            return O41TD__SILENT;
    }
}

/* Whether the peer has closed its end, or died. What it sent before may not have been read yet. */
static bool o41td__is_hung_up(const o41td_stream *stream) {
    struct pollfd look = {stream->socket, 0, 0};
    return poll(&look, 1, 0) > 0 && (look.revents & (POLLHUP | POLLERR));
}

static int o41td__send(o41td_stream *stream, o41td__frame *frame) {
    o41td__frame_end(frame);
    for (size_t sent = 0; sent < frame->length;) {
        ssize_t more = send(stream->socket, frame->bytes + sent, frame->length - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (more >= 0) {
            sent += (size_t)more;
        } else if (errno == EAGAIN) {
            int status = o41td__wait(stream, POLLOUT, o41td__now_ms() + O41TD__ANSWER_MS);
            if (status == O41TD_STOPPED) /* half a frame may be out: this conversation is over */
                return o41td__lost(stream, "it did not read, and `options.stop` ended the wait");
            if (status == O41TD__SILENT)
                return o41td__lost(stream, "it does not read");
            if (status != O41TD_OK)
                return status;
        } else if (errno != EINTR) {
            return o41td__lost(stream, strerror(errno));
        }
    }
    return O41TD_OK;
}

/* Takes the descriptors that came with some bytes; this protocol passes one in a whole conversation. */
static bool o41td__keep_descriptor(o41td_stream *stream, struct msghdr *message) {
    bool is_right = true;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int descriptor;
            memcpy(&descriptor, CMSG_DATA(part) + at, sizeof descriptor);
            if (stream->descriptor < 0 && stream->arena == NULL) {
                stream->descriptor = descriptor;
            } else {
                close(descriptor);
                is_right = false;
            }
        }
    }
    return is_right;
}

static int o41td__receive_some(o41td_stream *stream) {
    if (stream->received_start) {
        stream->received_end -= stream->received_start;
        memmove(stream->received, stream->received + stream->received_start, stream->received_end);
        stream->received_start = 0;
    }
    if (stream->received_room - stream->received_end < 65536) { /* as bytes arrive, not as they are announced */
        size_t room = stream->received_room ? 2 * stream->received_room : 262144;
        unsigned char *grown = realloc(stream->received, room);
        if (grown == NULL)
            return o41td__no_memory(stream);
        stream->received = grown;
        stream->received_room = room;
    }
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec room = {stream->received + stream->received_end, stream->received_room - stream->received_end};
    struct msghdr message = {0};
    message.msg_iov = &room;
    message.msg_iovlen = 1;
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    ssize_t length = recvmsg(stream->socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (length < 0)
        return errno == EAGAIN || errno == EINTR ? O41TD_OK : o41td__lost(stream, strerror(errno));
    if (!o41td__keep_descriptor(stream, &message))
        return o41td__lost(stream, "more descriptors came than messages that carry one");
    if (length == 0)
        return o41td__lost(stream, "the other end closed the connection");
    stream->received_end += (size_t)length;
    return O41TD_OK;
}

/* Returns the next message, whole and well formed; it is valid until the next call. */
static int o41td__receive(o41td_stream *stream, int64_t until_ms, o41td__reader *payload) {
    for (;;) {
        size_t there = stream->received_end - stream->received_start;
        if (there >= 4) {
            const unsigned char *frame = stream->received + stream->received_start;
            size_t length = frame[0] | (size_t)frame[1] << 8 | (size_t)frame[2] << 16 | (size_t)frame[3] << 24;
            if (length > O41TD__MAX_FRAME_BYTES)
                return o41td__lost(stream, "it announced a frame that is too large");
            if (there - 4 >= length) {
                stream->received_start += 4 + length;
                *payload = (o41td__reader){frame + 4, frame + 4 + length};
                o41td__reader walk = *payload;
                if (!o41td__skip(&walk, 0) || walk.at != walk.end)
                    return o41td__lost(stream, "it sent what is no message");
                return O41TD_OK;
            }
        }
        int status = o41td__wait(stream, POLLIN, until_ms);
        if (status == O41TD_OK)
            status = o41td__receive_some(stream);
        if (status != O41TD_OK)
            return status;
    }
}

/* The tag of a message, and how many fields follow; `reader` is then at the first. -1: it is no message. */
static int o41td__tag_of(o41td__reader *reader, uint64_t *num_fields) {
    int64_t tag;
    uint64_t count;
    if (!o41td__read_array(reader, &count) || !count || !o41td__read_int(reader, 0, 127, &tag))
        return -1;
    *num_fields = count - 1;
    return (int)tag;
}

static int o41td__hear_notice(o41td_stream *stream, o41td__reader fields) {
    o41td__reader words;
    bool is_warning;
    if (!o41td__read_bytes(&fields, O41TD__STR, &words) || !o41td__read_bool(&fields, &is_warning))
        return o41td__lost(stream, "it sent a notice that is none");
    char *text = o41td__copied(words);
    if (text == NULL)
        return o41td__no_memory(stream);
    o41td__notice(stream, text, is_warning);
    free(text);
    return O41TD_OK;
}

/* ---- finding a loader by its name -------------------------------------------------------------------------------- */

typedef struct {
    int64_t pid, start_time;
    char socket_path[sizeof((struct sockaddr_un *)0)->sun_path];
    bool speaks_ours;
} o41td__entry;

/* This user's runtime folder: the first of the two that is this user's alone. */
static bool o41td__runtime_folder(char *folder, size_t room) {
    for (int i = 0; i < 2; i++) {
        struct stat status, above;
        char parent[64];
        if (i == 0)
            snprintf(parent, sizeof parent, "/run/user/%lu", (unsigned long)getuid());
        else
            snprintf(parent, sizeof parent, "/tmp");
        if (i == 0)
            snprintf(folder, room, "%s/o41td", parent);
        else
            snprintf(folder, room, "%s/o41td-%lu", parent, (unsigned long)getuid());
        if (lstat(folder, &status) || stat(parent, &above))
            continue;
        bool others_could_swap_it = (above.st_mode & 022) && !(above.st_mode & S_ISVTX);
        if (S_ISDIR(status.st_mode) && status.st_uid == getuid() && !(status.st_mode & 077) && !others_could_swap_it)
            return true;
    }
    return false;
}

/* Reads a small file; its length, or -1. */
static ssize_t o41td__read_file(const char *path, char *text, size_t room) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return -1;
    size_t length = 0;
    ssize_t more = 1;
    while (more > 0 && length < room) {
        more = read(file, text + length, room - length);
        length += more > 0 ? (size_t)more : 0;
    }
    close(file);
    return more < 0 || length == room ? -1 : (ssize_t)length;
}

/* When a process was started, in clock ticks since boot; -1 where there is none of that number. */
static int64_t o41td__start_time(int64_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    ssize_t length = o41td__read_file(path, text, sizeof text - 1);
    if (length < 0)
        return -1;
    text[length] = 0;
    char *at = strrchr(text, ')');
    if (at == NULL || at[1] == 0 || at[2] == 'Z')
        return -1;
    for (int i = 0; at != NULL && i < 20; i++) /* the state is the first behind the name, the start the twentieth */
        at = strchr(at + 1, ' ');
    return at == NULL ? -1 : strtoll(at, NULL, 10);
}

static bool o41td__read_entry(const char *path, o41td__entry *entry, o41td__text *name) {
    static const char served[] = "true";
    char *text = malloc(O41TD__MAX_ENTRY_BYTES);
    ssize_t length = text == NULL ? -1 : o41td__read_file(path, text, O41TD__MAX_ENTRY_BYTES);
    o41td__reader object = o41td__over(text, length < 0 ? 0 : (size_t)length), walk = object;
    o41td__reader words, protocol, is_served;
    bool is_right = length > 0 && o41td__json_skip(&walk, 0) && o41td__json_find_words(object, "name", &words) &&
                    o41td__json_find_words(object, "protocol", &protocol) &&
                    o41td__json_find_int(object, "pid", &entry->pid) &&
                    o41td__json_find_int(object, "start_time", &entry->start_time) &&
                    o41td__json_find(object, "is_served", &is_served) && o41td__is(is_served, served) &&
                    strlen(path) < sizeof entry->socket_path && o41td__start_time(entry->pid) == entry->start_time;
    if (is_right) {
        entry->speaks_ours = o41td__is(protocol, O41TD_PROTOCOL);
        snprintf(entry->socket_path, sizeof entry->socket_path, "%.*s.sock", (int)(strlen(path) - 5), path);
        name->length = 0;
        o41td__put(name, words.at, o41td__length(words));
        is_right = !name->failed;
    }
    free(text);
    return is_right;
}

/* Looks the stream's loader up, the oldest where several go by its name. What others left behind stays there. */
static bool o41td__look_up(o41td_stream *stream, o41td__entry *found) {
    char folder[96], mark[40], path[sizeof folder + 258];
    struct stat namespace;
    bool is_there = false;
    o41td__text names = {0}, name = {0};
    DIR *listing = NULL;
    if (o41td__runtime_folder(folder, sizeof folder)) {
        bool is_known = stat("/proc/self/ns/pid", &namespace) == 0; /* else 0 stands for it, as in Python */
        snprintf(mark, sizeof mark, "-%lx-", is_known ? (unsigned long)namespace.st_ino : 0ul);
        listing = opendir(folder);
    }
    for (struct dirent *item; listing != NULL && (item = readdir(listing)) != NULL;) {
        size_t length = strlen(item->d_name);
        o41td__entry entry;
        if (length < 5 || strcmp(item->d_name + length - 5, ".json") != 0 || strstr(item->d_name, mark) == NULL)
            continue; /* else of another namespace, whose processes cannot be told from ours */
        snprintf(path, sizeof path, "%s/%s", folder, item->d_name);
        if (!o41td__read_entry(path, &entry, &name))
            continue;
        if (strcmp(name.data, stream->name) != 0) {
            o41td__puts(&names, names.length ? ", '" : "'");
            o41td__put(&names, name.data, name.length);
            o41td__puts(&names, "'");
        } else if (!is_there || entry.start_time < found->start_time ||
                   (entry.start_time == found->start_time && entry.pid < found->pid)) {
            *found = entry;
            is_there = true;
        }
    }
    if (listing != NULL)
        closedir(listing);
    if (!is_there)
        o41td__fail(stream, "no loader is served under the name '%s'. %s%s. One is started by `o41td serve CONFIG "
                    "--name NAME`.", stream->name,
                    names.length ? "Those that are: " : "None is served on this host by this user",
                    names.length ? names.data : "");
    free(names.data);
    free(name.data);
    return is_there;
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

/* Maps the arena that a layout describes and the descriptor holds; each field has one region, on a page's border. */
static int o41td__map_arena(o41td_stream *stream, const o41td__facts *facts, o41td__reader layout) {
    int64_t version, num_slots, block_rows, total_bytes;
    if (!o41td__find_int(layout, "layout_version", 1, 1, &version) ||
        !o41td__find_int(layout, "num_slots", 1, INT64_MAX, &num_slots) ||
        !o41td__find_int(layout, "block_rows", 1, INT64_MAX, &block_rows) ||
        !o41td__find_int(layout, "total_bytes", 1, INT64_MAX, &total_bytes) ||
        __builtin_mul_overflow(num_slots, block_rows, &stream->arena_rows))
        return o41td__lost(stream, "it sent a layout that is none");
    free(stream->offsets);
    if ((stream->offsets = calloc(facts->num_fields, sizeof *stream->offsets)) == NULL)
        return o41td__no_memory(stream);
    size_t offset = 0;
    for (size_t i = 0; i < facts->num_fields; i++) {
        size_t region;
        stream->offsets[i] = offset;
        if (__builtin_mul_overflow(facts->fields[i].row_bytes, stream->arena_rows, &region) ||
            __builtin_add_overflow(region, 4095, &region) ||
            __builtin_add_overflow(offset, region & ~(size_t)4095, &offset))
            return o41td__lost(stream, "it sent a layout that is none");
    }
    struct stat status;
    if (stream->descriptor < 0)
        return o41td__fail(stream, "the arena's descriptor did not come: is the limit on open files reached?");
    if (offset != (uint64_t)total_bytes || fstat(stream->descriptor, &status) || status.st_size < total_bytes)
        return o41td__fail(stream, "the arena is not what its layout says. Use one version of o41td.");
    void *arena = mmap(NULL, offset, PROT_READ, MAP_SHARED, stream->descriptor, 0);
    if (arena == MAP_FAILED)
        return o41td__fail(stream, "the arena of %zu bytes could not be mapped: %s", offset, strerror(errno));
    stream->arena = arena;
    stream->arena_bytes = offset;
    close(stream->descriptor);
    stream->descriptor = -1;
    return O41TD_OK;
}

static int o41td__hear_opened(o41td_stream *stream, o41td__facts *facts, o41td__reader reader, uint64_t num_fields) {
    o41td__reader layout = reader, sources, words;
    uint64_t num_notices;
    if (num_fields != 5 || !o41td__skip(&reader, 0))
        return o41td__lost(stream, "it sent an opening that is none");
    sources = reader;
    for (int i = 0; i < 3; i++) /* sources, the bound, the arena's kind */
        if (!o41td__skip(&reader, 0))
            return o41td__lost(stream, "it sent an opening that is none");
    if (!o41td__read_fields(facts, layout) || !o41td__read_sources(facts, sources))
        return o41td__lost(stream, "it sent an opening that is none, or memory ran out");
    int status = o41td__map_arena(stream, facts, layout);
    if (status != O41TD_OK || !o41td__read_array(&reader, &num_notices))
        return status;
    while (num_notices-- && o41td__read_bytes(&reader, O41TD__STR, &words)) {
        char *text = o41td__copied(words);
        if (text != NULL)
            o41td__notice(stream, text, true);
        free(text);
    }
    return O41TD_OK;
}

/* Waits for the two messages that open the conversation. */
static int o41td__hear_opening(o41td_stream *stream, o41td__facts *facts) {
    bool has_joined = false;
    for (;;) {
        o41td__reader payload, reader;
        uint64_t num_fields;
        double answer_ms = has_joined ? 1000 * facts->stall_timeout_s : 0;
        int64_t until_ms = o41td__now_ms() + (answer_ms > O41TD__ANSWER_MS ? (int64_t)answer_ms : O41TD__ANSWER_MS);
        int status = o41td__receive(stream, until_ms, &payload);
        if (status == O41TD__SILENT)
            return o41td__lost(stream, "it says nothing");
        if (status != O41TD_OK)
            return status;
        reader = payload;
        switch (o41td__tag_of(&reader, &num_fields)) {
        case O41TD__LOADER_JOINED:
            if (has_joined || !o41td__read_joined(facts, payload))
                return o41td__lost(stream, "it sent a greeting that is none, or memory ran out");
            has_joined = true;
            break;
        case O41TD__LOADER_OPENED:
            if (!has_joined)
                return o41td__lost(stream, "it opened what it had not told of");
            return o41td__hear_opened(stream, facts, reader, num_fields);
        case O41TD__LOADER_FAILED:
            o41td__tell(&stream->error, reader);
            return O41TD_ERROR;
        case O41TD__LOADER_NOTICE:
            if ((status = o41td__hear_notice(stream, reader)) != O41TD_OK)
                return status;
            break;
        case O41TD__OPEN_PROGRESS:
            break;
        default:
            return o41td__lost(stream, "it sent a message that was not asked for");
        }
    }
}

static int o41td__join(o41td_stream *stream, const o41td__entry *entry, o41td__facts *facts) {
    if (!entry->speaks_ours)
        return o41td__fail(stream, "the loader '%s' (pid %" PRId64 ") runs another version of o41td than this program "
                           "was built with. Build it with the o41td.h of that version.", stream->name, entry->pid);
    struct sockaddr_un address = {0};
    struct { /* struct ucred */
        pid_t pid;
        uid_t uid;
        gid_t gid;
    } peer;
    socklen_t peer_bytes = sizeof peer;
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, entry->socket_path, sizeof address.sun_path);
    stream->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (stream->socket < 0)
        return o41td__fail(stream, "no socket could be made: %s", strerror(errno));
    if (connect(stream->socket, (struct sockaddr *)&address, sizeof address) ||
        getsockopt(stream->socket, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes))
        return o41td__lost(stream, strerror(errno));
    if (peer.uid != getuid())
        return o41td__lost(stream, "another user listens at this user's socket");
    o41td__frame join;
    o41td__frame_begin(&join, O41TD__JOIN_LOADER, 1);
    o41td__frame_int(&join, stream->rank);
    int status = o41td__send(stream, &join);
    return status == O41TD_OK ? o41td__hear_opening(stream, facts) : status;
}

static int o41td__first_join(o41td_stream *stream) {
    int64_t until_ms = o41td__now_ms() + O41TD__FIRST_JOIN_MS;
    for (;;) {
        o41td__entry entry;
        if (!o41td__look_up(stream, &entry))
            return O41TD_ERROR;
        int status = o41td__join(stream, &entry, &stream->facts);
        if (status == O41TD_OK)
            return status;
        o41td__disconnect(stream);
        o41td__facts_free(&stream->facts);
        if (status != O41TD__LOST)
            return status;
        if (o41td__now_ms() > until_ms)
            return o41td__fail(stream, "the loader '%s' (pid %" PRId64 ") does not answer: %s. Is it stopped, or this "
                               "host overloaded? `o41td status` shows what there is.", stream->name, entry.pid,
                               stream->why);
        if ((status = o41td__pause(stream)) != O41TD_OK)
            return status;
    }
}

/* ---- the cursor -------------------------------------------------------------------------------------------------- */

static int64_t o41td__history_batches(const o41td_stream *stream) {
    int64_t batches = 0;
    for (size_t i = 0; i < stream->num_runs; i++)
        batches += stream->history[i].batches;
    return batches;
}

static int64_t o41td__position(const o41td_stream *stream, int64_t stage) {
    int64_t batches = 0;
    for (size_t i = 0; i < stream->num_runs; i++)
        batches += stream->history[i].stage == stage ? stream->history[i].batches : 0;
    return batches;
}

/* Brings the history up to the batches taken since serving began. */
static void o41td__settle(o41td_stream *stream) {
    int64_t start = o41td__history_batches(stream);
    int64_t behind = o41td__after(&stream->facts, start, stream->rounds_taken * stream->facts.world_size);
    stream->history[stream->num_runs - 1].batches += behind - start;
    stream->rounds_taken = 0;
}

/* Adds a run to a history: neighbours of one stage are one run, and only the last may be empty. */
static bool o41td__add_run(o41td__run **history, size_t *num_runs, int64_t stage, int64_t batches) {
    o41td__run *runs = *history;
    if (*num_runs && runs[*num_runs - 1].batches == 0)
        --*num_runs;
    if (*num_runs && runs[*num_runs - 1].stage == stage)
        return !__builtin_add_overflow(runs[*num_runs - 1].batches, batches, &runs[*num_runs - 1].batches);
    if ((runs = realloc(runs, (*num_runs + 1) * sizeof *runs)) == NULL)
        return false;
    *history = runs;
    runs[(*num_runs)++] = (o41td__run){stage, batches};
    return true;
}

/* Asks for batches from where the stream is; what was announced before is forgotten. */
static int o41td__serve(o41td_stream *stream) {
    int64_t stage = stream->history[stream->num_runs - 1].stage;
    int64_t position = o41td__position(stream, stage), batches = o41td__history_batches(stream);
    stream->generation++;
    stream->gathered = stream->acknowledged = 0;
    stream->num_ready = stream->next_ready = 0;
    stream->has_ended = stream->has_failed = false;
    stream->dropped_rows = 0;
    stream->global_offset = batches - position;
    if (stream->socket < 0)
        return O41TD_OK;
    o41td__frame frame;
    o41td__frame_begin(&frame, O41TD__SERVE_FROM, 6);
    o41td__frame_int(&frame, stream->generation);
    o41td__frame_int(&frame, stream->rank);
    o41td__frame_int(&frame, stream->facts.world_size);
    o41td__frame_int(&frame, stage);
    o41td__frame_int(&frame, position);
    o41td__frame_int(&frame, batches);
    return o41td__send(stream, &frame);
}

static int o41td__acknowledge(o41td_stream *stream) {
    o41td__frame frame;
    o41td__frame_begin(&frame, O41TD__BATCHES_GATHERED, 7);
    o41td__frame_int(&frame, stream->generation);
    o41td__frame_int(&frame, stream->gathered);
    o41td__frame_int(&frame, stream->gathered);
    o41td__frame_int(&frame, stream->batches);
    o41td__frame_int(&frame, stream->rows_taken);
    o41td__frame_real(&frame, (double)stream->waited_ms / 1000);
    o41td__frame_int(&frame, stream->dropped_rows);
    stream->acknowledged = stream->gathered;
    return o41td__send(stream, &frame);
}

/* ---- the death of a server --------------------------------------------------------------------------------------- */

/* What is behind a hung up line cannot be trusted any more; the stream stands behind the last batch that was taken. */
static int o41td__lose(o41td_stream *stream) {
    o41td__disconnect(stream);
    o41td__settle(stream);
    if (++stream->num_losses > O41TD__MAX_LOSSES) {
        stream->fatal.length = 0;
        o41td__fail(stream, "the loader '%s' was lost %d times without a batch in between: %s", stream->name,
                    stream->num_losses, stream->why);
        o41td__put(&stream->fatal, stream->error.data, stream->error.length);
        return O41TD_ERROR;
    }
    return O41TD_OK;
}

/* Refuses a server that came back with other batches. */
static int o41td__refuse_another_stream(o41td_stream *stream, const o41td__facts *now) {
    const o41td__facts *before = &stream->facts;
    const char *differing = before->job_digest != now->job_digest         ? "its settings or its world size differ"
                            : before->shards_digest != now->shards_digest ? "its shards differ"
                                                                          : NULL;
    bool has_same_fields = before->num_fields == now->num_fields;
    for (size_t i = 0; has_same_fields && i < now->num_fields; i++)
        has_same_fields = before->fields[i].row_bytes == now->fields[i].row_bytes;
    if (differing == NULL && has_same_fields)
        return O41TD_OK;
    return o41td__fail(stream, "the loader '%s' came back as another stream: %s. Serve the config that this stream "
                       "began with, or connect anew.", stream->name, differing ? differing : "its fields differ");
}

/* Joins the loader of the same name, once there is one again. */
static int o41td__rejoin(o41td_stream *stream) {
    int64_t until_ms = o41td__now_ms() + (int64_t)(1000 * stream->options.wait_s);
    for (bool is_told = false;; is_told = true) {
        o41td__entry entry;
        if (o41td__look_up(stream, &entry)) {
            o41td__facts facts = {0};
            int status = o41td__join(stream, &entry, &facts);
            if (status == O41TD_OK)
                status = o41td__refuse_another_stream(stream, &facts);
            o41td__facts_free(&facts);
            if (status == O41TD_OK)
                status = o41td__serve(stream);
            if (status == O41TD_OK)
                return status;
            o41td__disconnect(stream);
            if (status != O41TD__LOST)
                return status;
        }
        if (!is_told) {
            char words[256];
            snprintf(words, sizeof words, "the loader '%.64s' is gone; rank %" PRId64 " waits up to %g s for it to "
                     "come back", stream->name, stream->rank, stream->options.wait_s);
            o41td__notice(stream, words, true);
        }
        if (o41td__now_ms() >= until_ms)
            return o41td__fail(stream, "the loader '%s' is gone (%s) and has not come back for %g s. Start it again "
                               "with `o41td serve`; a checkpoint goes on behind the last batch.", stream->name,
                               stream->why, stream->options.wait_s);
        int status = o41td__pause(stream);
        if (status != O41TD_OK)
            return status;
    }
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/* Keeps announced batches; all of their rows must lie in the arena. */
static int o41td__hear_ready(o41td_stream *stream, o41td__reader reader, uint64_t num_fields) {
    o41td__reader columns[5], rows;
    uint64_t counts[5];
    int64_t generation, stage, num_listed = 0;
    if (num_fields != 8 || !o41td__read_int(&reader, INT64_MIN, INT64_MAX, &generation) ||
        !o41td__read_int(&reader, 0, INT32_MAX, &stage))
        return o41td__lost(stream, "it sent batches that are none");
    for (int i = 0; i < 5; i++) { /* numbers, rows, digests, releases, first rows */
        columns[i] = reader;
        if (!o41td__skip(&reader, 0) || !o41td__read_array(&columns[i], &counts[i]) || counts[i] != counts[0])
            return o41td__lost(stream, "it sent batches that are none");
    }
    if (!o41td__read_bytes(&reader, O41TD__BIN, &rows))
        return o41td__lost(stream, "it sent batches that are none");
    if (generation != stream->generation)
        return O41TD_OK;
    if (stage != stream->history[stream->num_runs - 1].stage || stream->has_ended || stream->has_failed)
        return o41td__lost(stream, "it sent batches that were not asked for");
    free(stream->ready);
    free(stream->rows);
    stream->rows = NULL;
    stream->num_ready = stream->next_ready = stream->next_row = 0;
    stream->ready = o41td__array(columns[0], counts[0], sizeof *stream->ready);
    stream->rows = malloc(o41td__length(rows) + 1);
    if (stream->ready == NULL || stream->rows == NULL)
        return o41td__no_memory(stream);
    for (uint64_t i = 0; i < counts[0]; i++) {
        o41td__ready *ready = &stream->ready[i];
        o41td__value digest;
        if (!o41td__read_int(&columns[0], 0, INT64_MAX, &ready->number) ||
            !o41td__read_int(&columns[1], 1, stream->facts.max_rows, &ready->num_rows) ||
            !o41td__read(&columns[2], &digest) || digest.kind != O41TD__UINT ||
            !o41td__read_bool(&columns[3], &ready->release) ||
            !o41td__read_int(&columns[4], -1, INT64_MAX, &ready->first_row))
            return o41td__lost(stream, "it sent batches that are none");
        ready->order_digest = digest.number;
        if (ready->first_row >= 0) {
            if (ready->first_row > stream->arena_rows - ready->num_rows)
                return o41td__lost(stream, "it sent rows that are not in the arena");
            continue;
        }
        num_listed += ready->num_rows;
        if ((uint64_t)num_listed > o41td__length(rows) / 8)
            return o41td__lost(stream, "it sent batches with fewer rows than they have");
    }
    if ((uint64_t)num_listed * 8 != o41td__length(rows))
        return o41td__lost(stream, "it sent batches with more rows than they have");
    for (size_t i = 0; i < o41td__length(rows); i += 8) {
        int64_t row;
        memcpy(&row, rows.at + i, sizeof row);
        if (row < 0 || row >= stream->arena_rows)
            return o41td__lost(stream, "it sent rows that are not in the arena");
    }
    if (o41td__length(rows))
        memcpy(stream->rows, rows.at, o41td__length(rows));
    stream->num_ready = (size_t)counts[0];
    return O41TD_OK;
}

/* Deals with what the loader says while it serves. */
static int o41td__hear(o41td_stream *stream, o41td__reader reader) {
    uint64_t num_fields;
    int64_t generation, dropped_rows;
    switch (o41td__tag_of(&reader, &num_fields)) {
    case O41TD__BATCHES_READY:
        return o41td__hear_ready(stream, reader, num_fields);
    case O41TD__STREAM_ENDED:
        if (!o41td__read_int(&reader, INT64_MIN, INT64_MAX, &generation) ||
            !o41td__read_int(&reader, 0, INT64_MAX, &dropped_rows))
            return o41td__lost(stream, "it sent an end that is none");
        if (generation == stream->generation) {
            stream->has_ended = true;
            stream->dropped_rows = dropped_rows;
            return o41td__acknowledge(stream); /* so that `o41td status` knows too */
        }
        return O41TD_OK;
    case O41TD__STREAM_FAILED:
        if (!o41td__read_int(&reader, INT64_MIN, INT64_MAX, &generation))
            return o41td__lost(stream, "it sent a failure that is none");
        if (generation == stream->generation) {
            stream->has_failed = true;
            o41td__tell(&stream->failure, reader);
        }
        return O41TD_OK;
    case O41TD__LOADER_FAILED:
        o41td__tell(&stream->fatal, reader);
        return o41td__fail_text(stream, &stream->fatal);
    case O41TD__LOADER_NOTICE:
        return o41td__hear_notice(stream, reader);
    case O41TD__STATS_REPLY:
        return O41TD_OK;
    default:
        return o41td__lost(stream, "it sent a message that was not asked for");
    }
}

/* Waits for the next message and deals with it. A loader that gives no sign of life when asked for one is lost. */
static int o41td__hear_next(o41td_stream *stream) {
    o41td__reader payload;
    int64_t half_ms = (int64_t)(500 * stream->facts.stall_timeout_s), began_ms = o41td__now_ms();
    int status = o41td__receive(stream, began_ms + half_ms, &payload);
    if (status == O41TD__SILENT) {
        o41td__frame question;
        o41td__frame_begin(&question, O41TD__STATS_REQUEST, 1);
        o41td__frame_int(&question, 0);
        status = o41td__send(stream, &question);
        if (status == O41TD_OK)
            status = o41td__receive(stream, o41td__now_ms() + half_ms, &payload);
        if (status == O41TD__SILENT)
            status = o41td__lost(stream, "it gives no sign of life");
    }
    stream->waited_ms += o41td__now_ms() - began_ms;
    return status == O41TD_OK ? o41td__hear(stream, payload) : status;
}

/* Copies rows that lie side by side in the arena, from row `start` on, into the rows of a batch from `first` on. */
static void o41td__copy_run(const o41td_stream *stream, void *const *buffers, int64_t first, int64_t start,
                            int64_t num_rows) {
    for (size_t i = 0; i < stream->facts.num_fields; i++) {
        size_t row_bytes = stream->facts.fields[i].row_bytes;
        const unsigned char *region = stream->arena + stream->offsets[i];
        if (buffers != NULL && buffers[i] != NULL)
            memcpy((unsigned char *)buffers[i] + (size_t)first * row_bytes, region + (size_t)start * row_bytes,
                   (size_t)num_rows * row_bytes);
    }
}

/* Copies the next announced batch; rows that lie side by side go at once. */
static void o41td__copy(o41td_stream *stream, void *const *buffers, const o41td__ready *ready) {
    const unsigned char *rows = stream->rows + 8 * stream->next_row;
    if (ready->first_row >= 0) {
        o41td__copy_run(stream, buffers, 0, ready->first_row, ready->num_rows);
        return;
    }
    for (int64_t first = 0, behind; first < ready->num_rows; first = behind) {
        int64_t start, row;
        memcpy(&start, rows + 8 * first, sizeof start);
        for (behind = first + 1; behind < ready->num_rows; behind++) {
            memcpy(&row, rows + 8 * behind, sizeof row);
            if (row != start + (behind - first))
                break;
        }
        o41td__copy_run(stream, buffers, first, start, behind - first);
    }
}

/* Takes the next announced batch; whether its rows were still the loader's to give. */
static bool o41td__take_batch(o41td_stream *stream, void *const *buffers, o41td_batch *batch) {
    const o41td__ready *ready = &stream->ready[stream->next_ready];
    o41td__copy(stream, buffers, ready);
    if (o41td__is_hung_up(stream)) { /* else nobody else was given their place meanwhile */
        o41td__lost(stream, "it hung up while a batch was copied");
        return false;
    }
    batch->batch_index = stream->global_offset + ready->number;
    batch->number = ready->number;
    batch->num_rows = ready->num_rows;
    batch->stage = (int32_t)stream->history[stream->num_runs - 1].stage;
    batch->order_digest = ready->order_digest;
    stream->next_row += ready->first_row < 0 ? (size_t)ready->num_rows : 0;
    stream->next_ready++;
    stream->gathered++;
    stream->rounds_taken++;
    stream->batches++;
    stream->rows_taken += ready->num_rows;
    stream->order_digest += ready->order_digest;
    stream->num_losses = 0;
    return true;
}

/* ---- what a program calls ---------------------------------------------------------------------------------------- */

o41td_options o41td_default_options(void) { return (o41td_options){60, NULL, NULL, NULL}; }

o41td_status o41td_connect(const char *name, int64_t rank, const o41td_options *options, o41td_stream **opened) {
    o41td_stream *stream = *opened = calloc(1, sizeof *stream);
    if (stream == NULL)
        return O41TD_ERROR;
    stream->socket = stream->descriptor = -1;
    stream->pid = getpid();
    stream->rank = rank;
    stream->options = options != NULL ? *options : o41td_default_options();
    stream->name = o41td__copied(o41td__over(name, strlen(name)));
    if (stream->name == NULL || !o41td__add_run(&stream->history, &stream->num_runs, 0, 0))
        return o41td__no_memory(stream);
    if (rank < 0 || rank > INT32_MAX)
        return o41td__fail(stream, "rank %" PRId64 " is none: ranks are numbered from 0", rank);
    if (!(stream->options.wait_s >= 0 && stream->options.wait_s < 1e9))
        return o41td__fail(stream, "a wait of %g s does not make sense", stream->options.wait_s);
    int status = o41td__first_join(stream);
    if (status == O41TD_OK && o41td__serve(stream) != O41TD_OK)
        status = o41td__lose(stream); /* which the first batch mends */
    return status;
}

void o41td_close(o41td_stream *stream) {
    if (stream == NULL)
        return;
    o41td__disconnect(stream);
    o41td__facts_free(&stream->facts);
    free(stream->name);
    free(stream->offsets);
    free(stream->history);
    free(stream->error.data);
    free(stream->fatal.data);
    free(stream->failure.data);
    free(stream);
}

const char *o41td_error(const o41td_stream *stream) {
    if (stream == NULL)
        return "memory ran out";
    return stream->error.length ? stream->error.data : stream->error.failed ? "memory ran out" : "";
}

size_t o41td_num_fields(const o41td_stream *stream) { return stream->facts.num_fields; }

const o41td_field *o41td_field_at(const o41td_stream *stream, size_t number) {
    return number < stream->facts.num_fields ? &stream->facts.fields[number] : NULL;
}

int o41td_field_number(const o41td_stream *stream, const char *name) {
    for (size_t i = 0; i < stream->facts.num_fields; i++)
        if (strcmp(stream->facts.fields[i].name, name) == 0)
            return (int)i;
    return -1;
}

int64_t o41td_max_rows(const o41td_stream *stream) { return stream->facts.max_rows; }

int64_t o41td_world_size(const o41td_stream *stream) { return stream->facts.world_size; }

size_t o41td_num_stages(const o41td_stream *stream) { return stream->facts.num_stages; }

const char *o41td_stage_name(const o41td_stream *stream, size_t stage) {
    return stage < stream->facts.num_stages ? stream->facts.stages[stage].name : NULL;
}

size_t o41td_stage(const o41td_stream *stream) { return (size_t)stream->history[stream->num_runs - 1].stage; }

int64_t o41td_dropped_rows(const o41td_stream *stream) { return stream->dropped_rows; }

uint64_t o41td_order_digest(const o41td_stream *stream) { return stream->order_digest; }

/* Whether a call makes sense at all; what nothing goes on behind is told again. */
static int o41td__check_usable(o41td_stream *stream) {
    if (stream->pid != getpid())
        return o41td__fail(stream, "this stream was opened in another process; a fork does not carry it over");
    if (!stream->facts.num_stages)
        return o41td__fail(stream, "this stream was not opened");
    return stream->fatal.length ? o41td__fail_text(stream, &stream->fatal) : O41TD_OK;
}

o41td_status o41td_next(o41td_stream *stream, void *const *buffers, o41td_batch *batch) {
    int status = o41td__check_usable(stream);
    while (status == O41TD_OK) {
        if (stream->next_ready < stream->num_ready) {
            if (o41td__take_batch(stream, buffers, batch)) {
                int64_t unacknowledged = stream->gathered - stream->acknowledged;
                bool is_due = stream->ready[stream->next_ready - 1].release || stream->next_ready == stream->num_ready;
                if ((is_due || unacknowledged >= O41TD__ACKNOWLEDGE_EVERY) && o41td__acknowledge(stream) != O41TD_OK)
                    o41td__lose(stream); /* which the next batch mends; this one was taken */
                return O41TD_OK;
            }
            status = O41TD__LOST;
        } else if (stream->has_ended) {
            return O41TD_END;
        } else if (stream->has_failed) {
            return o41td__fail_text(stream, &stream->failure);
        } else if (stream->socket < 0) {
            status = o41td__rejoin(stream);
        } else {
            status = o41td__hear_next(stream);
        }
        if (status == O41TD__LOST)
            status = o41td__lose(stream);
    }
    return status;
}

o41td_status o41td_release(o41td_stream *stream) {
    int status = o41td__check_usable(stream);
    if (status != O41TD_OK || stream->socket < 0 || stream->acknowledged == stream->gathered)
        return status;
    return o41td__acknowledge(stream) == O41TD_OK ? O41TD_OK : o41td__lose(stream);
}

o41td_status o41td_advance(o41td_stream *stream, size_t stage) {
    int status = o41td__check_usable(stream);
    if (status != O41TD_OK || stage == o41td_stage(stream))
        return status;
    if (stage >= stream->facts.num_stages)
        return o41td__fail(stream, "there is no stage %zu: there are %zu", stage, stream->facts.num_stages);
    o41td__settle(stream);
    if (!o41td__add_run(&stream->history, &stream->num_runs, (int64_t)stage, 0))
        return o41td__no_memory(stream);
    return o41td__serve(stream) == O41TD_OK ? O41TD_OK : o41td__lose(stream);
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

#define O41TD__HEAD "{\n\"format\": \"o41td-checkpoint\""
#define O41TD__TAIL "\"checksum\": \""

static int64_t o41td__excluded_rows(const o41td_stream *stream) {
    const o41td__facts *facts = &stream->facts;
    int64_t rows = 0, global_batch = 0;
    for (size_t i = 0; i < stream->num_runs; i++) {
        o41td__run run = stream->history[i];
        int64_t position = 0;
        for (size_t before = 0; before < i; before++)
            position += stream->history[before].stage == run.stage ? stream->history[before].batches : 0;
        for (size_t at = 0; at < facts->num_excluded; at++) {
            int64_t start = facts->excluded[at].start, stop = facts->excluded[at].stop;
            start = start > global_batch ? start : global_batch;
            stop = stop < global_batch + run.batches ? stop : global_batch + run.batches;
            if (start < stop) {
                const o41td__stage *stage = &facts->stages[run.stage];
                rows += o41td__rows_before(facts, stage, stop - global_batch + position) -
                        o41td__rows_before(facts, stage, start - global_batch + position);
            }
        }
        global_batch += run.batches;
    }
    return rows;
}

/* Whole epochs that each source has given. What a mix has given is not worked out here; nobody resumes by it. */
static void o41td__write_epochs(const o41td_stream *stream, o41td__text *text) {
    const o41td__facts *facts = &stream->facts;
    bool is_first = true;
    for (size_t i = 0; i < facts->num_sources; i++) {
        const o41td__source *source = &facts->sources[i];
        const o41td__stage *stage = &facts->stages[source->stage];
        int64_t position = o41td__position(stream, (int64_t)source->stage);
        if (stage->num_sources > 1 && position)
            continue;
        o41td__puts(text, is_first ? "" : ",");
        is_first = false;
        o41td__put(text, source->quoted_name.data, source->quoted_name.length);
        o41td__puts(text, ":");
        int64_t rows = o41td__rows_before(facts, stage, position);
        o41td__put_int(text, source->epoch_rows ? rows / source->epoch_rows : 0);
    }
}

char *o41td_checkpoint(o41td_stream *stream) {
    const o41td__facts *facts = &stream->facts;
    o41td__text text = {0};
    char digest[24];
    if (!facts->num_stages) {
        o41td__fail(stream, "this stream was not opened");
        return NULL;
    }
    /* The history as it would be if serving began here. */
    o41td__run *last = &stream->history[stream->num_runs - 1];
    int64_t served_from = last->batches, start = o41td__history_batches(stream), rows = 0;
    int64_t batches = o41td__after(facts, start, stream->rounds_taken * facts->world_size);
    last->batches += batches - start;
    for (size_t stage = 0; stage < facts->num_stages; stage++)
        rows += o41td__rows_before(facts, &facts->stages[stage], o41td__position(stream, (int64_t)stage));
    o41td__puts(&text, O41TD__HEAD ",\n\"format_version\": 1,\n\"order_version\": ");
    o41td__put_int(&text, O41TD_ORDER_VERSION);
    o41td__puts(&text, ",\n\"batches_yielded\": ");
    o41td__put_int(&text, batches - o41td__num_excluded(facts, 0, batches));
    o41td__puts(&text, ",\n\"rows_yielded\": ");
    o41td__put_int(&text, rows - o41td__excluded_rows(stream));
    o41td__puts(&text, ",\n\"cursor\": [");
    for (size_t i = 0; i < stream->num_runs; i++) {
        o41td__puts(&text, i ? ",[" : "[");
        o41td__put_int(&text, stream->history[i].stage);
        o41td__puts(&text, ",");
        o41td__put_int(&text, stream->history[i].batches);
        o41td__puts(&text, "]");
    }
    o41td__puts(&text, "],\n\"epochs\": {");
    o41td__write_epochs(stream, &text);
    o41td__puts(&text, "},\n\"config\": ");
    o41td__put(&text, facts->config.data, facts->config.length);
    o41td__puts(&text, ",\n\"sources\": ");
    o41td__put(&text, facts->shards.data, facts->shards.length);
    o41td__puts(&text, ",\n\"order_digest\": {\"rank\":");
    o41td__put_int(&text, stream->rank);
    o41td__puts(&text, ",\"world_size\":");
    o41td__put_int(&text, facts->world_size);
    snprintf(digest, sizeof digest, "%016" PRIx64, stream->order_digest);
    o41td__puts(&text, ",\"value\":\"");
    o41td__puts(&text, digest);
    o41td__puts(&text, "\"},");
    uint64_t checksum = o41td__blake2b(text.data, text.length);
    o41td__puts(&text, "\n" O41TD__TAIL);
    o41td__put_digest(&text, checksum);
    o41td__puts(&text, "\"\n}\n");
    last->batches = served_from;
    if (text.failed) {
        free(text.data);
        o41td__no_memory(stream);
        return NULL;
    }
    return text.data;
}

/* Whether a text begins and ends as a checkpoint does, and its checksum is right. */
static bool o41td__is_whole(const char *text, size_t length) {
    const size_t end_bytes = 1 + strlen(O41TD__TAIL) + 16 + 4;
    if (length < strlen(O41TD__HEAD) + end_bytes || memcmp(text, O41TD__HEAD, strlen(O41TD__HEAD)) != 0)
        return false;
    o41td__text end = {0};
    o41td__puts(&end, "\n" O41TD__TAIL);
    o41td__put_digest(&end, o41td__blake2b(text, length - end_bytes));
    o41td__puts(&end, "\"\n}\n");
    bool is_right = !end.failed && memcmp(text + length - end_bytes, end.data, end_bytes) == 0;
    free(end.data);
    return is_right;
}

/* Whether the ranges that a checkpoint excludes are, of the batches behind it, those that are excluded now. */
static bool o41td__excludes_the_same(const o41td__facts *facts, o41td__reader config, int64_t behind) {
    o41td__reader ranges;
    int64_t pair[2], at = 0; /* of `facts`, all of [0, at) is accounted for */
    bool is_over = false;
    if (!o41td__json_find(config, "exclude", &ranges))
        return o41td__num_excluded(facts, 0, behind) == 0;
    if (!o41td__json_mark(&ranges, '['))
        return false;
    for (bool is_first = true; o41td__json_pair(&ranges, is_first, pair, &is_over) && !is_over; is_first = false) {
        int64_t start = pair[0] < behind ? pair[0] : behind, stop = pair[1] < behind ? pair[1] : behind;
        if (start < at) /* a config has them ascending and apart */
            return false;
        if (o41td__num_excluded(facts, at, start) || o41td__num_excluded(facts, start, stop) != stop - start)
            return false;
        at = stop;
    }
    return is_over && o41td__num_excluded(facts, at, behind) == 0;
}

/* Reads a checkpoint's cursor: a place that the stream can go to. */
static int o41td__read_cursor(o41td_stream *stream, o41td__reader cursor, o41td__run **history, size_t *num_runs) {
    const o41td__facts *facts = &stream->facts;
    int64_t pair[2], total = 0;
    bool is_over = false, is_right = o41td__json_mark(&cursor, '[');
    for (bool is_first = true; is_right; is_first = false) {
        is_right = o41td__json_pair(&cursor, is_first, pair, &is_over);
        if (!is_right || is_over)
            break;
        if (pair[0] >= (int64_t)facts->num_stages)
            return o41td__fail(stream, "the checkpoint's cursor names stage %" PRId64 ", and there are %zu stages",
                               pair[0], facts->num_stages);
        is_right = pair[1] < (int64_t)1 << 62 && (total += pair[1]) < (int64_t)1 << 62;
        if (is_right && !o41td__add_run(history, num_runs, pair[0], pair[1]))
            return o41td__no_memory(stream);
    }
    if (!is_right || !*num_runs)
        return o41td__fail(stream, "the checkpoint's cursor is none");
    for (size_t number = 0; number < facts->num_stages; number++) {
        const o41td__stage *stage = &facts->stages[number];
        int64_t position = 0;
        for (size_t i = 0; i < *num_runs; i++)
            position += (*history)[i].stage == (int64_t)number ? (*history)[i].batches : 0;
        int64_t most = stage->infinite ? ((int64_t)1 << 62) / stage->batch_size : stage->num_batches;
        if (position > most)
            return o41td__fail(stream, "the checkpoint's cursor has %" PRId64 " batches of stage %zu, of %" PRId64,
                               position, number, most);
    }
    return O41TD_OK;
}

/* Refuses a checkpoint of another order version, config or data; what differs is named. */
static int o41td__refuse_other_checkpoint(o41td_stream *stream, o41td__reader document) {
    static const char *const keys[] = {"seed", "lanes", "fields", "stages"}; /* they name the rows and their order */
    const o41td__facts *facts = &stream->facts;
    o41td__reader config, shards, old, new, now = o41td__over(facts->config.data, facts->config.length);
    int64_t version;
    if (!o41td__json_find_int(document, "format_version", &version) || version != 1)
        return o41td__fail(stream, "the checkpoint's format version is not 1; resume with the o41td that wrote it");
    if (!o41td__json_find_int(document, "order_version", &version) || version != O41TD_ORDER_VERSION)
        return o41td__fail(stream, "the checkpoint was taken under another version of the order than %d",
                           O41TD_ORDER_VERSION);
    if (!o41td__json_find(document, "config", &config) || !o41td__json_find(document, "sources", &shards))
        return o41td__fail(stream, "the checkpoint has no config, or no sources");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!o41td__json_find(config, keys[i], &old) || !o41td__json_find(now, keys[i], &new) ||
            o41td__length(old) != o41td__length(new) || memcmp(old.at, new.at, o41td__length(old)) != 0)
            return o41td__fail(stream, "the checkpoint is of another stream: `%s` of its config differs", keys[i]);
    if (!o41td__is(shards, facts->shards.data))
        return o41td__fail(stream, "the checkpoint is of another stream: its shards differ");
    return O41TD_OK;
}

o41td_status o41td_resume(o41td_stream *stream, const char *text, size_t length) {
    o41td__reader document = o41td__over(text, length), walk = document;
    o41td__reader config, cursor, digest, value;
    o41td__run *history = NULL;
    size_t num_runs = 0;
    int64_t rank, world_size, behind = 0;
    int status = o41td__check_usable(stream);
    if (status != O41TD_OK)
        return status;
    if (!o41td__is_whole(text, length) || !o41td__json_skip(&walk, 0))
        return o41td__fail(stream, "this is no checkpoint, or one that is damaged or cut short");
    if ((status = o41td__refuse_other_checkpoint(stream, document)) != O41TD_OK)
        return status;
    if (!o41td__json_find(document, "cursor", &cursor) || !o41td__json_find(document, "order_digest", &digest) ||
        !o41td__json_find_int(digest, "rank", &rank) || !o41td__json_find_int(digest, "world_size", &world_size) ||
        !o41td__json_find_words(digest, "value", &value) || o41td__length(value) != 16)
        return o41td__fail(stream, "the checkpoint has no cursor, or no order digest");
    if ((status = o41td__read_cursor(stream, cursor, &history, &num_runs)) == O41TD_OK) {
        for (size_t i = 0; i < num_runs; i++)
            behind += history[i].batches;
        if (!o41td__json_find(document, "config", &config) || !o41td__excludes_the_same(&stream->facts, config, behind))
            status = o41td__fail(stream, "the checkpoint is of another stream: `exclude` of its config differs before "
                                 "batch %" PRId64, behind);
    }
    if (status != O41TD_OK) {
        free(history);
        return status;
    }
    bool is_ours = rank == stream->rank && world_size == stream->facts.world_size;
    stream->order_digest = is_ours ? strtoull((const char *)value.at, NULL, 16) : 0;
    free(stream->history);
    stream->history = history;
    stream->num_runs = num_runs;
    stream->rounds_taken = 0;
    return o41td__serve(stream) == O41TD_OK ? O41TD_OK : o41td__lose(stream);
}

#endif /* O41TD_IMPLEMENTATION */
