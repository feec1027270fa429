/* What a convolution is made of: its field, copied with its padding, each axis cut into its `strides` phases,
   so that what a position of the kernel meets are neighbours, and the order of its sums.

       padded axis   0 a b c d e 0     stride 2: phase 0: 0 b d 0, phase 1: a c e
       kernel position 0 meets phase 0 from its 0th on, position 1 phase 1 from its 0th, position 2 phase 0
   from 1.

   Where the source's channels are in blocks, what are neighbours are the channels of a position. Then there
   are no phases, and a copy is made for padding only. */

#ifndef SIMIPU_GEOMETRY_H
#define SIMIPU_GEOMETRY_H

#include "tasks.h"

/* A product of a sum: where its windows begin in a group's field, and its weight in a filter. */
struct term {
    int64_t plane, weight;
};

struct geometry {
    const struct convolution *of;
    int64_t sizes[MAX_SPATIAL], phases[MAX_SPATIAL]; /* of a phase; how many */
    int64_t cuts[MAX_SPATIAL], steps[MAX_SPATIAL];   /* of a stride: the phases, and what is left of it */
    int64_t pitch;                                   /* floats from a position to the next of its row */
    int64_t plane;                                   /* floats of a channel, all phases */
    int64_t positions;                               /* of the result */
    int64_t taps;
    const float *field;
    float *copy;        /* the field, if it had to be copied */
    struct term *terms; /* in the order of the sum */
    int64_t num_terms;
    int *blocks; /* how many terms each block has */
    int64_t num_blocks;
    int64_t unit; /* terms that a part had better not divide; 0: as it comes */
};

/* --- the field --- */

static int64_t reach(const struct convolution *c, int axis) {
    return (c->kernel[axis] - 1) * c->dilations[axis];
}

static void measure(struct geometry *g) {
    const struct convolution *c = g->of;
    g->plane = g->positions = g->taps = 1;
    g->pitch = c->is_source_blocked ? CHANNEL_BLOCK : 1;
    int is_inside = c->is_source_blocked;
    for (int axis = 0; axis < MAX_SPATIAL; axis++) {
        g->cuts[axis] = c->is_source_blocked ? 1 : c->strides[axis];
        g->steps[axis] = c->strides[axis] / g->cuts[axis];
        g->phases[axis] = c->kernel[axis] > 1 ? g->cuts[axis] : 1;
        g->sizes[axis] = (c->result_sizes[axis] - 1) * g->steps[axis] + 1 + reach(c, axis) / g->cuts[axis];
        g->positions *= c->result_sizes[axis];
        g->taps *= c->kernel[axis];
        is_inside &= !c->before[axis] && g->sizes[axis] <= c->field[axis];
    }
    if (is_inside) memcpy(g->sizes, c->field, sizeof g->sizes); /* read where it lies */
    for (int axis = 0; axis < MAX_SPATIAL; axis++) g->plane *= g->phases[axis] * g->sizes[axis];
}

static int is_copied(const struct geometry *g) {
    const struct convolution *c = g->of;
    for (int axis = 0; axis < MAX_SPATIAL; axis++)
        if (g->cuts[axis] != 1 || c->before[axis] || c->field[axis] != g->sizes[axis]) return 1;
    return c->source.element != FLOAT;
}

/* Rows of the padded field or of the result, of all layers, from `first` to before `end`. */
struct rows {
    int64_t first, end;
};

static struct rows all_rows(const int64_t *sizes) { return (struct rows){0, sizes[0] * sizes[1]}; }

/* Rows of a block of channels of the padded field, each at its place in `to`; `plane` is the number of the
   block's first channel. */
static void copy_block(const struct geometry *g, int64_t plane, struct rows rows, float *to) {
    const struct convolution *c = g->of;
    const float *source = (const float *)c->source.data + plane * c->field[0] * c->field[1] * c->field[2];
    int64_t before = c->before[2], size = g->sizes[2], start = before < size ? before : size;
    int64_t end = before + c->field[2] < size ? before + c->field[2] : size;
    to += rows.first * size * CHANNEL_BLOCK;
    for (int64_t row = rows.first; row < rows.end; row++, to += size * CHANNEL_BLOCK) {
        int64_t z = row / g->sizes[1] - c->before[0], y = row % g->sizes[1] - c->before[1];
        int is_inside = z >= 0 && z < c->field[0] && y >= 0 && y < c->field[1] && start < end;
        int64_t zeros = is_inside ? start : size;
        memset(to, 0, (size_t)(zeros * CHANNEL_BLOCK) * sizeof *to);
        if (!is_inside) continue;
        memcpy(to + start * CHANNEL_BLOCK, source + (z * c->field[1] + y) * c->field[2] * CHANNEL_BLOCK,
               (size_t)((end - start) * CHANNEL_BLOCK) * sizeof *to);
        memset(to + end * CHANNEL_BLOCK, 0, (size_t)((size - end) * CHANNEL_BLOCK) * sizeof *to);
    }
}

