/* Recurrent networks, some steps at a time:

       all threads       totals of the input's whole blocks of channels, for all of these steps: a product
       each thread       for each step, of its direction and rows
           tiles             totals += the rest of the input's channels, and the state's
           row by row        gates, where the totals are, and from them the new state

   Weights that are used often enough are widened once, into panels as a tile reads them. */

#include "tasks.h"

enum {
    CHUNK = 1 << 19, /* totals, at most, of the steps that are computed at a time */
    MIN_USES = 4     /* of widened weights */
};

/* Columns that are multiplied by the same left side, and the first of their panels. */
struct section {
    int64_t first, last, panel;
};

struct weave {
    const struct recurrence *of;
    int64_t gates, gate, columns; /* `gate`: columns of a gate, `columns`: of all gates */
    int64_t before, tail, depth; /* channels of the input: multiplied ahead, others; others and the state's */
    int64_t left_row, row_group, row_groups;
    int64_t done, chunk; /* steps before these, these */
    int64_t panels;      /* of a direction, of both sections: */
    struct section gated, reset;
    int num_parts, is_wide;
    struct part *parts;      /* of the channels of `depth` */
    float *wide;             /* [directions, panels, depth, PANEL]; NULL: weights stay where they lie */
    float *bias, *peepholes; /* padded; of a GRU that resets after the input's biases and the state's */
    float *lefts, *kept;     /* of each direction and row: [tail, state], and with the state reset */
    float *cells, *made;     /* of each direction and row: cells, and a new state and what is on the way */
    float *totals, *others;  /* of each direction; of a GRU that resets after those of the state */
    struct job job;
};

struct strand {
    const struct weave *weave;
    int64_t direction, row, rows, step;
    float *lefts, *kept, *cells, *made, *totals, *others;
};

static int resets_after(const struct recurrence *of) { return of->cell == CELL_GRU_RESET_AFTER; }

/* --- sums --- */

/* The right side of columns from `column` on: widened, or where the weights lie. */
static struct panel find_panel(const struct weave *weave, int64_t direction, const struct section *section,
                               int64_t channel, int64_t column) {
    const struct recurrence *of = weave->of;
    if (weave->wide) {
        int64_t panel = direction * weave->panels + section->panel + (column - section->first) / PANEL;
        return (struct panel){weave->wide + (panel * weave->depth + channel) * PANEL, PANEL, PACKED, 1};
    }
    int64_t row = direction * (of->width + of->hidden) + weave->before + channel;
    return (struct panel){of->weights + row * weave->columns + column, weave->columns, LYING_HALVES, 1};
}

/* Columns of a tile from `column` on, up to `width` of them. */
static int count_columns(const struct section *section, int64_t column, int width) {
    return section->last - column < width ? (int)(section->last - column) : width;
}

/* totals += lefts * the weights of a section. */
static void add_products(const struct strand *strand, const struct section *section, const float *lefts,
                         float *totals) {
    const struct weave *weave = strand->weave;
    int64_t channel = 0;
    int most = strand->rows < TILE_ROWS ? (int)strand->rows : TILE_ROWS;
    int width = weave->wide ? PANEL : find_lying_vectors(most) * LANES;
    for (int p = 0; p < weave->num_parts; channel += weave->parts[p++].channels)
        for (int64_t column = section->first; column < section->last; column += width) {
            int columns = count_columns(section, column, width);
            struct panel right = find_panel(weave, strand->direction, section, channel, column);
            for (int64_t row = 0; row < strand->rows; row += TILE_ROWS) {
                int rows = strand->rows - row < TILE_ROWS ? (int)(strand->rows - row) : TILE_ROWS;
                const float *some[TILE_ROWS];
                for (int i = 0; i < rows; i++) some[i] = lefts + (row + i) * weave->left_row + channel;
                multiply_panel(&weave->job, weave->parts + p, rows, columns / LANES, some, &right, columns,
                               totals + row * weave->columns + column, weave->columns);
            }
        }
}

