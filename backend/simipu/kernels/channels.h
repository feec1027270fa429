/* Convolutions of groups of one channel, which read the field where it lies. */

#ifndef SIMIPU_CHANNELS_H
#define SIMIPU_CHANNELS_H

#include "geometry.h"

enum { STRIP = 4, MAX_MULTIPLES = 2 };

/* totals of STRIP registers of neighbours in the copied field, as in multiply_tile. */
INLINE int sum_strip(const struct geometry *g, const float *field, const float *weights, enum rule rule,
                     float *totals) {
    V total[STRIP], lost = v_all(0);
    for (int j = 0; j < STRIP; j++) total[j] = v_all(0);
    int64_t term = 0;
    for (int64_t block = 0; block < g->num_blocks; block++) {
        V sums[STRIP];
        for (int j = 0; j < STRIP; j++) sums[j] = v_all(0);
        for (int64_t end = term + g->blocks[block]; term < end; term++) {
            const float *from = field + g->terms[term].plane;
            V weight = v_all(weights[g->terms[term].weight]);
            for (int j = 0; j < STRIP; j++) sums[j] = v_sum(weight, v_load(from + j * LANES), sums[j]);
        }
        for (int j = 0; j < STRIP; j++) total[j] = round_total(v_add(total[j], sums[j]), rule);
    }
    for (int j = 0; j < STRIP; j++) {
        v_store(totals + j * LANES, total[j]);
        lost = v_add(lost, v_sub(total[j], total[j]));
    }
    return rule != HALVES || v_are_zero(lost);
}

/* Whether nothing became infinite or NaN, so that `rule` did not matter. */
static int sum_stretch(const struct geometry *g, const float *field, const float *weights, int64_t count,
                       enum rule rule, float *totals) {
    int is_fast = 1;
    for (int64_t at = 0; at < count; at += STRIP * LANES) {
        if (!g->of->block)
            sum_strip(g, field + at, weights, FLOATS, totals + at);
        else if (sum_strip(g, field + at, weights, HALVES, totals + at))
            continue;
        else if (rule == NO_OVERFLOW)
            sum_strip(g, field + at, weights, NO_OVERFLOW, totals + at);
        else
            sum_strip(g, field + at, weights, BOUNDED, totals + at);
        is_fast = 0;
    }
    return is_fast;
}

/* Some rows of the result's plane, whole ones unless it is one: rows of the field lie `sizes[2]` apart, so
   that some of what is added up is between them and is dropped. */
static void sum_rows(const struct geometry *g, const float *field, const float *weights, const int64_t *start,
                     int64_t rows, int64_t width, int64_t batch, int64_t output) {
    const struct convolution *c = g->of;
    struct operand_run operands[MAX_OPERANDS];
    float totals[RUN + STRIP * LANES];
    int64_t pitch = g->sizes[2], from = (start[0] * g->sizes[1] + start[1]) * pitch + start[2];
    int64_t column = (start[0] * c->result_sizes[1] + start[1]) * c->result_sizes[2] + start[2];
    int64_t count = (rows - 1) * pitch + width;
    int is_fast =
        sum_stretch(g, field + from, weights, count, c->nan_on_overflow ? NO_OVERFLOW : BOUNDED, totals);
    if (c->program.exception && c->block && !is_fast) {
        float told[RUN + STRIP * LANES];
        sum_stretch(g, field + from, weights, count, NO_OVERFLOW, told);
        for (int64_t row = 0; row < rows; row++) check_values(&c->program, told + row * pitch, width);
    }
    for (int64_t row = 1; row < rows; row++)
        memmove(totals + row * width, totals + row * pitch, (size_t)width * sizeof *totals);
    find_operands(&c->program, c->values, batch, output, column, operands);
    float *to = c->result + (batch * c->groups * c->outputs + output) * g->positions + column;
    run_steps(&c->program, operands, (struct source){totals, 0}, to, rows * width);
}

static void convolve_channel(void *data, size_t number) {
    const struct geometry *g = data;
    const struct convolution *c = g->of;
    int64_t group = (int64_t)number % c->groups, batch = (int64_t)number / c->groups;
    const float *field = g->field + (int64_t)number * g->plane;
    int64_t height = c->result_sizes[1], width = c->result_sizes[2], start[MAX_SPATIAL];
    int64_t rows = g->sizes[2] <= RUN ? RUN / g->sizes[2] : 1, most = g->sizes[2] <= RUN ? width : RUN;
    for (int64_t output = group * c->outputs; output < (group + 1) * c->outputs; output++) {
        float weights[MAX_TAPS];
        widen(&c->filters, output * g->taps, g->taps, weights);
        for (start[0] = 0; start[0] < c->result_sizes[0]; start[0]++)
            for (start[1] = 0; start[1] < height; start[1] += rows)
                for (start[2] = 0; start[2] < width; start[2] += most)
                    sum_rows(g, field, weights, start, height - start[1] < rows ? height - start[1] : rows,
                             width - start[2] < most ? width - start[2] : most, batch, output);
    }
}

/* Whether sums of one channel are no work for several threads. They take about as long as SLOWNESS times as
   many products of a tile, which rounds once in a block of them. */
static int is_small_sum(const struct geometry *g) {
    enum { SLOWNESS = 8 };
    const struct convolution *c = g->of;
    return SLOWNESS * (double)c->batches * c->groups * c->outputs * g->positions * g->taps < SMALL_JOB;
}

static void convolve_channels(struct geometry *g, const struct machine *machine) {
    const struct convolution *c = g->of;
    run_tasks(machine, is_small_sum(g), convolve_channel, c->batches * c->groups, g);
}

#endif