/* Of a phase of a padded row, the positions that are inside of the field. */
struct inside {
    int64_t phase, first, last;
};

static struct inside find_inside(const struct geometry *g, int64_t phase) {
    const struct convolution *c = g->of;
    int64_t step = c->strides[2], before = c->before[2], end = before + c->field[2], size = g->sizes[2];
    int64_t first = before > phase ? divide_up(before - phase, step) : 0;
    int64_t last = end > phase ? divide_up(end - phase, step) : 0;
    first = first < size ? first : size;
    return (struct inside){phase, first, last < first ? first : last < size ? last : size};
}

/* A row of the padded field, one phase of it: what is inside of the field, zeros around. */
static void copy_row(const struct geometry *g, int64_t from, const struct inside *inside, float *to) {
    const struct convolution *c = g->of;
    int64_t step = c->strides[2], before = c->before[2], size = g->sizes[2];
    int64_t phase = inside->phase, first = inside->first, last = inside->last;
    const float *floats = (const float *)c->source.data + from + phase - before;
    for (int64_t x = 0; x < first; x++) to[x] = 0;
    if (step == 1 && c->source.element == FLOAT)
        for (int64_t x = first; x < last; x += LANES)
            store_some(to + x, load_some(floats + x, last - x), last - x);
    else if (step == 1)
        widen(&c->source, from + first - before, last - first, to + first);
    else if (c->source.element == FLOAT) {
        for (int64_t x = first; step == 2 && x < last; x += LANES) {
            int64_t some = 2 * (last - x) - 1; /* the last one has none beside it */
            V low = load_some(floats + 2 * x, some),
              high = some > LANES ? load_some(floats + 2 * x + LANES, some - LANES) : v_all(0);
            store_some(to + x, v_evens(low, high), last - x);
        }
        for (int64_t x = first; step != 2 && x < last; x++) to[x] = floats[x * step];
    } else
        for (int64_t x = first; x < last; x++) widen(&c->source, from + x * step + phase - before, 1, to + x);
    for (int64_t x = last; x < size; x++) to[x] = 0;
}

/* A plane of the plain field, or of blocks of channels. */
static void copy_plane(void *data, size_t number) {
    const struct geometry *g = data;
    const struct convolution *c = g->of;
    if (c->is_source_blocked) {
        int64_t plane = (int64_t)number * CHANNEL_BLOCK;
        copy_block(g, plane, all_rows(g->sizes), g->copy + plane * g->plane);
        return;
    }
    int64_t from = (int64_t)number * c->field[0] * c->field[1] * c->field[2];
    float *to = g->copy + (int64_t)number * g->plane;
    int64_t phases = g->phases[0] * g->phases[1] * g->phases[2];
    for (int64_t phase = 0; phase < phases; phase++) {
        int64_t px = phase % g->phases[2], py = phase / g->phases[2] % g->phases[1];
        int64_t pz = phase / g->phases[2] / g->phases[1];
        struct inside inside = find_inside(g, px);
        for (int64_t z = 0; z < g->sizes[0]; z++)
            for (int64_t y = 0; y < g->sizes[1]; y++, to += g->sizes[2]) {
                int64_t at_z = z * c->strides[0] + pz - c->before[0],
                        at_y = y * c->strides[1] + py - c->before[1];
                if (at_z < 0 || at_z >= c->field[0] || at_y < 0 || at_y >= c->field[1])
                    memset(to, 0, (size_t)g->sizes[2] * sizeof *to);
                else
                    copy_row(g, from + (at_z * c->field[1] + at_y) * c->field[2], &inside, to);
            }
    }
}

/* What reads the copy may read a tile's width more. */
enum { SLACK = 8 * LANES };

static enum outcome take_field(struct geometry *g, int is_needed, const struct machine *machine) {
    const struct convolution *c = g->of;
    g->field = c->source.data;
    if (!is_needed && !is_copied(g)) return DONE;
    int64_t planes = c->batches * c->groups * c->channels;
    g->copy = machine->allocate(machine->owner, ((size_t)(planes * g->plane) + SLACK) * sizeof *g->copy);
    if (!g->copy) return NO_MEMORY;
    memset(g->copy + planes * g->plane, 0, SLACK * sizeof *g->copy);
    g->field = g->copy;
    int64_t tasks = planes / g->pitch;
    run_tasks(machine, planes * g->plane < SMALL_JOB / 8, copy_plane, tasks, g);
    return DONE;
}

