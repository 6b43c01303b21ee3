/* A consumer that does what it is told on standard input, a line a command, and answers with a line for each result.
 *
 *   c_consumer NAME RANK WAIT_S
 *
 * `connect NAME` leaves, and joins another loader as the same rank.
 */
#define O41TD_IMPLEMENTATION
#include "o41td.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FIELDS 16

static volatile sig_atomic_t is_stopped;

static void raise_flag(int number) {
    (void)number;
    is_stopped = 1;
}

static void tell_notice(void *user, const char *text, int is_warning) {
    (void)user;
    printf("notice %d %s\n", is_warning, text);
    fflush(stdout);
}

static void tell_fields(const o41td_stream *stream) {
    static const char *const dtypes[] = {"i32", "i64", "f32", "f64", "bool"};
    printf("fields");
    for (size_t i = 0; i < o41td_num_fields(stream); i++) {
        const o41td_field *field = o41td_field_at(stream, i);
        printf(" %s:%s:%zu:", field->name, dtypes[field->dtype], field->row_bytes);
        for (size_t axis = 0; axis < field->num_dims; axis++)
            printf("%s%" PRId64, axis ? "x" : "", field->shape[axis]);
    }
    printf(" max_rows=%" PRId64 " world_size=%" PRId64 " stages=", o41td_max_rows(stream), o41td_world_size(stream));
    for (size_t i = 0; i < o41td_num_stages(stream); i++)
        printf("%s%s", i ? "," : "", o41td_stage_name(stream, i));
    printf("\n");
}

static void tell_batch(const o41td_stream *stream, const o41td_batch *batch, void *const *buffers) {
    printf("batch %" PRId64 " %d %" PRId64 " %" PRId64 " %016" PRIx64, batch->batch_index, (int)batch->stage,
           batch->number, batch->num_rows, batch->order_digest);
    for (size_t i = 0; i < o41td_num_fields(stream); i++) {
        putchar(' ');
        for (size_t at = 0; at < (size_t)batch->num_rows * o41td_field_at(stream, i)->row_bytes; at++)
            printf("%02x", ((unsigned char *)buffers[i])[at]);
    }
    putchar('\n');
}

static void tell_status(const o41td_stream *stream, o41td_status status) {
    if (status == O41TD_OK)
        printf("ok\n");
    else if (status == O41TD_END)
        printf("end %" PRId64 " %016" PRIx64 "\n", o41td_dropped_rows(stream), o41td_order_digest(stream));
    else
        printf("%s %s\n", status == O41TD_STOPPED ? "stopped" : "error", o41td_error(stream));
}

static void write_checkpoint(o41td_stream *stream, const char *path) {
    char *text = o41td_checkpoint(stream);
    if (text == NULL) {
        printf("error %s\n", o41td_error(stream));
        return;
    }
    FILE *file = fopen(path, "w");
    if (file != NULL && fputs(text, file) >= 0 && fclose(file) == 0)
        printf("ok\n");
    else
        printf("error %s\n", strerror(errno));
    free(text);
}

static void resume_from(o41td_stream *stream, const char *path) {
    FILE *file = fopen(path, "r");
    size_t room = 1 << 20, length = 0;
    char *text = malloc(room);
    if (text != NULL && file != NULL)
        length = fread(text, 1, room, file);
    if (file != NULL)
        fclose(file);
    char *exact = realloc(text, length ? length : 1); /* so that a look behind the end is seen */
    tell_status(stream, o41td_resume(stream, exact, length));
    free(exact);
}

static o41td_status join(const char *name, const char *rank, const o41td_options *options, o41td_stream **stream,
                         void **buffers) {
    o41td_status status = o41td_connect(name, strtoll(rank, NULL, 10), options, stream);
    tell_status(*stream, status);
    for (size_t i = 0; status == O41TD_OK && i < o41td_num_fields(*stream); i++)
        buffers[i] = malloc((size_t)o41td_max_rows(*stream) * o41td_field_at(*stream, i)->row_bytes);
    return status;
}

static void leave(o41td_stream *stream, void **buffers) {
    for (size_t i = 0; i < MAX_FIELDS; i++) {
        free(buffers[i]);
        buffers[i] = NULL;
    }
    o41td_close(stream);
}

static void take(o41td_stream *stream, long count, void *const *buffers) {
    o41td_batch batch;
    o41td_status status = O41TD_OK;
    while (count-- > 0 && status == O41TD_OK) {
        status = o41td_next(stream, buffers, &batch);
        if (status == O41TD_OK)
            tell_batch(stream, &batch, buffers);
        else
            tell_status(stream, status);
    }
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    o41td_stream *stream;
    o41td_options options = o41td_default_options();
    options.wait_s = strtod(argv[3], NULL);
    options.on_notice = tell_notice;
    options.stop = &is_stopped;
    signal(SIGTERM, raise_flag);
    void *buffers[MAX_FIELDS] = {NULL};
    join(argv[1], argv[2], &options, &stream, buffers);
    char line[4096], command[32], argument[4000];
    while (fflush(stdout) == 0 && fgets(line, sizeof line, stdin) != NULL) {
        argument[0] = 0;
        if (sscanf(line, "%31s %3999s", command, argument) < 1)
            continue;
        if (strcmp(command, "connect") == 0) {
            leave(stream, buffers);
            join(argument, argv[2], &options, &stream, buffers);
        } else if (strcmp(command, "fields") == 0) {
            tell_fields(stream);
        } else if (strcmp(command, "next") == 0) {
            take(stream, strtol(argument, NULL, 10), buffers);
        } else if (strcmp(command, "checkpoint") == 0) {
            write_checkpoint(stream, argument);
        } else if (strcmp(command, "resume") == 0) {
            resume_from(stream, argument);
        } else if (strcmp(command, "advance") == 0) {
            tell_status(stream, o41td_advance(stream, strtoul(argument, NULL, 10)));
        } else if (strcmp(command, "release") == 0) {
            tell_status(stream, o41td_release(stream));
        } else if (strcmp(command, "lower_flag") == 0) {
            is_stopped = 0;
            printf("ok\n");
        } else {
            printf("error no such command\n");
        }
    }
    leave(stream, buffers);
    return 0;
}