static void widen_section(const struct weave *weave, int64_t direction, const struct section *section) {
    const struct recurrence *of = weave->of;
    struct operand weights = {of->weights, HALF, 1};
    int64_t row = direction * (of->width + of->hidden) + weave->before;
    for (int64_t column = section->first; column < section->last; column += PANEL) {
        struct panel panel = find_panel(weave, direction, section, 0, column);
        for (int64_t k = 0; k < weave->depth; k++)
            widen(&weights, (row + k) * weave->columns + column, count_columns(section, column, PANEL),
                  (float *)panel.data + k * PANEL);
    }
}

/* --- operators; all counts are of whole registers --- */

INLINE void combine(enum kind kind, int nan_on_overflow, const float *x, const float *y, float *to,
                    int64_t count) {
    for (int64_t at = 0; at < count; at += LANES) {
        V made = apply(kind, v_load(x + at), v_load(y + at), 1, nan_on_overflow);
        v_store(to + at, round_value(made, ROUNDED, nan_on_overflow));
    }
}

static void add(const struct weave *weave, float *x, const float *y, int64_t count) {
    if (weave->of->nan_on_overflow)
        combine(STEP_ADD, 1, x, y, x, count);
    else
        combine(STEP_ADD, 0, x, y, x, count);
}

static void multiply(const struct weave *weave, const float *x, const float *y, float *to, int64_t count) {
    if (weave->of->nan_on_overflow)
        combine(STEP_MULTIPLY, 1, x, y, to, count);
    else
        combine(STEP_MULTIPLY, 0, x, y, to, count);
}

static void look_up_all(const uint16_t *table, float *x, int64_t count) {
    for (int64_t at = 0; at < count; at += RUN)
        look_up(table, x + at, x + at, count - at < RUN ? count - at : RUN);
}

static void activate(const struct strand *strand, int function, float *x, int64_t count) {
    const struct recurrence *of = strand->weave->of;
    V least = v_all(-of->clip), most = v_all(of->clip);
    for (int64_t at = 0; of->clip < __builtin_inff() && at < count; at += LANES)
        v_store(x + at, v_maximum(v_minimum(v_load(x + at), most), least));
    look_up_all(of->tables[strand->direction][function], x, count);
}

/* --- cells: from the gates' sums of a row to its new state, in place of them --- */

static void look_at_cells(const struct strand *strand, int peephole, const float *cells, float *gate) {
    const struct weave *weave = strand->weave;
    if (!weave->of->peepholes) return;
    float *held = strand->made + weave->gate;
    const float *weights = weave->peepholes + (strand->direction * 3 + peephole) * weave->gate;
    multiply(weave, cells, weights, held, weave->gate);
    add(weave, gate, held, weave->gate);
}

static void run_lstm(const struct strand *strand, const float *cells, float *gates, float *made) {
    const struct weave *weave = strand->weave;
    int64_t count = weave->gate;
    float *in = gates, *out = gates + count, *kept = gates + 2 * count, *new = gates + 3 * count;
    look_at_cells(strand, 0, cells, in);
    activate(strand, 0, in, count);
    if (weave->of->is_coupled) {
        for (int64_t at = 0; at < count; at += LANES)
            v_store(kept + at,
                    round_value(v_sub(v_all(1), v_load(in + at)), ROUNDED, weave->of->nan_on_overflow));
    } else {
        look_at_cells(strand, 2, cells, kept);
        activate(strand, 0, kept, count);
    }
    activate(strand, 1, new, count);
    multiply(weave, cells, kept, kept, count);
    multiply(weave, new, in, new, count);
    add(weave, kept, new, count);
    look_at_cells(strand, 1, kept, out);
    activate(strand, 0, out, count);
    memcpy(made, kept, (size_t)count * sizeof *made);
    look_up_all(weave->of->tables[strand->direction][2], made, count);
    multiply(weave, made, out, made, count);
}