/* --- the order of the sums --- */

/* Where the windows of each kernel position begin in a channel. */
static void place_taps(const struct geometry *g, int64_t *taps) {
    const struct convolution *c = g->of;
    int64_t of_phase = g->sizes[0] * g->sizes[1] * g->sizes[2];
    for (int64_t tap = 0; tap < g->taps; tap++) {
        int64_t at[MAX_SPATIAL] = {tap / c->kernel[2] / c->kernel[1], tap / c->kernel[2] % c->kernel[1],
                                   tap % c->kernel[2]};
        int64_t phase = 0, place = 0;
        for (int axis = 0; axis < MAX_SPATIAL; axis++) {
            int64_t far = at[axis] * c->dilations[axis];
            phase = phase * g->phases[axis] + far % g->cuts[axis];
            place = place * g->sizes[axis] + far / g->cuts[axis];
        }
        taps[tap] = (phase * of_phase + place) * g->pitch;
    }
}

static void add_term(struct geometry *g, const int64_t *taps, int64_t channel, int64_t tap) {
    int64_t in_block = channel % g->pitch;
    g->terms[g->num_terms].plane = (channel - in_block) * g->plane + in_block + taps[tap];
    g->terms[g->num_terms++].weight = channel * g->taps + tap;
}

static void end_block(struct geometry *g, int64_t before) {
    if (g->num_terms > before) g->blocks[g->num_blocks++] = (int)(g->num_terms - before);
}

/* Groups of few channels: up to `slic_taps` positions of a row of the kernel. */
static void order_slic(struct geometry *g, const int64_t *taps) {
    const struct convolution *c = g->of;
    for (int64_t row = 0; row < g->taps; row += c->kernel[2])
        for (int64_t x = 0; x < c->kernel[2]; x += c->slic_taps) {
            int64_t before = g->num_terms;
            for (int64_t tap = x; tap < x + c->slic_taps && tap < c->kernel[2]; tap++)
                for (int64_t channel = 0; channel < c->channels; channel++)
                    add_term(g, taps, channel, row + tap);
            end_block(g, before);
        }
}

/* A block of channels at a position, for all positions; with packed rows a channel is one of a row. */
static void order_blocks(struct geometry *g, const int64_t *taps, int64_t block) {
    const struct convolution *c = g->of;
    int64_t rows = c->packed_rows, channels = rows * c->channels, kernel[MAX_SPATIAL];
    memcpy(kernel, c->kernel, sizeof kernel);
    kernel[c->packed_axis] = divide_up(kernel[c->packed_axis], rows);
    int64_t groups = kernel[0] * kernel[1] * kernel[2], row_taps = 1; /* from a row to the next */
    for (int axis = c->packed_axis + 1; axis < MAX_SPATIAL; axis++) row_taps *= c->kernel[axis];
    for (int64_t first = 0; first < channels; first += block)
        for (int64_t group = 0; group < groups; group++) {
            int64_t before = g->num_terms;
            int64_t at[MAX_SPATIAL] = {group / kernel[2] / kernel[1], group / kernel[2] % kernel[1],
                                       group % kernel[2]};
            at[c->packed_axis] *= rows;
            int64_t tap = (at[0] * c->kernel[1] + at[1]) * c->kernel[2] + at[2];
            int64_t row = first / c->channels, channel = first % c->channels;
            for (int64_t i = first; i < first + block && i < channels; i++) {
                if (at[c->packed_axis] + row < c->kernel[c->packed_axis])
                    add_term(g, taps, channel, tap + row * row_taps);
                if (++channel == c->channels) channel = 0, row++;
            }
            end_block(g, before);
        }
    g->unit = block * groups <= MAX_CHANNELS ? block * groups : 0;
}

enum { FLOAT_BLOCK = 16 }; /* of sums that are not rounded: as good as any */

static enum outcome order_terms(struct geometry *g, const struct machine *machine) {
    const struct convolution *c = g->of;
    if (!c->channels) return DONE; /* no terms, however many positions the kernel has */
    size_t terms = (size_t)(c->channels * g->taps);
    size_t bytes = terms * (sizeof *g->terms + sizeof *g->blocks) + (size_t)g->taps * sizeof(int64_t);
    g->terms = machine->allocate(machine->owner, bytes + 1);
    if (!g->terms) return NO_MEMORY;
    int64_t *taps = (int64_t *)(g->terms + terms);
    g->blocks = (int *)(taps + g->taps);
    place_taps(g, taps);
    if (c->slic_taps)
        order_slic(g, taps);
    else
        order_blocks(g, taps, c->block ? c->block : FLOAT_BLOCK);
    return DONE;
}

#endif
