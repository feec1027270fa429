/* A product cut into tasks for threads: some rows times some columns of one batch. What is multiplied comes
   from a `supply`, which a product and a convolution each have their own of.

       for each part of the channels:        right (packed floats, second cache)
           pack the right side          +----------+----------+ ...
           for each tile of rows:       | panel 0  | panel 1  |    up to 256 channels x 256 columns
               take the left side       +----------+----------+
               for each panel: tile     totals: up to MAX_ROWS x 256 columns, rounded after each block
       then steps, row by row, into the result */

#ifndef SIMIPU_TASKS_H
#define SIMIPU_TASKS_H

#include "steps.h"
#include "tile.h"

struct supply {
    /* The channels of the part that begins at `first`, after those before it. 0: there are none left. */
    int (*cut)(struct supply *supply, int64_t first, struct part *part);
    /* A panel of up to PANEL columns from `column` on for `rows` of the left: packed into `held`, PANEL
       floats for each channel with zeros up to whole registers, of which it may write LANES too many, or
       where it lies. */
    struct panel (*pack)(struct supply *supply, const struct part *part, int64_t first, int64_t column,
                         int columns, int rows, float *held);
    /* Rows of the left: where the offsets of each count from. */
    void (*take)(struct supply *supply, const struct part *part, int64_t first, int64_t row, int rows,
                 float *held, const float **lefts);
};

struct job {
    int64_t batches, groups, rows, columns; /* rows and columns of a group */
    int is_turned;                          /* rows of the result are the job's columns */
    int is_blocked;                         /* so they are, and they are channels in blocks */
    int64_t row_blocks, row_block, column_blocks, column_block;
    enum rule rule; /* of totals that became infinite */
    int is_rounded;
    int lying_rows; /* a task of up to so many rows packs nothing of its right side */
    const struct program *program;
    const struct values *values;
    float *result;
    /* Makes a task's supply in memory of SUPPLY_BYTES. */
    struct supply *(*supply)(const void *owner, int64_t batch, int64_t group, void *held);
    const void *owner;
};

enum { SUPPLY_BYTES = 8192, HELD_CHANNELS = 2048 };

typedef int tile_function(const struct part *, const float *const *, const struct panel *, float *,
                          ptrdiff_t);

#define TILE_OF(name, rows, vectors, rule, lying)                                                            \
    static int name##rows##x##vectors(const struct part *part, const float *const *lefts,                    \
                                      const struct panel *right, float *totals, ptrdiff_t pitch) {           \
        return multiply_tile(part, rows, vectors, rule, lying, lefts, right, totals, pitch);                 \
    }
#define TILE(rows, vectors)                                                                                  \
    TILE_OF(tile_h, rows, vectors, HALVES, PACKED)                                                           \
    TILE_OF(tile_f, rows, vectors, FLOATS, PACKED)
#define LYING_TILE(rows, vectors)                                                                            \
    TILE_OF(tile_hh, rows, vectors, HALVES, LYING_HALVES)                                                    \
    TILE_OF(tile_fh, rows, vectors, FLOATS, LYING_HALVES)
#define CODE_TILE(rows, vectors)                                                                             \
    TILE_OF(tile_h143_, rows, vectors, HALVES, LYING_F143)                                                   \
    TILE_OF(tile_h152_, rows, vectors, HALVES, LYING_F152)                                                   \
    TILE_OF(tile_f143_, rows, vectors, FLOATS, LYING_F143)                                                   \
    TILE_OF(tile_f152_, rows, vectors, FLOATS, LYING_F152)