/* made = new + update * (state - new) */
static void mix(const struct weave *weave, const float *state, const float *update, const float *new,
                float *made) {
    int nan_on_overflow = weave->of->nan_on_overflow;
    for (int64_t at = 0; at < weave->gate; at += LANES) {
        V apart = v_sub(v_load(state + at), v_load(new + at));
        v_store(made + at, round_value(apart, ROUNDED, nan_on_overflow));
    }
    multiply(weave, made, update, made, weave->gate);
    add(weave, made, new, weave->gate);
}

static void run_gru_reset_after(const struct strand *strand, int64_t row, const float *state, float *gates,
                                float *made) {
    const struct weave *weave = strand->weave;
    int64_t count = weave->gate;
    float *others = strand->others + row * weave->columns;
    if (weave->of->bias)
        add(weave, others, weave->bias + (2 * strand->direction + 1) * weave->columns, 3 * count);
    add(weave, gates, others, 2 * count);
    activate(strand, 0, gates, 2 * count);
    multiply(weave, others + 2 * count, gates + count, others + 2 * count, count);
    add(weave, gates + 2 * count, others + 2 * count, count);
    activate(strand, 1, gates + 2 * count, count);
    mix(weave, state, gates, gates + 2 * count, made);
}

/* --- steps --- */

static int has_step(const struct strand *strand, int64_t row) {
    const int32_t *lengths = strand->weave->of->lengths;
    return !lengths || strand->step < lengths[strand->row + row];
}

/* A row's new state and cells, unless it has no such step, and its output. */
static void keep_state(const struct strand *strand, int64_t row, const float *made, const float *cells) {
    const struct weave *weave = strand->weave;
    const struct recurrence *of = weave->of;
    int64_t place = (strand->step * of->directions + strand->direction) * of->batch + strand->row + row;
    float *to = of->all + place * of->hidden;
    size_t bytes = (size_t)of->hidden * sizeof *to;
    if (!has_step(strand, row)) {
        memset(to, 0, bytes);
        return;
    }
    memcpy(to, made, bytes);
    memcpy(strand->lefts + row * weave->left_row + weave->tail, made, bytes);
    if (cells) memcpy(strand->cells + row * weave->gate, cells, (size_t)weave->gate * sizeof *cells);
}

static void finish_row(const struct strand *strand, int64_t row, float *gates) {
    const struct weave *weave = strand->weave;
    const float *state = strand->lefts + row * weave->left_row + weave->tail;
    float *made = strand->made, *cells = NULL;
    switch (weave->of->cell) {
    case CELL_LSTM:
        run_lstm(strand, strand->cells + row * weave->gate, gates, made);
        cells = gates + 2 * weave->gate;
        break;
    case CELL_GRU_RESET_AFTER: run_gru_reset_after(strand, row, state, gates, made); break;
    default: activate(strand, 0, gates, weave->gate); memcpy(made, gates, (size_t)weave->gate * sizeof *made);
    }
    keep_state(strand, row, made, cells);
}

static void reset_row(const struct strand *strand, int64_t row, float *gates) {
    const struct weave *weave = strand->weave;
    const float *left = strand->lefts + row * weave->left_row;
    float *kept = strand->kept + row * weave->left_row;
    activate(strand, 0, gates, 2 * weave->gate);
    memcpy(kept, left, (size_t)weave->tail * sizeof *kept);
    multiply(weave, gates + weave->gate, left + weave->tail, kept + weave->tail, weave->gate);
}

static float *gates_of(const struct strand *strand, int64_t row) {
    return strand->totals + row * strand->weave->columns;
}

static void add_biases(const struct strand *strand, float *gates, int64_t first, int64_t last) {
    const struct weave *weave = strand->weave;
    if (!weave->of->bias) return;
    const float *bias = weave->bias + 2 * strand->direction * weave->columns;
    add(weave, gates + first, bias + first, last - first);
}

