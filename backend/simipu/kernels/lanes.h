/* Convolutions of groups of one channel where channels.h would waste much: LANES neighbouring channels at a
   time, one in each lane, with the field turned so that a position's channels are neighbours. Strides,
   dilations and padding are then only places in the turned field, and no lane is idle at the ends of rows.
   A field whose channels are in blocks lies like that already: it is copied for padding only. Where the
   channels are too few tasks for all threads, the rows of the result are divided, too.

       field                   turned, with its padding
       channel 0: a b c d      0 0 . .   a e . .   b f . .   c g . .   d h . .   0 0 . .
       channel 1: e f g h      */

#ifndef SIMIPU_LANES_H
#define SIMIPU_LANES_H

#include "channels.h"

enum {
    TILE_POSITIONS = 6,       /* whose sums and totals are in registers */
    TURNED_BACK = 192,        /* positions that are turned back at a time: whole tiles and registers */
    BLOCKED_CHUNK = 60,       /* positions of CHANNEL_BLOCK channels: whole tiles, up to a run */
    MIN_CHANNELS = LANES / 2, /* fewer leave too many lanes idle */
    NEAR_FIELD = 8192,        /* floats: threads do not wait for each other to allocate a small field */
};

/* The turned field; the terms of its geometry begin at places in it. */
struct lanes {
    const struct geometry *geometry;
    const struct machine *machine;
    int64_t sizes[MAX_SPATIAL]; /* what the windows touch */
    int64_t width;              /* channels of a task, which lie together in its field */
    int64_t parts, part_rows;   /* of the result's rows: tasks of the same channels */
    int has_failed;             /* there is no memory */
};

/* Whether turning takes less than what copying phases and adding up what lies between rows would. */
static int is_by_lanes(const struct geometry *g) {
    const struct convolution *c = g->of;
    int64_t phases = g->phases[0] * g->phases[1] * g->phases[2];
    if (c->is_source_blocked || c->is_result_blocked) return 1;
    for (int axis = 0; axis < MAX_SPATIAL; axis++)
        if (phases > 1 && c->strides[axis] > 1) return c->groups >= MIN_CHANNELS;
    return c->groups >= MIN_CHANNELS && 8 * g->sizes[2] > 9 * c->result_sizes[2];
}

/* --- the turned field --- */

/* A row of up to LANES planes, which lie `plane` elements apart; of its positions, `width`. */
static void turn_row(const struct operand *source, int64_t from, int64_t plane, int lanes, int64_t count,
                     int64_t width, float *to) {
    const float *floats = (const float *)source->data + from;
    for (int64_t x = 0; x < count; x += LANES) {
        V rows[LANES];
        int64_t some = count - x < LANES ? count - x : LANES;
        if (source->element == FLOAT && lanes == LANES && some == LANES)
            for (int i = 0; i < LANES; i++) rows[i] = v_load(floats + i * plane + x);
        else
            for (int i = 0; i < LANES; i++)
                rows[i] = i < lanes ? take_some(source, from + i * plane + x, some) : v_all(0);
        v_turn(rows);
        for (int i = 0; i < some; i++) v_store(to + (x + i) * width, rows[i]);
    }
}

static void turn_field(const struct lanes *turned, int64_t first_plane, int lanes, struct rows rows,
                       float *to) {
    const struct convolution *c = turned->geometry->of;
    const int64_t *sizes = turned->sizes;
    int64_t plane = c->field[0] * c->field[1] * c->field[2], before = c->before[2], width = turned->width;
    int64_t start = before < sizes[2] ? before : sizes[2];
    int64_t end = before + c->field[2] < sizes[2] ? before + c->field[2] : sizes[2];
    to += rows.first * sizes[2] * width;
    for (int64_t row = rows.first; row < rows.end; row++, to += sizes[2] * width) {
        int64_t z = row / sizes[1] - c->before[0], y = row % sizes[1] - c->before[1];
        int is_inside = z >= 0 && z < c->field[0] && y >= 0 && y < c->field[1] && start < end;
        int64_t zeros = is_inside ? start : sizes[2];
        memset(to, 0, (size_t)(zeros * width) * sizeof *to);
        if (!is_inside) continue;
        for (int64_t part = 0; part < width; part += LANES)
            turn_row(&c->source, (first_plane + part) * plane + (z * c->field[1] + y) * c->field[2], plane,
                     lanes, end - start, width, to + start * width + part);
        memset(to + end * width, 0, (size_t)((sizes[2] - end) * width) * sizeof *to);
    }
}