#define TO_1(T, i) T(i, 1)
#define TO_2(T, i) TO_1(T, i) T(i, 2)
#define TO_3(T, i) TO_2(T, i) T(i, 3)
#define TO_4(T, i) TO_3(T, i) T(i, 4)
#define TO_8(T, i) TO_4(T, i) T(i, 5) T(i, 6) T(i, 7) T(i, 8)
/* ROWS(M, T): M of each number of rows; LYING_ROWS: of tiles whose right side lies where it is. */
#if defined(__AVX512F__) || defined(SIMIPU_NEON)
#define ROWS(M, T) M(TO_4, T, 1) M(TO_4, T, 2) M(TO_4, T, 3) M(TO_4, T, 4) M(TO_4, T, 5) M(TO_4, T, 6)
#define LYING_ROWS ROWS
#define ROW_OF_CODES TO_4
#elif defined(__AVX2__)
#define ROWS(M, T) M(TO_2, T, 1) M(TO_2, T, 2) M(TO_2, T, 3) M(TO_2, T, 4) M(TO_2, T, 5) M(TO_2, T, 6)
#define LYING_ROWS(M, T) M(TO_8, T, 1) M(TO_4, T, 2) M(TO_3, T, 3) M(TO_3, T, 4) M(TO_2, T, 5) M(TO_2, T, 6)
#define ROW_OF_CODES TO_8
#else
#define ROWS(M, T) M(TO_3, T, 1) M(TO_3, T, 2) M(TO_3, T, 3) M(TO_3, T, 4)
#define LYING_ROWS ROWS
#define ROW_OF_CODES TO_3
#endif
#define ALL(to, T, i) to(T, i)
#define LIST(to, T, i) {to(T, i)},
#define NAME_H(i, j) tile_h##i##x##j,
#define NAME_F(i, j) tile_f##i##x##j,
#define NAME_HH(i, j) tile_hh##i##x##j,
#define NAME_FH(i, j) tile_fh##i##x##j,
#define NAME_H143(i, j) tile_h143_##i##x##j,
#define NAME_H152(i, j) tile_h152_##i##x##j,
#define NAME_F143(i, j) tile_f143_##i##x##j,
#define NAME_F152(i, j) tile_f152_##i##x##j,
ROWS(ALL, TILE)
LYING_ROWS(ALL, LYING_TILE)
ROW_OF_CODES(CODE_TILE, 1)
/* By what lies there, rows and registers: of codes one row only, for more are packed. */
static tile_function *const HALF_TILES[][TILE_ROWS][MAX_VECTORS] = {{ROWS(LIST, NAME_H)},
                                                                    {LYING_ROWS(LIST, NAME_HH)},
                                                                    {{ROW_OF_CODES(NAME_H143, 1)}},
                                                                    {{ROW_OF_CODES(NAME_H152, 1)}}};
static tile_function *const FLOAT_TILES[][TILE_ROWS][MAX_VECTORS] = {{ROWS(LIST, NAME_F)},
                                                                     {LYING_ROWS(LIST, NAME_FH)},
                                                                     {{ROW_OF_CODES(NAME_F143, 1)}},
                                                                     {{ROW_OF_CODES(NAME_F152, 1)}}};

/* The slow way, where totals became infinite or NaN: from the totals before, with the rule for overflow. */
static void multiply_again(const struct part *part, int rows, int vectors, enum rule rule,
                           const float *const *lefts, const struct panel *right, float *totals,
                           ptrdiff_t pitch) {
    if (rule == BOUNDED)
        multiply_tile(part, rows, vectors, BOUNDED, right->lying, lefts, right, totals, pitch);
    else
        multiply_tile(part, rows, vectors, NO_OVERFLOW, right->lying, lefts, right, totals, pitch);
}

static void multiply_panel(const struct job *job, const struct part *part, int rows, int vectors,
                           const float *const *lefts, const struct panel *right, int columns, float *totals,
                           ptrdiff_t pitch) {
    if (!job->is_rounded) {
        FLOAT_TILES[right->lying][rows - 1][vectors - 1](part, lefts, right, totals, pitch);
        return;
    }
    float before[TILE_ROWS][MAX_VECTORS * LANES];
    size_t bytes = (size_t)vectors * LANES * sizeof(float);
    for (int i = 0; i < rows && !part->is_first; i++) memcpy(before[i], totals + i * pitch, bytes);
    if (HALF_TILES[right->lying][rows - 1][vectors - 1](part, lefts, right, totals, pitch)) return;
    /* Where exceptions matter, once more with the rule that tells: NaN for what overflows. */
    for (int is_check = job->program->exception != NULL; is_check >= 0; is_check--) {
        for (int i = 0; i < rows && !part->is_first; i++) memcpy(totals + i * pitch, before[i], bytes);
        multiply_again(part, rows, vectors, is_check ? NO_OVERFLOW : job->rule, lefts, right, totals, pitch);
        for (int i = 0; is_check && i < rows; i++) check_values(job->program, totals + i * pitch, columns);
    }
}

