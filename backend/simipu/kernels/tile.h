/* The product of a few rows and columns, which all products and convolutions are made of.

   A tile is up to TILE_ROWS rows times TILE_VECTORS registers of columns. With AVX-512 (6 x 4 x 16):

                    right, packed: a row of 64 columns for each channel
                    b0          b1          b2          b3            4 registers
        left  a0    sum[0][0]   sum[0][1]   sum[0][2]   sum[0][3]
        (one  a1    sum[1][0]   ...                                  24 registers
        float ..
        at a  a5    sum[5][0]   sum[5][1]   sum[5][2]   sum[5][3]
        time)

   The sums of a block stay in registers. Totals lie in memory that the first cache holds, or in registers,
   too: then a tile is multiplied one register of columns after the other. With AVX2 a tile is 6 x 2 x 8, and
   of few rows whose right side is not packed up to 1 x 8 x 8. */

#ifndef SIMIPU_TILE_H
#define SIMIPU_TILE_H

#include "kernels.h"
#include "vectors.h"

#if defined(__AVX512F__) || defined(SIMIPU_NEON)
enum { TILE_ROWS = 6, TILE_VECTORS = 4, MAX_VECTORS = TILE_VECTORS };
#elif defined(__AVX2__)
enum { TILE_ROWS = 6, TILE_VECTORS = 2, MAX_VECTORS = 8 };
#else
enum { TILE_ROWS = 4, TILE_VECTORS = 3, MAX_VECTORS = TILE_VECTORS };
#endif
enum {
    PANEL = TILE_VECTORS * LANES, /* columns of a tile */
#if defined(__AVX2__) && !defined(__AVX512F__)
    MAX_PANELS = 144 / PANEL, /* of a task: few, so that it may have more rows, for each of which less is
                                 packed */
#else
    MAX_PANELS = 256 / PANEL, /* of a task */
#endif
    MAX_COLUMNS = MAX_PANELS * PANEL,
    SHARED_ROWS = 132, /* of a task where several threads divide them: whole tiles */
#if defined(__AVX2__)
    MAX_ROWS = 2 * SHARED_ROWS, /* with AVX-512 second caches are large */
#else
    MAX_ROWS = SHARED_ROWS,
#endif
    MAX_TOTALS = MAX_ROWS * MAX_COLUMNS,
    MAX_CHANNELS = 256 /* that are packed at a time */
};

/* Registers of columns of a tile of few rows whose right side lies where it is. With AVX2 as many as make
   eight sums or more: a multiplication waits four cycles for the one before it, and two begin in each. One
   row reads whole cache lines of halves. */
INLINE int find_lying_vectors(int rows) {
    if (MAX_VECTORS == TILE_VECTORS || rows > 4) return TILE_VECTORS;
    return rows == 1 ? MAX_VECTORS : rows == 2 ? 4 : 3;
}

/* What is packed: up to MAX_CHANNELS channels, in blocks. */
struct part {
    int channels, blocks, is_first; /* is_first: totals begin at zero */
    int ends[MAX_CHANNELS];         /* of blocks; sums are rounded there */
    int offsets[MAX_CHANNELS];      /* of a channel's left, from what `take` gives */
    int are_neighbours;             /* offsets of a block follow one another, UNROLLED at a time */
    int64_t low, span; /* a convolution's: where its weights begin in a filter; 0: they lie apart */
};

/* Channels whose products are written out one after the other: a block of halves, where a loop of so few does
   not get up to speed. Their values in a row are neighbours. */
enum { UNROLLED = 16 };

static void find_neighbours(struct part *part) {
    part->are_neighbours = 1;
    for (int block = 0, first = 0; block < part->blocks; first = part->ends[block++])
        for (int channel = first + 1; channel < part->ends[block]; channel++)
            if ((channel - first) % UNROLLED)
                part->are_neighbours &= part->offsets[channel] == part->offsets[channel - 1] + 1;
}

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

INLINE ptrdiff_t bytes_of_element(enum lying lying) {
    return lying == PACKED ? sizeof(float) : lying == LYING_HALVES ? sizeof(uint16_t) : sizeof(uint8_t);
}

INLINE ptrdiff_t bytes_between(const struct panel *panel, enum lying lying) {
    return (lying == PACKED ? PANEL : panel->between) * bytes_of_element(lying);
}

