/* What the kernels compute: products, convolutions and chains of elementwise steps, in the chip's arithmetic.

   Values that are halves or of 8 bits on the chip are floats here (each is exact); operands that are weights
   may lie in memory as halves or 8-bit codes, and are widened where they are used.

   The order of a sum with partials in half. The products of one block (16 channels, 32 of 8-bit operands) are
   added up in float, one after the other in the order of channels, from zero; the block's sum is added to
   what the result has so far, which begins at zero, and that is rounded to half, to nearest even:

       total = 0;  for each block: sum = 0;  for each channel: sum += left * right;  total = half(total + sum)

   A product of two such operands is exact in float, so that fused and separate additions give the same bits.
   Convolutions take blocks of channels, in each the kernel positions in row-major order, in each the
   channels; with few channels, rows of the kernel are channels (`packed_rows`); with groups of up to four
   channels a block is up to four positions of a kernel row, position by position, in each the channels. */

#ifndef SIMIPU_KERNELS_H
#define SIMIPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum element { FLOAT, HALF, F143, F152 };
/* How an operand lies in memory. F143 and F152 are codes of a byte, without their tensor's scale. */

struct operand {
    const void *data;
    enum element element;
    float unit; /* what codes are multiplied by: 2 to the power of their scale; 1 otherwise */
};

/* --- steps: what becomes of a value after it was computed, element by element, in this order --- */

enum kind {
    STEP_NONE,     /* x */
    STEP_ADD,      /* x + y */
    STEP_SUBTRACT, /* x - y */
    STEP_TAKE,     /* y - x */
    STEP_MULTIPLY, /* x * y */
    STEP_DIVIDE,   /* x / y */
    STEP_UNDER,    /* y / x */
    STEP_MAXIMUM,  /* max(x, y); NaN where one is (as ONNX has it) */
    STEP_MINIMUM,  /* min(x, y); likewise */
    STEP_TABLE, /* y[bits of x as a half]; y: 65,536 halves, x is one exactly; `number`: an enum function */
    STEP_F143,  /* x rounded to F143 times `number`, 2 to the power of a scale */
    STEP_F152   /* the same of F152 */
};

/* What a table is known to hold for finite halves; for others it may hold anything. */
enum function { ANY_FUNCTION, HARD_SWISH /* see `v_hard_swish` */ };

enum rounding {
    KEPT,    /* no rounding: the result is a half already, or stays a float */
    ROUNDED, /* to half, to nearest even; too large: see `nan_on_overflow` */
    GROWING, /* the same, but an infinity is an overflow whatever it was before */
    PLAIN    /* to half, where nothing is too large: infinities stay */
};

struct step {
    enum kind kind;
    enum rounding rounding;
    int operand; /* which of the operands y is; -1: `number` */
    float number;
};

enum { MAX_OPERANDS = 64, MAX_BLOCK = 128 };

struct program {
    int num_steps, nan_on_overflow;
    const struct step *steps;
    int *exception; /* NULL, or set to 1 where an exception is: */
};
/* a value is NaN, a finite one is rounded that is too large for half, or an infinity comes of finite ones (of
   a GROWING step: of any).

   Too large values become the largest half with their sign, with nan_on_overflow NaN. Infinities of a ROUNDED
   step stay; of a GROWING step they are too large. */

/* An operand of a step, by where its element for an element of the result lies. */
struct values {
    const void *data; /* floats; halves where `is_half` (tables are halves always) */
    int is_half;
    int64_t batch, row, column; /* elements from batch to batch, row to row, column to column; 0: broadcast */
};

/* --- the machine: threads and memory are the caller's --- */

struct machine {
    void *owner;
    /* Calls work(data, i) for each i below `count`, on as many threads as there are; returns when all are
     * done. */
    void (*parallel)(void *owner, void (*work)(void *data, size_t i), size_t count, void *data);
    void *(*allocate)(void *owner, size_t bytes); /* at a multiple of 64; NULL: there is none */
    void (*release)(void *owner, void *memory);
    int threads; /* that `parallel` works on; 0: nobody knows */
};

enum outcome { DONE, NO_MEMORY };

/* --- products --- */

/* result[b, i, j] = steps(sum over k of left[b, i, k] * right[b, k, j]) */
struct product {
    int64_t batches, rows, depth, columns;
    struct operand left, right;
    /* Elements from one row (i) and one channel (k) of the left to the next, from one channel (k) and one
       column (j) of the right; one of each pair is 1. */
    int64_t left_row, left_channel, right_channel, right_column;
    /* Where each batch begins, in elements; NULL: all at 0. */
    const int64_t *left_starts, *right_starts;
    int block; /* channels after which a sum is rounded, up to MAX_BLOCK; 0: sums stay floats, in any order
                */
    int nan_on_overflow;
    struct program program;
    const struct values *values; /* of the program's operands: a batch is b, a row i, a column j */
    float *result;
};

enum outcome simipu_multiply(const struct product *product, const struct machine *machine);

/* --- convolutions --- */

enum { MAX_SPATIAL = 3, MAX_TAPS = 1024 };

/* Neighbouring channels that lie together where a tensor's channels are in blocks:

       plain        [batches, channels, positions]
       in blocks    [batches, channels / CHANNEL_BLOCK, positions, CHANNEL_BLOCK] */
enum { CHANNEL_BLOCK = 16 };