/* Where the windows of the positions from `position` on begin, and TILE_POSITIONS more. */
static void find_windows(const struct lanes *turned, int64_t position, int64_t count, int64_t *starts) {
    const struct convolution *c = turned->geometry->of;
    const int64_t *padded = turned->sizes, *sizes = c->result_sizes;
    int64_t row = position / sizes[2], x = position % sizes[2];
    for (int64_t i = 0; i < count; row++, x = 0) {
        int64_t z = row / sizes[1] * c->strides[0], y = row % sizes[1] * c->strides[1];
        int64_t start = (z * padded[1] + y) * padded[2];
        for (; x < sizes[2] && i < count; x++) starts[i++] = (start + x * c->strides[2]) * turned->width;
    }
    for (int i = 0; i < TILE_POSITIONS; i++)
        starts[count + i] = starts[count - 1]; /* of a tile that is not full */
}

/* --- sums --- */

/* totals of TILE_POSITIONS positions, `between` floats from one to the next, as in multiply_tile. */
INLINE int sum_tile(const struct geometry *g, const float *field, const int64_t *starts, const float *weights,
                    enum rule rule, ptrdiff_t between, float *totals) {
    V total[TILE_POSITIONS], lost = v_all(0);
    const float *windows[TILE_POSITIONS];
    for (int j = 0; j < TILE_POSITIONS; j++) total[j] = v_all(0), windows[j] = field + starts[j];
    int64_t term = 0;
    for (int64_t block = 0; block < g->num_blocks; block++) {
        V sums[TILE_POSITIONS];
        for (int j = 0; j < TILE_POSITIONS; j++) sums[j] = v_all(0);
        for (int64_t end = term + g->blocks[block]; term < end; term++) {
            int64_t place = g->terms[term].plane;
            V weight = v_load(weights + term * LANES);
            for (int j = 0; j < TILE_POSITIONS; j++)
                sums[j] = v_sum(weight, v_load(windows[j] + place), sums[j]);
        }
        for (int j = 0; j < TILE_POSITIONS; j++) total[j] = round_total(v_add(total[j], sums[j]), rule);
    }
    for (int j = 0; j < TILE_POSITIONS; j++) {
        v_store(totals + j * between, total[j]);
        lost = v_add(lost, v_sub(total[j], total[j]));
    }
    return rule != HALVES || v_are_zero(lost);
}

/* Whether nothing became infinite or NaN, so that `rule` did not matter. */
static int sum_tiles(const struct geometry *g, const float *field, const int64_t *starts,
                     const float *weights, int64_t count, enum rule rule, ptrdiff_t between, float *totals) {
    int is_fast = 1;
    for (int64_t at = 0; at < count;
         at += TILE_POSITIONS, starts += TILE_POSITIONS, totals += TILE_POSITIONS * between) {
        if (!g->of->block)
            sum_tile(g, field, starts, weights, FLOATS, between, totals);
        else if (sum_tile(g, field, starts, weights, HALVES, between, totals))
            continue;
        else if (rule == NO_OVERFLOW)
            sum_tile(g, field, starts, weights, NO_OVERFLOW, between, totals);
        else
            sum_tile(g, field, starts, weights, BOUNDED, between, totals);
        is_fast = 0;
    }
    return is_fast;
}

/* Up to TURNED_BACK positions of LANES channels; exceptions are told of. */
static void sum_part(const struct geometry *g, const float *field, const int64_t *starts,
                     const float *weights, int64_t count, ptrdiff_t between, float *totals) {
    const struct convolution *c = g->of;
    enum rule rule = c->nan_on_overflow ? NO_OVERFLOW : BOUNDED;
    int is_fast = sum_tiles(g, field, starts, weights, count, rule, between, totals);
    if (!c->program.exception || !c->block || is_fast) return;
    float told[TURNED_BACK * LANES];
    sum_tiles(g, field, starts, weights, count, NO_OVERFLOW, LANES, told);
    check_values(&c->program, told, count * LANES);
}

/* The weights of up to LANES filters in the order of the sum; zeros in the lanes that are not used. */
static void turn_weights(const struct geometry *g, int64_t first_filter, int64_t between, int lanes,
                         float *weights) {
    float filter[MAX_TAPS];
    memset(weights, 0, (size_t)g->num_terms * LANES * sizeof *weights);
    for (int i = 0; i < lanes; i++) {
        widen(&g->of->filters, (first_filter + i * between) * g->taps, g->taps, filter);
        for (int64_t term = 0; term < g->num_terms; term++)
            weights[term * LANES + i] = filter[g->terms[term].weight];
    }
}