INLINE V take_columns(const void *right, int column, enum lying lying, V unit) {
    switch (lying) {
    case PACKED: return v_load((const float *)right + column);
    case LYING_HALVES: return v_widen((const uint16_t *)right + column);
    default: return v_mul(unit, v_decode_halves((const uint8_t *)right + column, lying == LYING_F152));
    }
}

/* Rows of a matrix, and filters, lie too far apart for the processor to foresee which it reads next. */
enum { CHANNELS_AHEAD = 16, CACHE_LINE = 64 };

INLINE void prefetch(const void *right, ptrdiff_t between) {
    __builtin_prefetch((const void *)((uintptr_t)right + CHANNELS_AHEAD * (uintptr_t)between));
}

/* sums += a channel of the left times its row of the right. */
INLINE void multiply_channel(int rows, int vectors, const float *const *lefts, int offset, const void *right,
                             ptrdiff_t between, enum lying lying, V unit, V sums[TILE_ROWS][MAX_VECTORS]) {
    V columns[MAX_VECTORS], first = v_all(lefts[0][offset]);
    int row_bytes = MAX_VECTORS > TILE_VECTORS ? vectors * LANES * (int)bytes_of_element(lying) : 1;
    for (int at = 0; lying != PACKED && at < row_bytes; at += CACHE_LINE)
        prefetch((const char *)right + at, between);
    for (int j = 0; j < vectors; j++) {
        columns[j] = v_in_order(take_columns(right, j * LANES, lying, unit));
        if (rows == 1) sums[0][j] = v_sum_in_order(first, columns[j], sums[0][j]);
    }
    for (int i = 0; rows > 1 && i < rows; i++) {
        V value = v_in_order(v_all(lefts[i][offset]));
        for (int j = 0; j < vectors; j++) sums[i][j] = v_sum_in_order(value, columns[j], sums[i][j]);
    }
}

/* total + sum, rounded; a tile's first part begins at zero. */
INLINE void add_sum(V sum, int is_first, enum rule rule, float *total) {
    v_store(total, round_total(v_add(is_first ? v_all(0) : v_load(total), sum), rule));
}

/* Zero unless the total is infinite or NaN. */
INLINE V find_lost(V total) { return v_sub(total, total); }

/* Whether totals stay in registers as well, with few registers of columns at a time: six rows' sums and
   totals of one, and what is multiplied, are 13. The conversions of a block then run beside the products of
   the next one, in units that multiplying leaves idle; loads and stores of totals would not leave it as fast.
 */
#if defined(__AVX512F__)
enum { HOLDS_TOTALS = 1 };
#else
enum { HOLDS_TOTALS = 0 };
#endif

/* As many as make four sums or more: a multiplication waits four cycles for the one before it. */
INLINE int find_registers(int rows) { return rows >= 4 ? 1 : rows == 3 ? 2 : TILE_VECTORS; }

/* totals += left * right for some registers of columns; what `find_lost` finds in them. */
INLINE V multiply_registers(const struct part *part, int rows, int vectors, enum lying lying,
                            const float *const *lefts, const char *right, ptrdiff_t between, V unit,
                            float *totals, ptrdiff_t totals_row) {
    V held[TILE_ROWS][MAX_VECTORS], sums[TILE_ROWS][MAX_VECTORS], lost = v_all(0);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++)
            held[i][j] = part->is_first ? v_all(0) : v_load(totals + i * totals_row + j * LANES);
    for (int block = 0, channel = 0; block < part->blocks; block++) {
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < vectors; j++) sums[i][j] = v_all(0);
        for (int end = part->ends[block]; channel < end; channel++, right += between)
            multiply_channel(rows, vectors, lefts, part->offsets[channel], right, between, lying, unit, sums);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < vectors; j++) held[i][j] = v_half(v_add(held[i][j], sums[i][j]));
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) {
            v_store(totals + i * totals_row + j * LANES, held[i][j]);
            lost = v_add(lost, find_lost(held[i][j]));
        }
    return lost;
}

/* Whether totals are halves between blocks, see `multiply_narrow`. */
#if defined(__AVX2__) && !defined(__AVX512F__)
enum { HOLDS_HALVES = 1 };
#else
enum { HOLDS_HALVES = 0 };
#endif