static void run_gru(const struct strand *strand) {
    const struct weave *weave = strand->weave;
    int64_t gate = weave->gate;
    for (int64_t row = 0; row < strand->rows; row++) {
        add_biases(strand, gates_of(strand, row), 0, 2 * gate);
        reset_row(strand, row, gates_of(strand, row));
    }
    add_products(strand, &weave->reset, strand->kept, strand->totals);
    for (int64_t row = 0; row < strand->rows; row++) {
        float *gates = gates_of(strand, row), *state = strand->lefts + row * weave->left_row + weave->tail;
        add_biases(strand, gates, 2 * gate, 3 * gate);
        activate(strand, 1, gates + 2 * gate, gate);
        mix(weave, state, gates, gates + 2 * gate, strand->made);
        keep_state(strand, row, strand->made, NULL);
    }
}

static void run_step_of(const struct strand *strand) {
    const struct weave *weave = strand->weave;
    const struct recurrence *of = weave->of;
    for (int64_t row = 0; row < strand->rows; row++) {
        int64_t place = strand->step * of->batch + strand->row + row;
        memcpy(strand->lefts + row * weave->left_row, of->source + place * of->width + weave->before,
               (size_t)weave->tail * sizeof *of->source);
    }
    if (resets_after(of)) {
        memset(strand->others, 0, (size_t)(strand->rows * weave->columns) * sizeof *strand->others);
        add_products(strand, &weave->gated, strand->lefts, strand->others);
    } else {
        add_products(strand, &weave->gated, strand->lefts, strand->totals);
    }
    if (of->cell == CELL_GRU) {
        run_gru(strand);
        return;
    }
    for (int64_t row = 0; row < strand->rows; row++) {
        add_biases(strand, gates_of(strand, row), 0, weave->columns);
        finish_row(strand, row, gates_of(strand, row));
    }
}

static int begins_last(const struct recurrence *of, int64_t direction) {
    return direction ? 1 : of->is_reversed;
}

/* The first of the chunk's steps in a direction. */
static int64_t find_chunk(const struct weave *weave, int64_t direction) {
    return begins_last(weave->of, direction) ? weave->of->steps - weave->done - weave->chunk : weave->done;
}

static void run_strand(void *data, size_t number) {
    const struct weave *weave = data;
    const struct recurrence *of = weave->of;
    int64_t direction = (int64_t)number / weave->row_groups;
    int64_t row = (int64_t)number % weave->row_groups * weave->row_group;
    int64_t place = direction * of->batch + row;
    struct strand strand = {
        .weave = weave,
        .direction = direction,
        .row = row,
        .rows = of->batch - row < weave->row_group ? of->batch - row : weave->row_group,
        .lefts = weave->lefts + place * weave->left_row,
        .kept = weave->kept + place * weave->left_row,
        .cells = weave->cells + place * weave->gate,
        .made = weave->made + place * 2 * weave->gate,
        .others = weave->others + place * weave->columns,
    };
    int64_t first = find_chunk(weave, direction);
    for (int64_t i = 0; i < weave->chunk; i++) {
        int64_t step = begins_last(of, direction) ? weave->chunk - 1 - i : i;
        strand.step = first + step;
        int64_t place_of_totals = (direction * weave->chunk + step) * of->batch + row;
        strand.totals = weave->totals + place_of_totals * weave->columns;
        run_step_of(&strand);
    }
}

/* Totals of the channels that are multiplied ahead, of all steps of the chunk. */
static void multiply_ahead(const struct weave *weave, int64_t direction, const struct machine *machine) {
    const struct recurrence *of = weave->of;
    int64_t rows = weave->chunk * of->batch;
    struct product product = {
        .batches = 1,
        .rows = rows,
        .depth = weave->before,
        .columns = weave->columns,
        .left = {of->source + find_chunk(weave, direction) * of->batch * of->width, FLOAT, 1},
        .right = {of->weights + direction * (of->width + of->hidden) * weave->columns, HALF, 1},
        .left_row = of->width,
        .left_channel = 1,
        .right_channel = weave->columns,
        .right_column = 1,
        .block = of->block,
        .nan_on_overflow = of->nan_on_overflow,
        .program = *weave->job.program,
        .result = weave->totals + direction * rows * weave->columns,
    };
    if (weave->before)
        OF_SET(simipu_multiply)(&product, machine);
    else
        memset(product.result, 0, (size_t)(rows * weave->columns) * sizeof *product.result);
}

