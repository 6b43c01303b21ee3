/* Gives payloads to the part of the client that reads them, each in just as many bytes as it has.
 *
 *   c_frames FILE...        each FILE holds frames: 4 bytes of length, then the payload
 *
 * Prints how many were taken and how many refused. What it is for is to be built with sanitizers.
 */
#define O41TD_IMPLEMENTATION
#include "o41td.h"

#include <stdio.h>

/* A stream that has joined and waits for batches, over an arena of 8 rows of one i64. */
static o41td_stream *waiting_stream(void) {
    static const unsigned char arena[4096];
    o41td_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL || !o41td__add_run(&stream->history, &stream->num_runs, 0, 0))
        abort();
    stream->socket = stream->descriptor = -1;
    stream->generation = 1;
    stream->arena = arena;
    stream->arena_rows = 8;
    stream->facts.max_rows = 2;
    return stream;
}

static int hear(o41td__reader payload) {
    o41td__reader walk = payload, reader = payload;
    o41td__facts facts = {0};
    uint64_t num_fields;
    if (!o41td__skip(&walk, 0) || walk.at != walk.end)
        return O41TD__LOST;
    o41td_stream *stream = waiting_stream();
    int status = O41TD__LOST;
    switch (o41td__tag_of(&reader, &num_fields)) {
    case O41TD__LOADER_JOINED:
        status = o41td__read_joined(&facts, payload) ? O41TD_OK : O41TD__LOST;
        break;
    case O41TD__LOADER_OPENED: /* of the stream that the golden greeting tells of */
        facts.lanes = 2;
        facts.num_stages = 1;
        facts.stages = calloc(1, sizeof *facts.stages);
        facts.stages->num_sources = 1;
        facts.stages->batch_size = 2;
        facts.stages->lane_rows = calloc(2, sizeof *facts.stages->lane_rows);
        stream->arena = NULL;
        char name[] = "/tmp/o41td-c-frames-XXXXXX";
        stream->descriptor = mkstemp(name);
        unlink(name);
        if (ftruncate(stream->descriptor, 4096))
            abort();
        status = o41td__hear_opened(stream, &facts, reader, num_fields);
        if (stream->arena != NULL)
            munmap((void *)stream->arena, stream->arena_bytes);
        break;
    case O41TD__LOADER_FAILED:
        status = o41td__hear(stream, payload) == O41TD_ERROR ? O41TD_OK : O41TD__LOST;
        break;
    case O41TD__STREAM_ENDED: /* would be answered */
        stream->generation = 2;
        status = o41td__hear(stream, payload);
        break;
    default:
        status = o41td__hear(stream, payload);
    }
    while (status == O41TD_OK && stream->next_ready < stream->num_ready) {
        int64_t taken[2];
        void *buffers[] = {taken};
        o41td_field field = {"id", O41TD_I64, 0, NULL, 8};
        size_t offset = 0;
        stream->facts.fields = &field;
        stream->facts.num_fields = 1;
        stream->offsets = &offset;
        const o41td__ready *ready = &stream->ready[stream->next_ready++];
        o41td__copy(stream, buffers, ready);
        stream->next_row += ready->first_row < 0 ? (size_t)ready->num_rows : 0;
        stream->facts.fields = NULL;
        stream->facts.num_fields = 0;
        stream->offsets = NULL;
    }
    stream->arena = NULL;
    o41td__facts_free(&facts);
    o41td_close(stream);
    return status;
}

int main(int argc, char **argv) {
    long num_taken = 0, num_refused = 0;
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        unsigned char head[4];
        while (file != NULL && fread(head, 1, 4, file) == 4) {
            size_t length = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
            unsigned char *payload = malloc(length ? length : 1);
            if (payload == NULL || fread(payload, 1, length, file) != length)
                abort();
            if (hear((o41td__reader){payload, payload + length}) == O41TD_OK)
                num_taken++;
            else
                num_refused++;
            free(payload);
        }
        if (file != NULL)
            fclose(file);
    }
    printf("%ld %ld\n", num_taken, num_refused);
    return 0;
}
