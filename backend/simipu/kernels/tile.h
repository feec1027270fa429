/* The product of a few rows and columns, which all products and convolutions are made of.

   A tile is up to TILE_ROWS rows times TILE_VECTORS registers of columns. With AVX-512 (6 x 4 x 16):

                    right, packed: a row of 64 columns for each channel
                    b0          b1          b2          b3            4 registers
        left  a0    sum[0][0]   sum[0][1]   sum[0][2]   sum[0][3]
        (one  a1    sum[1][0]   ...                                  24 registers
        float ..
        at a  a5    sum[5][0]   sum[5][1]   sum[5][2]   sum[5][3]
        time)

   The sums of a block stay in registers; totals lie in memory that the first cache holds. */

#ifndef SIMIPU_TILE_H
#define SIMIPU_TILE_H

#include "kernels.h"
#include "vectors.h"

#if defined(__AVX512F__) || defined(SIMIPU_NEON)
enum { TILE_ROWS = 6, TILE_VECTORS = 4 };
#else
enum { TILE_ROWS = 4, TILE_VECTORS = 3 };
#endif
enum {
    PANEL = TILE_VECTORS * LANES, /* columns of a tile */
    MAX_PANELS = 256 / PANEL,     /* of a task */
    MAX_COLUMNS = MAX_PANELS * PANEL,
    MAX_ROWS = 132, /* of a task: whole tiles */
    MAX_TOTALS = MAX_ROWS * MAX_COLUMNS,
    MAX_CHANNELS = 256 /* that are packed at a time */
};

/* What is packed: up to MAX_CHANNELS channels, in blocks. */
struct part {
    int channels, blocks, is_first; /* is_first: totals begin at zero */
    int ends[MAX_CHANNELS];         /* of blocks; sums are rounded there */
    int offsets[MAX_CHANNELS];      /* of a channel's left, from what `take` gives */
    int64_t low, span; /* a convolution's: where its weights begin in a filter; 0: they lie apart */
};

enum rule { FLOATS, HALVES, BOUNDED, NO_OVERFLOW };
/* How totals are rounded: not at all; to halves, where no total becomes infinite; bounded; NaN for overflow.
 */

INLINE V round_total(V x, enum rule rule) {
    switch (rule) {
    case HALVES: return v_half(x);
    case BOUNDED: return v_half_bounded(x, 0);
    case NO_OVERFLOW: return v_half_or_nan(x, 0);
    default: return x;
    }
}

/* The right side of a tile: packed floats, or elements where they lie, `between` of them from channel to
   channel; of codes, what they are multiplied by as halves. */
enum lying { PACKED, LYING_HALVES, LYING_F143, LYING_F152 };

struct panel {
    const void *data;
    ptrdiff_t between;
    enum lying lying;
    float unit;
};

INLINE ptrdiff_t bytes_between(const struct panel *panel, enum lying lying) {
    if (lying == PACKED) return PANEL * sizeof(float);
    return panel->between * (ptrdiff_t)(lying == LYING_HALVES ? sizeof(uint16_t) : sizeof(uint8_t));
}

INLINE V take_columns(const void *right, int column, enum lying lying, V unit) {
    switch (lying) {
    case PACKED: return v_load((const float *)right + column);
    case LYING_HALVES: return v_widen((const uint16_t *)right + column);
    default: return v_mul(unit, v_decode_halves((const uint8_t *)right + column, lying == LYING_F152));
    }
}

/* Rows of a matrix lie too far apart for the processor to foresee which it reads next. */
enum { CHANNELS_AHEAD = 16 };

INLINE void prefetch(const void *right, ptrdiff_t between) {
    __builtin_prefetch((const void *)((uintptr_t)right + CHANNELS_AHEAD * (uintptr_t)between));
}

/* sums += a channel of the left times its row of the right. */
INLINE void multiply_channel(int rows, int vectors, const float *const *lefts, int offset, const void *right,
                             ptrdiff_t between, enum lying lying, V unit, V sums[TILE_ROWS][TILE_VECTORS]) {
    V columns[TILE_VECTORS];
    if (lying != PACKED) prefetch(right, between);
    for (int j = 0; j < vectors; j++) columns[j] = take_columns(right, j * LANES, lying, unit);
    for (int i = 0; i < rows; i++) {
        V value = v_all(lefts[i][offset]);
        for (int j = 0; j < vectors; j++) sums[i][j] = v_sum(value, columns[j], sums[i][j]);
    }
}