/* Rows count through all groups. */
static void finish_rows(const struct job *job, int64_t batch, int64_t row, int rows, int64_t column,
                        int columns, const float *totals, ptrdiff_t pitch) {
    struct operand_run operands[MAX_OPERANDS];
    for (int i = 0; i < rows; i++) {
        find_operands(job->program, job->values, batch, row + i, column, operands);
        float *to = job->result + (batch * job->groups * job->rows + row + i) * job->columns + column;
        run_steps(job->program, operands, (struct source){totals + i * pitch, 0}, to, columns);
    }
}

/* The same where columns of the job are rows of the result. */
static void finish_columns(const struct job *job, int64_t batch, int64_t row, int rows, int64_t column,
                           int columns, const float *totals, ptrdiff_t pitch) {
    struct operand_run operands[MAX_OPERANDS];
    float run[MAX_ROWS];
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) run[j] = totals[j * pitch + i];
        find_operands(job->program, job->values, batch, row + i, column, operands);
        float *to = job->result + (batch * job->groups * job->columns + row + i) * job->rows + column;
        run_steps(job->program, operands, (struct source){run, 0}, to, columns);
    }
}

/* The same where they are channels in blocks: whole ones. */
static void finish_blocks(const struct job *job, int64_t batch, int64_t channel, int channels,
                          int64_t position, int count, const float *totals, ptrdiff_t pitch) {
    struct operand_run operands[MAX_OPERANDS];
    for (int block = 0; block < channels; block += CHANNEL_BLOCK)
        for (int first = 0; first < count; first += RUN / CHANNEL_BLOCK) {
            int some = count - first < RUN / CHANNEL_BLOCK ? count - first : RUN / CHANNEL_BLOCK;
            float *to = job->result + (batch * job->columns + channel + block) * job->rows +
                        (position + first) * CHANNEL_BLOCK;
            find_blocked_operands(job->program, job->values, batch, channel + block, position + first,
                                  operands);
            run_steps(job->program, operands, (struct source){totals + first * pitch + block, pitch}, to,
                      some * CHANNEL_BLOCK);
        }
}

static void run_task(void *data, size_t number) {
    const struct job *job = data;
    int64_t column = (int64_t)number % job->column_blocks * job->column_block;
    int64_t row = (int64_t)number / job->column_blocks % job->row_blocks * job->row_block;
    int64_t group = (int64_t)number / job->column_blocks / job->row_blocks % job->groups;
    int64_t batch = (int64_t)number / job->column_blocks / job->row_blocks / job->groups;
    int columns =
        (int)(job->columns - column < job->column_block ? job->columns - column : job->column_block);
    int rows = (int)(job->rows - row < job->row_block ? job->rows - row : job->row_block);
    _Alignas(64) float totals[MAX_TOTALS], right[MAX_PANELS * MAX_CHANNELS * PANEL + LANES];
    _Alignas(64) float held[TILE_ROWS * (HELD_CHANNELS + LANES)];
    _Alignas(64) char supply_memory[SUPPLY_BYTES];
    struct part part;

    struct supply *supply = job->supply(job->owner, batch, group, supply_memory);
    /* Panels of about as many registers each, and tiles of about as many rows. */
    int registers = (columns + LANES - 1) / LANES, pitch = registers * LANES,
        widest = rows <= job->lying_rows ? find_lying_vectors(rows) : TILE_VECTORS,
        panels = (registers + widest - 1) / widest, tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    int starts[MAX_PANELS + 1];
    struct panel packed[MAX_PANELS];
    for (int panel = 0; panel <= panels; panel++) starts[panel] = registers * panel / panels * LANES;
    int64_t first = 0;
    for (; supply->cut(supply, first, &part); first += part.channels) {
        part.is_first = first == 0;
        find_neighbours(&part);
        ptrdiff_t size = part.channels * PANEL;
        for (int panel = 0; panel < panels; panel++) {
            int end = starts[panel + 1] < columns ? starts[panel + 1] : columns;
            packed[panel] = supply->pack(supply, &part, first, column + starts[panel], end - starts[panel],
                                         rows, right + panel * size);
        }
        for (int tile = 0; tile < tiles; tile++) {
            int i = rows * tile / tiles, some = rows * (tile + 1) / tiles - i;
            const float *lefts[TILE_ROWS];
            supply->take(supply, &part, first, row + i, some, held, lefts);
            for (int panel = 0; panel < panels; panel++) {
                int end = starts[panel + 1] < columns ? starts[panel + 1] : columns;
                multiply_panel(job, &part, some, (starts[panel + 1] - starts[panel]) / LANES, lefts,
                               packed + panel, end - starts[panel], totals + i * pitch + starts[panel],
                               pitch);
            }
        }
    }
    if (!first) memset(totals, 0, (size_t)rows * pitch * sizeof *totals); /* sums of nothing */
    if (job->is_blocked)
        finish_blocks(job, batch, column, columns, row, rows, totals, pitch);
    else if (job->is_turned)
        finish_columns(job, batch, group * job->columns + column, columns, row, rows, totals, pitch);
    else
        finish_rows(job, batch, group * job->rows + row, rows, column, columns, totals, pitch);
}