/* A task's field, and what it computes of it. */
struct chunks {
    const struct lanes *turned;
    const float *field;
    int64_t batch, position, end; /* of the result: the first one, and after the last one */
    int lanes;                    /* that are used */
};

/* Up to TURNED_BACK positions of outputs that lie `outputs` planes of the result apart. */
static void sum_chunk(const struct chunks *chunks, int64_t part, const float *weights, int64_t output,
                      int64_t position) {
    const struct geometry *g = chunks->turned->geometry;
    const struct convolution *c = g->of;
    int64_t count = chunks->end - position < TURNED_BACK ? chunks->end - position : TURNED_BACK;
    struct operand_run operands[MAX_OPERANDS];
    int64_t starts[TURNED_BACK + TILE_POSITIONS];
    _Alignas(64) float totals[TURNED_BACK * LANES], rows[LANES][TURNED_BACK];
    find_windows(chunks->turned, position, count, starts);
    sum_part(g, chunks->field + part, starts, weights, count, LANES, totals);
    for (int64_t i = 0; i < count; i += LANES) {
        V back[LANES];
        for (int j = 0; j < LANES; j++) back[j] = v_load(totals + (i + j) * LANES);
        v_turn(back);
        for (int j = 0; j < LANES; j++) v_store(rows[j] + i, back[j]);
    }
    for (int i = 0; i < chunks->lanes; i++, output += c->outputs) {
        find_operands(&c->program, c->values, chunks->batch, output, position, operands);
        float *to = c->result + (chunks->batch * c->groups * c->outputs + output) * g->positions + position;
        run_steps(&c->program, operands, (struct source){rows[i], 0}, to, count);
    }
}

/* Up to BLOCKED_CHUNK positions of a block of channels; `weights` are those of all its parts. */
static void sum_blocked_chunk(const struct chunks *chunks, const float *weights, int64_t channel,
                              int64_t position) {
    const struct geometry *g = chunks->turned->geometry;
    const struct convolution *c = g->of;
    int64_t count = chunks->end - position < BLOCKED_CHUNK ? chunks->end - position : BLOCKED_CHUNK;
    struct operand_run operands[MAX_OPERANDS];
    int64_t starts[BLOCKED_CHUNK + TILE_POSITIONS];
    _Alignas(64) float totals[BLOCKED_CHUNK * CHANNEL_BLOCK];
    find_windows(chunks->turned, position, count, starts);
    for (int64_t part = 0; part < CHANNEL_BLOCK; part += LANES)
        sum_part(g, chunks->field + part, starts, weights + part * g->num_terms, count, CHANNEL_BLOCK,
                 totals + part);
    find_blocked_operands(&c->program, c->values, chunks->batch, channel, position, operands);
    float *to = c->result + (chunks->batch * c->groups + channel) * g->positions + position * CHANNEL_BLOCK;
    run_steps(&c->program, operands, (struct source){totals, 0}, to, count * CHANNEL_BLOCK);
}

static void sum_chunks(const struct chunks *chunks, int64_t first) {
    const struct geometry *g = chunks->turned->geometry;
    const struct convolution *c = g->of;
    _Alignas(64) float weights[MAX_TAPS * CHANNEL_BLOCK];
    if (c->is_result_blocked) {
        for (int64_t part = 0; part < CHANNEL_BLOCK; part += LANES)
            turn_weights(g, first + part, 1, LANES, weights + part * g->num_terms);
        for (int64_t at = chunks->position; at < chunks->end; at += BLOCKED_CHUNK)
            sum_blocked_chunk(chunks, weights, first, at);
        return;
    }
    for (int64_t part = 0; part < chunks->turned->width; part += LANES)
        for (int64_t i = 0; i < c->outputs; i++) {
            int64_t output = (first + part) * c->outputs + i;
            turn_weights(g, output, c->outputs, chunks->lanes, weights);
            for (int64_t at = chunks->position; at < chunks->end; at += TURNED_BACK)
                sum_chunk(chunks, part, weights, output, at);
        }
}