/* total + sum, rounded; a tile's first part begins at zero. */
INLINE void add_sum(V sum, int is_first, enum rule rule, float *total) {
    v_store(total, round_total(v_add(is_first ? v_all(0) : v_load(total), sum), rule));
}

/* A row of sums that were set aside. */
INLINE void add_row(int vectors, int is_first, enum rule rule, const float *sums, float *totals) {
    for (int j = 0; j < vectors; j++) add_sum(v_load(sums + j * LANES), is_first, rule, totals + j * LANES);
}

/* Whether the sums of a block are set aside and added to the totals, a row with each channel, while the next
   block is multiplied: with AVX-512 rounding takes the units that multiplying leaves idle. AVX2's conversions
   keep the decoder to themselves, and setting aside only adds to the work. */
#if defined(__AVX512F__)
enum { IS_ROUNDED_BEHIND = 1 };
#else
enum { IS_ROUNDED_BEHIND = 0 };
#endif

/* Channels whose products are written out one after the other: a block, where a loop of so few does not get
   up to speed. */
enum { UNROLLED = 16 };

/* totals += left * right, from zero where the part is the first; 0 when an infinity or NaN came out of
   HALVES, whose totals are then of no use. */
INLINE int multiply_tile(const struct part *part, int rows, int vectors, enum rule rule, enum lying lying,
                         const float *const *lefts, const struct panel *panel, float *totals,
                         ptrdiff_t totals_row) {
    _Alignas(64) float aside[IS_ROUNDED_BEHIND ? TILE_ROWS * PANEL : 1];
    const char *right = panel->data;
    ptrdiff_t between = bytes_between(panel, lying);
    V unit = v_all(panel->unit), lost = v_all(0);
    int channel = 0, is_unrolled = !IS_ROUNDED_BEHIND && lying == PACKED && rule == HALVES;
    for (int block = 0; block < part->blocks; block++) {
        V sums[TILE_ROWS][TILE_VECTORS];
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < vectors; j++) sums[i][j] = v_all(0);
        int end = part->ends[block], row = IS_ROUNDED_BEHIND && block ? 0 : rows;
        int was_first = part->is_first && block == 1;
        for (; row < rows && channel < end; row++, channel++, right += between) {
            multiply_channel(rows, vectors, lefts, part->offsets[channel], right, between, lying, unit, sums);
            add_row(vectors, was_first, rule, aside + row * PANEL, totals + row * totals_row);
        }
        for (; is_unrolled && channel + UNROLLED <= end; channel += UNROLLED, right += UNROLLED * between) {
#pragma GCC unroll 16
            for (int k = 0; k < UNROLLED; k++)
                multiply_channel(rows, vectors, lefts, part->offsets[channel + k], right + k * between,
                                 between, lying, unit, sums);
        }
        for (; channel < end; channel++, right += between)
            multiply_channel(rows, vectors, lefts, part->offsets[channel], right, between, lying, unit, sums);
        for (; row < rows; row++)
            add_row(vectors, was_first, rule, aside + row * PANEL, totals + row * totals_row);
        int is_last = block + 1 == part->blocks, is_first = part->is_first && block == 0;
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < vectors; j++) {
                float *total = totals + i * totals_row + j * LANES;
                if (IS_ROUNDED_BEHIND && !is_last)
                    v_store(aside + i * PANEL + j * LANES, sums[i][j]);
                else
                    add_sum(sums[i][j], is_first, rule, total);
            }
    }
    /* Once infinite, a total stays so, or is NaN. */
    for (int i = 0; rule == HALVES && i < rows; i++)
        for (int j = 0; j < vectors; j++) {
            V total = v_load(totals + i * totals_row + j * LANES);
            lost = v_add(lost, v_sub(total, total));
        }
    return v_are_zero(lost);
}

#endif