/* A register of neighbouring elements of any kind, exactly; zeros after `count`. */
INLINE V take_some(const struct operand *from, int64_t at, int64_t count) {
    const uint8_t *codes = (const uint8_t *)from->data + at;
    uint8_t some[LANES] = {0};
    int is_f152 = from->element == F152;
    switch (from->element) {
    case FLOAT: return load_some((const float *)from->data + at, count);
    case HALF: return widen_some((const uint16_t *)from->data + at, count);
    default:
        if (count < LANES) codes = memcpy(some, codes, (size_t)count);
        return v_mul(v_all(unit_of_halves(from->unit, is_f152)), v_decode_halves(codes, is_f152));
    }
}

/* The same for many. */
static void widen(const struct operand *from, int64_t at, int64_t count, float *to) {
    if (from->element == FLOAT) {
        memcpy(to, (const float *)from->data + at, (size_t)count * sizeof *to);
        return;
    }
    int64_t i = 0;
    const uint8_t *codes = (const uint8_t *)from->data + at;
    V unit = v_all(unit_of_halves(from->unit, from->element == F152));
    if (from->element == HALF)
        for (; i + LANES <= count; i += LANES)
            v_store(to + i, v_widen((const uint16_t *)from->data + at + i));
    else if (from->element == F143)
        for (; i + LANES <= count; i += LANES) v_store(to + i, v_mul(unit, v_decode_halves(codes + i, 0)));
    else
        for (; i + LANES <= count; i += LANES) v_store(to + i, v_mul(unit, v_decode_halves(codes + i, 1)));
    for (; i < count; i += LANES) store_some(to + i, take_some(from, at + i, count - i), count - i);
}

/* A panel of columns that lie `between` elements apart, each one's channels neighbours: turned, LANES of both
   at a time. `columns` <= PANEL; what is missing are zeros. `places` says which row of the panel each channel
   is; -1: none. */
static void pack_turned(const struct operand *from, int64_t start, int64_t between, int channels,
                        const int *places, int columns, float *panel) {
    for (int j = 0; j < PANEL; j += LANES)
        for (int k = 0; k < channels && j < columns; k += LANES) {
            V rows[LANES];
            int some = channels - k < LANES ? channels - k : LANES;
            int64_t at = start + j * between + k;
            if (from->element == HALF && some == LANES && j + LANES <= columns) {
                const uint16_t *halves = (const uint16_t *)from->data + at;
                for (int i = 0; i < LANES; i++) {
                    prefetch(halves + i * between, between * (ptrdiff_t)sizeof *halves);
                    rows[i] = v_widen(halves + i * between);
                }
            } else if (from->element == FLOAT && some == LANES && j + LANES <= columns) {
                const float *floats = (const float *)from->data + at;
                for (int i = 0; i < LANES; i++) rows[i] = v_load(floats + i * between);
            } else {
                for (int i = 0; i < LANES; i++)
                    rows[i] = j + i < columns ? take_some(from, at + i * between, some) : v_all(0);
            }
            v_turn(rows);
            for (int i = 0; i < some; i++)
                if (places[k + i] >= 0) v_store(panel + places[k + i] * PANEL + j, rows[i]);
        }
}

