/* A training loop in C: fits y = w · x + b by stochastic gradient descent on the batches of a served loader.
 *
 *   o41td serve line.toml --name line --ranks 1 &
 *   cc -std=c11 -O2 -I "$(python -c 'import o41td; print(o41td.get_include())')" train.c -o train
 *   ./train line 0 line.ckpt
 *
 * The config has two fields of dtype f32: `x` of any length, and `y`. The loop goes on from line.ckpt where there is
 * one, writes it every 100 steps and at its end, and ends well on SIGTERM and Ctrl-C. (A real one saves its weights
 * with it.)
 */
#define O41TD_IMPLEMENTATION
#include "o41td.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_A_CHECKPOINT = 100 };
static const float LEARNING_RATE = 0.1f;

static volatile sig_atomic_t is_stopped;

static void stop(int number) {
    (void)number;
    is_stopped = 1;
}

static void tell(void *user, const char *text, int is_warning) {
    (void)user;
    fprintf(stderr, "%s%s\n", is_warning ? "warning: " : "", text);
}

/* Writes the checkpoint so that the file is always the old or the new one; whether that went well. Else it is told. */
static int save(o41td_stream *stream, const char *path) {
    char partial[4096];
    char *text = o41td_checkpoint(stream);
    if (text == NULL) {
        fprintf(stderr, "%s: %s\n", path, o41td_error(stream));
        return 0;
    }
    FILE *file = NULL;
    if (snprintf(partial, sizeof partial, "%s.partial", path) < (int)sizeof partial)
        file = fopen(partial, "w");
    else
        errno = ENAMETOOLONG;
    int is_written = file != NULL && fputs(text, file) != EOF && fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (file != NULL && fclose(file) != 0)
        is_written = 0;
    free(text);
    if (is_written && rename(partial, path) == 0)
        return 1;
    perror(path);
    return 0;
}

/* Reads a whole file: 1, or 0 where there is none, or -1 where it cannot be read, and `errno` says why. */
static int read_file(const char *path, char **text, size_t *length) {
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return errno == ENOENT ? 0 : -1;
    size_t room = 0;
    *text = NULL;
    *length = 0;
    do {
        char *grown = realloc(*text, room += 65536);
        if (grown == NULL)
            break;
        *text = grown;
        *length += fread(*text + *length, 1, room - *length, file);
    } while (*length == room);
    int is_whole = feof(file), why = errno;
    fclose(file);
    if (is_whole)
        return 1;
    free(*text);
    errno = why;
    return -1;
}

/* Goes to where the checkpoint was taken, if there is one; whether that went well. Else it is told. */
static int resume(o41td_stream *stream, const char *path) {
    char *text;
    size_t length;
    int found = read_file(path, &text, &length);
    if (found == 0)
        return 1;
    if (found < 0) {
        perror(path);
        return 0;
    }
    o41td_status status = o41td_resume(stream, text, length);
    free(text);
    if (status != O41TD_OK)
        fprintf(stderr, "%s: %s\n", path, o41td_error(stream));
    return status == O41TD_OK;
}

/* One step down the gradient of the mean squared error, which is returned. `slopes` is room for the gradient. */
static float step(float *weights, float *slopes, float *bias, size_t width, const float *x, const float *y,
                  int64_t num_rows) {
    float loss = 0, bias_slope = 0;
    for (size_t i = 0; i < width; i++)
        slopes[i] = 0;
    for (int64_t row = 0; row < num_rows; row++) {
        const float *inputs = x + (size_t)row * width;
        float error = *bias - y[row];
        for (size_t i = 0; i < width; i++)
            error += weights[i] * inputs[i];
        for (size_t i = 0; i < width; i++)
            slopes[i] += 2 * error * inputs[i] / (float)num_rows;
        bias_slope += 2 * error / (float)num_rows;
        loss += error * error / (float)num_rows;
    }
    for (size_t i = 0; i < width; i++)
        weights[i] -= LEARNING_RATE * slopes[i];
    *bias -= LEARNING_RATE * bias_slope;
    return loss;
}

/* Whether a field has this dtype; one that is not there has none. */
static int is_f32(const o41td_stream *stream, int number) {
    return number >= 0 && o41td_field_at(stream, (size_t)number)->dtype == O41TD_F32;
}

static int train(o41td_stream *stream, const char *path) {
    int at_x = o41td_field_number(stream, "x"), at_y = o41td_field_number(stream, "y");
    if (!is_f32(stream, at_x) || !is_f32(stream, at_y) ||
        o41td_field_at(stream, (size_t)at_y)->row_bytes != sizeof(float)) {
        fprintf(stderr, "this loop wants two fields of f32: `x`, and `y`, one number\n");
        return 2;
    }
    if (!resume(stream, path))
        return 1;
    size_t room = (size_t)o41td_max_rows(stream);
    size_t width = o41td_field_at(stream, (size_t)at_x)->row_bytes / sizeof(float);
    void **buffers = calloc(o41td_num_fields(stream), sizeof *buffers); /* a field without a buffer is left out */
    float *x = malloc(room * width * sizeof *x), *y = malloc(room * sizeof *y);
    float *weights = calloc(width, sizeof *weights), *slopes = calloc(width, sizeof *slopes);
    int code = 1;
    if (buffers != NULL && x != NULL && y != NULL && weights != NULL && slopes != NULL) {
        o41td_status status = O41TD_STOPPED;
        o41td_batch batch;
        float bias = 0, loss = 0;
        long num_steps = 0;
        buffers[at_x] = x;
        buffers[at_y] = y;
        while (!is_stopped && (status = o41td_next(stream, buffers, &batch)) == O41TD_OK) {
            loss = step(weights, slopes, &bias, width, x, y, batch.num_rows);
            if (++num_steps % STEPS_A_CHECKPOINT == 0)
                save(stream, path); /* where it cannot, the one before stays, and training goes on */
        }
        printf("%ld steps, loss %.6f, bias %.3f, weights", num_steps, (double)loss, (double)bias);
        for (size_t i = 0; i < width; i++)
            printf(" %.3f", (double)weights[i]);
        printf("\norder digest %016llx\n", (unsigned long long)o41td_order_digest(stream));
        if (status == O41TD_ERROR)
            fprintf(stderr, "%s\n", o41td_error(stream));
        int is_saved = save(stream, path); /* also behind an error: it counts every batch that was taken */
        code = status == O41TD_ERROR || !is_saved;
    } else {
        fprintf(stderr, "memory ran out\n");
    }
    free(buffers);
    free(x);
    free(y);
    free(weights);
    free(slopes);
    return code;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: train NAME RANK CHECKPOINT\n");
        return 2;
    }
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    o41td_options options = o41td_default_options();
    options.stop = &is_stopped;
    options.on_notice = tell;
    o41td_stream *stream;
    o41td_status status = o41td_connect(argv[1], strtoll(argv[2], NULL, 10), &options, &stream);
    int code = status == O41TD_STOPPED ? 0 : 1;
    if (status == O41TD_OK)
        code = train(stream, argv[3]);
    else if (status == O41TD_ERROR)
        fprintf(stderr, "%s\n", o41td_error(stream));
    o41td_close(stream);
    return code;
}