/* --- before and after --- */

/* Gates, or other rows of `hidden` values, each padded to `gate`. */
static void pad_rows(const struct weave *weave, const float *from, int64_t rows, float *to) {
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * weave->gate, from + i * weave->of->hidden, (size_t)weave->of->hidden * sizeof *to);
}

static void begin_direction(const struct weave *weave, int64_t direction) {
    const struct recurrence *of = weave->of;
    int64_t state = direction * of->batch;
    float *bias = weave->bias + 2 * direction * weave->columns;
    for (int side = 0; of->bias && side < 2; side++)
        pad_rows(weave, of->bias + (2 * direction + side) * weave->gates * of->hidden, weave->gates,
                 bias + side * weave->columns);
    if (of->bias && !resets_after(of)) add(weave, bias, bias + weave->columns, weave->columns);
    if (of->peepholes)
        pad_rows(weave, of->peepholes + direction * 3 * of->hidden, 3,
                 weave->peepholes + direction * 3 * weave->gate);
    if (of->cells)
        pad_rows(weave, of->cells + state * of->hidden, of->batch, weave->cells + state * weave->gate);
    for (int64_t row = 0; of->state && row < of->batch; row++)
        memcpy(weave->lefts + (state + row) * weave->left_row + weave->tail,
               of->state + (state + row) * of->hidden, (size_t)of->hidden * sizeof *of->state);
    if (weave->wide) {
        widen_section(weave, direction, &weave->gated);
        widen_section(weave, direction, &weave->reset);
    }
}

static void end_direction(const struct weave *weave, int64_t direction) {
    const struct recurrence *of = weave->of;
    size_t bytes = (size_t)of->hidden * sizeof(float);
    for (int64_t row = direction * of->batch; row < (direction + 1) * of->batch; row++) {
        memcpy(of->last + row * of->hidden, weave->lefts + row * weave->left_row + weave->tail, bytes);
        if (of->cell == CELL_LSTM)
            memcpy(of->last_cells + row * of->hidden, weave->cells + row * weave->gate, bytes);
    }
}

static void cut_depth(struct weave *weave) {
    int block = weave->of->block, most = MAX_CHANNELS / block * block;
    for (int64_t first = 0; first < weave->depth; first += most) {
        struct part *part = weave->parts + first / most;
        part->channels = weave->depth - first < most ? (int)(weave->depth - first) : most;
        part->is_first = 0; /* the input's channels came before */
        part->blocks = 0;
        for (int end = 0; end < part->channels; part->ends[part->blocks++] = end)
            end = end + block < part->channels ? end + block : part->channels;
        for (int i = 0; i < part->channels; i++) part->offsets[i] = i;
        find_neighbours(part);
    }
}

/* Memory for `count` floats, or as many bytes; counts them where there is none yet. */
static float *carve(float *memory, int64_t *used, int64_t count) {
    float *found = memory ? memory + *used : NULL;
    *used += divide_up(count, GATE_COLUMNS) * GATE_COLUMNS;
    return found;
}