/* result[n, o, ...] as ONNX's Conv; unused spatial axes, the leading ones, are of size 1. Transposed forms
   are this one of a field with zeros between its positions. */
struct convolution {
    int64_t batches, groups, channels, outputs; /* channels and outputs of one group */
    int64_t field[MAX_SPATIAL], kernel[MAX_SPATIAL], result_sizes[MAX_SPATIAL];
    int64_t strides[MAX_SPATIAL], dilations[MAX_SPATIAL], before[MAX_SPATIAL]; /* zeros before the field */
    struct operand source, filters; /* [batches, groups * channels, ...], [groups * outputs, channels, ...] */
    int block;                      /* as of a product; 0: sums stay floats */
    int packed_axis;                /* the spatial axis that is the model's first, whose rows are packed */
    int packed_rows;                /* kernel rows that are taken for channels: 1, 2 or 4 */
    int slic_taps; /* 0, or with groups of few channels the kernel positions of a block; their channels
                      together are at most `block`, which is not 0 */
    int is_source_blocked, is_result_blocked; /* see `can_be_blocked`; such a source is of floats */
    int nan_on_overflow;
    struct program program;
    const struct values *values; /* a batch is n, a row an output channel (of all groups), a column a
                                    position; one that has all three lies as the result */
    float *result;
};

/* Whether the channels of the source or the result may be in blocks: of whole blocks, in one group, or in
   groups of one channel that make one each. No result is then broadcast along its channels only. */
static inline int can_be_blocked(const struct convolution *c) {
    int64_t taps = c->kernel[0] * c->kernel[1] * c->kernel[2];
    if (c->is_source_blocked && c->groups * c->channels % CHANNEL_BLOCK) return 0;
    if (c->is_result_blocked && c->groups * c->outputs % CHANNEL_BLOCK) return 0;
    return c->groups == 1 || (c->channels == 1 && c->outputs == 1 && taps <= MAX_TAPS);
}

enum outcome simipu_convolve(const struct convolution *convolution, const struct machine *machine);

/* --- chains --- */

enum { MAX_CHAIN_AXES = 6 };

/* result = steps(source), of any shapes that broadcast; axes of one stride are joined by the caller. */
struct chain {
    int rank;
    int64_t sizes[MAX_CHAIN_AXES];
    int64_t source_strides[MAX_CHAIN_AXES]; /* in elements; 0: broadcast. The last is 0 or 1. */
    const void *source;
    int source_is_half;
    struct program program;
    /* As `values`, of which only data and is_half are looked at, and their strides along all axes. */
    const struct values *values;
    const int64_t (*value_strides)[MAX_CHAIN_AXES];
    float *result; /* may be the source where that has the same shape and floats */
};

enum outcome simipu_run_chain(const struct chain *chain, const struct machine *machine);

/* --- recurrent networks --- */

enum cell { CELL_RNN, CELL_LSTM, CELL_GRU, CELL_GRU_RESET_AFTER };
enum { GATE_COLUMNS = 16, MAX_DIRECTIONS = 2, MAX_FUNCTIONS = 3 };

/* LSTM, GRU and RNN as ONNX has them, each operator rounded to half. With a = [x, h] W + b for all gates:

       LSTM   i, o, f = f(a), g = g(a);   c' = f c + i g;   h' = o h(c')
       GRU    z, r = f(a), n = g([x, r h] W + b);   h' = n + z (h - n)
       RNN    h' = f(a)

   A GRU that resets after has n = g((x W + b) + r (h R + b')), and separate sums for z and r, too. Otherwise
   the channels of the input and the state are one sum, and so are the biases. */
struct recurrence {
    enum cell cell;
    int64_t directions, steps, batch, width, hidden;
    int is_reversed; /* the first direction begins at the last step; a second one always does */
    int is_coupled;  /* LSTM: f is 1 - i */
    int block, nan_on_overflow;
    float clip;          /* bound of what the gates' functions are applied to; infinite: none */
    const float *source; /* [steps, batch, width] */
    /* [directions, width + hidden, gates * columns]: gates in ONNX's order, the columns of each padded to
       GATE_COLUMNS */
    const uint16_t *weights;
    const float *bias;                      /* [directions, 2 * gates * hidden]; NULL: none */
    const int32_t *lengths;                 /* [batch]: steps of each row; NULL: all */
    const float *state, *cells, *peepholes; /* [directions, batch, hidden], the same, [directions, 3 * hidden]
                                               of i, o, f; NULL: zeros, none */
    const uint16_t *tables[MAX_DIRECTIONS][MAX_FUNCTIONS]; /* of f, g, h: see STEP_TABLE */
    float *all, *last, *last_cells; /* [steps, directions, batch, hidden], [directions, batch, hidden] */
};

enum outcome simipu_recur(const struct recurrence *recurrence, const struct machine *machine);

/* The number of gates of a cell, and of a gate's columns. */
static inline int64_t count_gates(enum cell cell) { return cell == CELL_RNN ? 1 : cell == CELL_LSTM ? 4 : 3; }
static inline int64_t pad_gate(int64_t hidden) {
    return (hidden + GATE_COLUMNS - 1) / GATE_COLUMNS * GATE_COLUMNS;
}

/* Which instructions are used: "avx512", "avx2" or "portable"; the environment variable SIMIPU_KERNELS names
   one of them to use instead where the machine has it. */
const char *simipu_instructions(void);

#endif