/* sums = the products of a block of channels. */
INLINE void multiply_block(const struct part *part, int channel, int end, int rows, int vectors,
                           enum rule rule, enum lying lying, const float *const *lefts, const char *right,
                           ptrdiff_t between, V unit, V sums[TILE_ROWS][MAX_VECTORS]) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) sums[i][j] = v_all(0);
    int is_unrolled = lying == PACKED && (rule == HALVES || rule == FLOATS) && part->are_neighbours;
    for (; is_unrolled && end - channel >= UNROLLED; channel += UNROLLED, right += UNROLLED * between) {
        const float *values[TILE_ROWS];
        for (int i = 0; i < rows; i++) values[i] = lefts[i] + part->offsets[channel];
#pragma GCC unroll 16
        for (int k = 0; k < UNROLLED; k++)
            multiply_channel(rows, vectors, values, k, right + k * between, between, lying, unit, sums);
    }
    for (; channel < end; channel++, right += between)
        multiply_channel(rows, vectors, lefts, part->offsets[channel], right, between, lying, unit, sums);
}

/* The same with totals that are halves from block to block: to round them is to store them, and to widen them
   to load them, each by one instruction. */
INLINE V multiply_narrow(const struct part *part, int rows, int vectors, enum lying lying,
                         const float *const *lefts, const char *right, ptrdiff_t between, V unit,
                         float *totals, ptrdiff_t totals_row) {
    uint16_t held[TILE_ROWS][MAX_VECTORS * LANES];
    V lost = v_all(0);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++)
            v_narrow(held[i] + j * LANES,
                     part->is_first ? v_all(0) : v_load(totals + i * totals_row + j * LANES));
    for (int block = 0, channel = 0; block < part->blocks; block++) {
        V sums[TILE_ROWS][MAX_VECTORS];
        int end = part->ends[block];
        multiply_block(part, channel, end, rows, vectors, HALVES, lying, lefts, right, between, unit, sums);
        right += (end - channel) * between;
        channel = end;
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < vectors; j++)
                v_narrow(held[i] + j * LANES, v_add(v_widen(held[i] + j * LANES), sums[i][j]));
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) {
            V total = v_widen(held[i] + j * LANES);
            v_store(totals + i * totals_row + j * LANES, total);
            lost = v_add(lost, find_lost(total));
        }
    return lost;
}

/* totals += left * right, from zero where the part is the first; 0 when an infinity or NaN came out of
   HALVES, whose totals are then of no use. Once infinite, a total stays so, or is NaN. */
INLINE int multiply_tile(const struct part *part, int rows, int vectors, enum rule rule, enum lying lying,
                         const float *const *lefts, const struct panel *panel, float *totals,
                         ptrdiff_t totals_row) {
    const char *right = panel->data;
    ptrdiff_t between = bytes_between(panel, lying);
    V unit = v_all(panel->unit), lost = v_all(0);
    if (HOLDS_HALVES && rule == HALVES && part->blocks > 1)
        return v_are_zero(
            multiply_narrow(part, rows, vectors, lying, lefts, right, between, unit, totals, totals_row));
    if (HOLDS_TOTALS && rule == HALVES) {
        int most = find_registers(rows);
        for (int j = 0; j < vectors; j += most, right += most * LANES * bytes_of_element(lying))
            lost =
                v_add(lost, multiply_registers(part, rows, vectors - j < most ? vectors - j : most, lying,
                                               lefts, right, between, unit, totals + j * LANES, totals_row));
        return v_are_zero(lost);
    }
    for (int block = 0, channel = 0; block < part->blocks; block++) {
        V sums[TILE_ROWS][MAX_VECTORS];
        int end = part->ends[block];
        multiply_block(part, channel, end, rows, vectors, rule, lying, lefts, right, between, unit, sums);
        right += (end - channel) * between;
        channel = end;
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < vectors; j++)
                add_sum(sums[i][j], part->is_first && block == 0, rule, totals + i * totals_row + j * LANES);
    }
    for (int i = 0; rule == HALVES && i < rows; i++)
        for (int j = 0; j < vectors; j++)
            lost = v_add(lost, find_lost(v_load(totals + i * totals_row + j * LANES)));
    return v_are_zero(lost);
}

#endif