INLINE int64_t divide_up(int64_t x, int64_t y) { return (x + y - 1) / y; }

#ifndef SIMIPU_SMALL_JOB
#define SIMIPU_SMALL_JOB (1 << 19)
#endif

enum {
    SUPPOSED_THREADS = 4,         /* where nobody knows */
    TASKS_OF_THREAD = 4,          /* that it has something to do to the end */
    SMALL_JOB = SIMIPU_SMALL_JOB, /* products that are no work for several threads, */
    SMALL_TASK = 1 << 20,         /* and no work for one where they can be avoided */
    PACKING = 8,                  /* products that take as long as packing a value of the right side, */
    FINISHING = 32,               /* and as the steps of a result */
};

static int count_threads(const struct machine *machine) {
    return machine->threads ? machine->threads : SUPPOSED_THREADS;
}

/* work(data, i) for each i below `count`: in this thread if it is a small job. */
static void run_tasks(const struct machine *machine, int is_small, void (*work)(void *data, size_t i),
                      int64_t count, void *data) {
    if (!is_small) machine->parallel(machine->owner, work, (size_t)count, data);
    for (int64_t i = 0; is_small && i < count; i++) work(data, (size_t)i);
}

/* Rows of a task: as many whole tiles as there is room for totals of, and with plain results no more than a
   run of `finish_columns`. */
static int64_t find_max_rows(const struct job *job, int64_t max_rows) {
    int64_t most = job->is_blocked ? max_rows * MAX_COLUMNS / job->column_block : max_rows;
    return most / TILE_ROWS * TILE_ROWS;
}

/* Cuts and runs it: blocks as wide as leaves all threads something to do. */
static void run_job(struct job *job, int64_t depth, const struct machine *machine) {
    int64_t batches = job->batches * job->groups;
    if (!batches || !job->rows || !job->columns) return;
    int64_t unit = job->is_blocked && PANEL % CHANNEL_BLOCK ? CHANNEL_BLOCK : PANEL;
    int64_t threads = count_threads(machine), most = MAX_COLUMNS / unit;
    int64_t max_rows = threads > 1 ? SHARED_ROWS : MAX_ROWS;
    int64_t units = divide_up(job->columns, unit), row_blocks = divide_up(job->rows, max_rows);
    int64_t wide = threads > 1 ? units * row_blocks * batches / (threads * TASKS_OF_THREAD) : most;
    wide = wide < 1 ? 1 : wide > most ? most : wide;
    job->column_blocks = divide_up(units, wide);
    job->column_block = divide_up(units, job->column_blocks) * unit;
    row_blocks = divide_up(job->rows, find_max_rows(job, max_rows));
    double products = (double)batches * job->rows * job->columns * depth;
    while (threads > 1 && job->column_blocks * row_blocks * batches < 2 * threads &&
           job->rows / row_blocks > 6 * TILE_ROWS &&
           products / (job->column_blocks * row_blocks * batches) > SMALL_TASK)
        row_blocks++;
    job->row_block = divide_up(divide_up(job->rows, row_blocks), TILE_ROWS) * TILE_ROWS;
    job->row_blocks = divide_up(job->rows, job->row_block);
    int64_t tasks = job->column_blocks * job->row_blocks * batches;
    double others = (double)batches * job->columns * (PACKING * depth + FINISHING * job->rows);
    run_tasks(machine, products + others < SMALL_JOB || tasks == 1, run_task, tasks, job);
}

#endif