static int64_t place_memory(struct weave *weave, float *memory) {
    const struct recurrence *of = weave->of;
    int64_t used = 0, states = of->directions * of->batch;
    weave->parts = (struct part *)carve(
        memory, &used, weave->num_parts * (int64_t)(sizeof *weave->parts / sizeof *memory + 1));
    weave->bias = carve(memory, &used, 2 * of->directions * weave->columns);
    weave->peepholes = carve(memory, &used, 3 * of->directions * weave->gate);
    weave->lefts = carve(memory, &used, states * weave->left_row);
    weave->kept = carve(memory, &used, states * weave->left_row);
    weave->cells = carve(memory, &used, states * weave->gate);
    int64_t cleared = used;
    weave->made = carve(memory, &used, 2 * states * weave->gate);
    weave->others = carve(memory, &used, resets_after(of) ? states * weave->columns : 0);
    weave->totals = carve(memory, &used, weave->chunk * states * weave->columns);
    if (weave->is_wide)
        weave->wide = carve(memory, &used, of->directions * weave->panels * weave->depth * PANEL + LANES);
    if (memory) memset(memory, 0, (size_t)cleared * sizeof *memory);
    return used;
}

static void size_weave(struct weave *weave, const struct machine *machine) {
    const struct recurrence *of = weave->of;
    weave->gates = count_gates(of->cell);
    weave->gate = pad_gate(of->hidden);
    weave->columns = weave->gates * weave->gate;
    weave->before = resets_after(of) ? of->width : of->width / of->block * of->block;
    weave->tail = of->width - weave->before;
    weave->depth = weave->tail + of->hidden;
    weave->left_row = weave->tail + weave->gate;
    weave->num_parts = (int)divide_up(weave->depth, MAX_CHANNELS / of->block * of->block);
    weave->gated.last = of->cell == CELL_GRU ? 2 * weave->gate : weave->columns;
    weave->reset = (struct section){weave->gated.last, weave->columns, divide_up(weave->gated.last, PANEL)};
    weave->panels = weave->reset.panel + divide_up(weave->reset.last - weave->reset.first, PANEL);
    int64_t most = CHUNK / (of->directions * of->batch * weave->columns);
    weave->chunk = most < 1 ? 1 : most < of->steps ? most : of->steps;
    int64_t groups = divide_up(count_threads(machine), of->directions);
    weave->row_group = divide_up(divide_up(of->batch, groups), TILE_ROWS) * TILE_ROWS;
    weave->row_groups = divide_up(of->batch, weave->row_group);
    int64_t uses =
        of->steps * divide_up(weave->row_group < of->batch ? weave->row_group : of->batch, TILE_ROWS);
    /* Of one row a tile is wider where the weights lie, see `find_lying_vectors`. */
    weave->is_wide = uses >= MIN_USES && (of->batch > 1 || MAX_VECTORS == TILE_VECTORS);
}

static void run_chunk(struct weave *weave, const struct machine *machine) {
    const struct recurrence *of = weave->of;
    for (int64_t direction = 0; direction < of->directions; direction++)
        multiply_ahead(weave, direction, machine);
    int64_t strands = of->directions * weave->row_groups;
    double products = (double)weave->chunk * of->batch * of->directions * weave->depth * weave->columns;
    run_tasks(machine, products < SMALL_JOB, run_strand, strands, weave);
}

enum outcome OF_SET(simipu_recur)(const struct recurrence *recurrence, const struct machine *machine) {
    static const struct program no_steps;
    struct weave weave = {.of = recurrence};
    if (!recurrence->batch) return DONE;
    weave.job = (struct job){
        .rule = recurrence->nan_on_overflow ? NO_OVERFLOW : BOUNDED, .is_rounded = 1, .program = &no_steps};
    size_weave(&weave, machine);
    float *memory = machine->allocate(machine->owner, (size_t)place_memory(&weave, NULL) * sizeof *memory);
    if (!memory) return NO_MEMORY;
    place_memory(&weave, memory);
    cut_depth(&weave);
    for (int64_t i = 0; i < recurrence->directions; i++) begin_direction(&weave, i);
    for (; weave.done < recurrence->steps; weave.done += weave.chunk) {
        if (recurrence->steps - weave.done < weave.chunk) weave.chunk = recurrence->steps - weave.done;
        run_chunk(&weave, machine);
    }
    for (int64_t i = 0; i < recurrence->directions; i++) end_direction(&weave, i);
    machine->release(machine->owner, memory);
    return DONE;
}