/* The rows of the turned field that the windows of `rows` of the result touch. */
static struct rows find_touched(const struct lanes *turned, struct rows rows) {
    const struct convolution *c = turned->geometry->of;
    if (turned->parts == 1) return all_rows(turned->sizes);
    return (struct rows){rows.first * c->strides[1], (rows.end - 1) * c->strides[1] + reach(c, 1) + 1};
}

static void convolve_lanes(void *data, size_t number) {
    struct lanes *turned = data;
    const struct geometry *g = turned->geometry;
    const struct convolution *c = g->of;
    const struct machine *machine = turned->machine;
    int64_t blocks = divide_up(c->groups, turned->width), part = (int64_t)number % turned->parts;
    int64_t block = (int64_t)number / turned->parts, first = block % blocks * turned->width;
    int64_t height = c->result_sizes[0] * c->result_sizes[1];
    struct rows rows = {part * turned->part_rows, (part + 1) * turned->part_rows};
    if (rows.end > height) rows.end = height;
    struct chunks chunks = {.turned = turned,
                            .batch = block / blocks,
                            .position = rows.first * c->result_sizes[2],
                            .end = rows.end * c->result_sizes[2]};
    chunks.lanes = (int)(c->groups - first < LANES ? c->groups - first : LANES);
    int64_t plane = chunks.batch * c->groups + first;
    if (c->is_source_blocked && !is_copied(g)) {
        chunks.field = (const float *)c->source.data + plane * g->plane;
        sum_chunks(&chunks, first);
        return;
    }
    size_t floats = (size_t)(turned->sizes[0] * turned->sizes[1] * turned->sizes[2] * turned->width);
    _Alignas(64) float near[NEAR_FIELD];
    int is_near = floats <= NEAR_FIELD;
    float *field = is_near ? near : machine->allocate(machine->owner, floats * sizeof *field);
    if (!field) {
        __atomic_store_n(&turned->has_failed, 1, __ATOMIC_RELAXED);
        return;
    }
    if (c->is_source_blocked)
        copy_block(g, plane, find_touched(turned, rows), field);
    else
        turn_field(turned, plane, chunks.lanes, find_touched(turned, rows), field);
    chunks.field = field;
    sum_chunks(&chunks, first);
    if (!is_near) machine->release(machine->owner, field);
}

/* How many rows of the result a task has: all of them, unless there are too few `tasks` for all threads. A
   part takes some rows of its neighbours' fields, too; where windows touch several layers, these would be
   rows of each. */
static int64_t find_part_rows(const struct lanes *turned, int64_t tasks, int threads) {
    const struct convolution *c = turned->geometry->of;
    int64_t rows = c->result_sizes[0] * c->result_sizes[1];
    if (threads == 1 || turned->sizes[0] > 1 || tasks >= 2 * threads) return rows;
    int64_t part = divide_up(rows, divide_up(2 * threads, tasks)), least = 2 * (reach(c, 1) + 1);
    return part < least ? least : part;
}

static enum outcome convolve_by_lanes(struct geometry *g, const struct machine *machine) {
    const struct convolution *c = g->of;
    struct lanes turned = {.geometry = g, .machine = machine, .width = LANES};
    if (c->is_source_blocked || c->is_result_blocked) turned.width = CHANNEL_BLOCK;
    for (int axis = 0; axis < MAX_SPATIAL; axis++)
        turned.sizes[axis] = c->is_source_blocked
                                 ? g->sizes[axis]
                                 : (c->result_sizes[axis] - 1) * c->strides[axis] + reach(c, axis) + 1;
    for (int64_t i = 0; i < g->num_terms; i++) {
        int64_t tap = g->terms[i].weight, x = tap % c->kernel[2] * c->dilations[2];
        int64_t y = tap / c->kernel[2] % c->kernel[1] * c->dilations[1];
        int64_t z = tap / c->kernel[2] / c->kernel[1] * c->dilations[0];
        g->terms[i].plane = ((z * turned.sizes[1] + y) * turned.sizes[2] + x) * turned.width;
    }
    int64_t tasks = c->batches * divide_up(c->groups, turned.width);
    int is_small = is_small_sum(g), threads = is_small ? 1 : count_threads(machine);
    turned.part_rows = find_part_rows(&turned, tasks, threads);
    turned.parts = divide_up(c->result_sizes[0] * c->result_sizes[1], turned.part_rows);
    tasks *= turned.parts;
    run_tasks(machine, is_small, convolve_lanes, tasks, &turned);
    return turned.has_failed ? NO_MEMORY : DONE;
}

#endif
