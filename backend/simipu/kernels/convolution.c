/* Convolutions: a product of the filters' rows with the field's windows, packed position by position; and groups of
   one channel, which read the field where it lies.

   The field is first copied with its padding, each axis cut into its `strides` phases, so that what a position of
   the kernel meets are neighbours:

       padded axis   0 a b c d e 0     stride 2: phase 0: 0 b d 0, phase 1: a c e
       kernel position 0 meets phase 0 from its 0th on, position 1 phase 1 from its 0th, position 2 phase 0 from 1 */

#include "tasks.h"

/* A product of a sum: where its windows begin in a group's field, and its weight in a filter. */
struct term {
    int64_t plane, weight;
};

struct geometry {
    const struct convolution *of;
    int64_t sizes[MOST_SPATIAL], phases[MOST_SPATIAL]; /* of a phase; how many */
    int64_t plane;     /* floats of a channel, all phases */
    int64_t positions; /* of the result */
    int64_t taps;
    const float *field;
    float *copy;          /* the field, if it had to be copied */
    struct term *terms;   /* in the order of the sum */
    int64_t num_terms;
    int *blocks;          /* how many terms each block has */
    int64_t num_blocks;
    int64_t unit;         /* terms that a part had better not divide; 0: as it comes */
};

/* --- the field ---------------------------------------------------------------------------------------------- */

static int64_t reach(const struct convolution *c, int axis) { return (c->kernel[axis] - 1) * c->dilations[axis]; }

static void measure(struct geometry *g) {
    const struct convolution *c = g->of;
    g->plane = g->positions = g->taps = 1;
    for (int axis = 0; axis < MOST_SPATIAL; axis++) {
        g->phases[axis] = c->kernel[axis] > 1 ? c->strides[axis] : 1;
        g->sizes[axis] = c->result_sizes[axis] + reach(c, axis) / c->strides[axis];
        g->plane *= g->phases[axis] * g->sizes[axis];
        g->positions *= c->result_sizes[axis];
        g->taps *= c->kernel[axis];
    }
}

static int is_copied(const struct geometry *g) {
    const struct convolution *c = g->of;
    for (int axis = 0; axis < MOST_SPATIAL; axis++)
        if (c->strides[axis] != 1 || c->before[axis] || c->field[axis] != g->sizes[axis]) return 1;
    return c->source.element != FLOAT;
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
        for (int64_t x = first; x < last; x += LANES) store_some(to + x, load_some(floats + x, last - x), last - x);
    else if (step == 1)
        widen(&c->source, from + first - before, last - first, to + first);
    else if (c->source.element == FLOAT) {
        int64_t x = first;
        for (; step == 2 && x + LANES < last; x += LANES) v_store(to + x, v_evens(floats + 2 * x));
        for (; x < last; x++) to[x] = floats[x * step];
    }
    else
        for (int64_t x = first; x < last; x++) widen(&c->source, from + x * step + phase - before, 1, to + x);
    for (int64_t x = last; x < size; x++) to[x] = 0;
}

static void copy_plane(void *data, size_t number) {
    const struct geometry *g = data;
    const struct convolution *c = g->of;
    int64_t from = (int64_t)number * c->field[0] * c->field[1] * c->field[2];
    float *to = g->copy + (int64_t)number * g->plane;
    int64_t phases = g->phases[0] * g->phases[1] * g->phases[2];
    for (int64_t phase = 0; phase < phases; phase++) {
        int64_t px = phase % g->phases[2], py = phase / g->phases[2] % g->phases[1];
        int64_t pz = phase / g->phases[2] / g->phases[1];
        struct inside inside = find_inside(g, px);
        for (int64_t z = 0; z < g->sizes[0]; z++)
            for (int64_t y = 0; y < g->sizes[1]; y++, to += g->sizes[2]) {
                int64_t at_z = z * c->strides[0] + pz - c->before[0], at_y = y * c->strides[1] + py - c->before[1];
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
    if (planes * g->plane < SMALL_JOB / 8)
        for (int64_t i = 0; i < planes; i++) copy_plane(g, (size_t)i);
    else
        machine->parallel(machine->owner, copy_plane, (size_t)planes, g);
    return DONE;
}

/* --- the order of the sums ---------------------------------------------------------------------------------- */

static void add_term(struct geometry *g, int64_t channel, const int64_t *at) {
    const struct convolution *c = g->of;
    int64_t phase = 0, plane = 0, tap = 0;
    for (int axis = 0; axis < MOST_SPATIAL; axis++) {
        int64_t place = at[axis] * c->dilations[axis];
        phase = phase * g->phases[axis] + place % c->strides[axis];
        plane = plane * g->sizes[axis] + place / c->strides[axis];
        tap = tap * c->kernel[axis] + at[axis];
    }
    int64_t of_phase = g->sizes[0] * g->sizes[1] * g->sizes[2];
    g->terms[g->num_terms].plane = channel * g->plane + phase * of_phase + plane;
    g->terms[g->num_terms++].weight = channel * g->taps + tap;
}

static void end_block(struct geometry *g, int64_t before) {
    if (g->num_terms > before) g->blocks[g->num_blocks++] = (int)(g->num_terms - before);
}

/* Groups of few channels: up to `slic_taps` positions of a row of the kernel. */
static void order_slic(struct geometry *g) {
    const struct convolution *c = g->of;
    int64_t at[MOST_SPATIAL];
    for (at[0] = 0; at[0] < c->kernel[0]; at[0]++)
        for (at[1] = 0; at[1] < c->kernel[1]; at[1]++)
            for (int64_t x = 0; x < c->kernel[2]; x += c->slic_taps) {
                int64_t before = g->num_terms;
                for (at[2] = x; at[2] < x + c->slic_taps && at[2] < c->kernel[2]; at[2]++)
                    for (int64_t channel = 0; channel < c->channels; channel++) add_term(g, channel, at);
                end_block(g, before);
            }
}

/* A block of channels at a position, for all positions; with packed rows a channel is one of a row. */
static void order_blocks(struct geometry *g, int64_t block) {
    const struct convolution *c = g->of;
    int64_t rows = c->packed_rows, channels = rows * c->channels, kernel[MOST_SPATIAL], at[MOST_SPATIAL];
    memcpy(kernel, c->kernel, sizeof kernel);
    kernel[c->packed_axis] = divide_up(kernel[c->packed_axis], rows);
    int64_t taps = kernel[0] * kernel[1] * kernel[2];
    for (int64_t first = 0; first < channels; first += block)
        for (int64_t tap = 0; tap < taps; tap++) {
            int64_t before = g->num_terms, group[MOST_SPATIAL];
            group[2] = tap % kernel[2], group[1] = tap / kernel[2] % kernel[1], group[0] = tap / kernel[2] / kernel[1];
            for (int64_t channel = first; channel < first + block && channel < channels; channel++) {
                memcpy(at, group, sizeof at);
                at[c->packed_axis] = group[c->packed_axis] * rows + channel / c->channels;
                if (at[c->packed_axis] < c->kernel[c->packed_axis]) add_term(g, channel % c->channels, at);
            }
            end_block(g, before);
        }
    g->unit = block * taps <= MOST_CHANNELS ? block * taps : 0;
}

enum { FLOAT_BLOCK = 16 }; /* of sums that are not rounded: as good as any */

static enum outcome order_terms(struct geometry *g, const struct machine *machine) {
    const struct convolution *c = g->of;
    size_t terms = (size_t)(c->channels * g->taps);
    g->terms = machine->allocate(machine->owner, terms * (sizeof *g->terms + sizeof *g->blocks) + 1);
    if (!g->terms) return NO_MEMORY;
    g->blocks = (int *)(g->terms + terms);
    if (c->slic_taps)
        order_slic(g);
    else
        order_blocks(g, c->block ? c->block : FLOAT_BLOCK);
    return DONE;
}

/* --- as a product ------------------------------------------------------------------------------------------- */

/* Positions of the result whose windows are neighbours in a plane. */
struct stretch {
    int column, length;
    int64_t start;
};

struct field_supply {
    struct supply supply;
    const struct geometry *geometry;
    const float *field; /* of the batch's group */
    int64_t filters;    /* where the group's begin */
    int64_t block;      /* the next part's first */
};

static int cut_terms(struct supply *supply, int64_t first, struct part *part) {
    struct field_supply *from = (struct field_supply *)supply;
    const struct geometry *g = from->geometry;
    part->channels = part->blocks = 0;
    for (; from->block < g->num_blocks; from->block++) {
        int size = g->blocks[from->block];
        int64_t needed = g->unit && (first + part->channels) % g->unit == 0 ? g->unit : size;
        if (part->channels && part->channels + needed > MOST_CHANNELS) break;
        part->channels += size;
        part->ends[part->blocks++] = part->channels;
    }
    if (!part->channels) return 0;
    if (!g->of->block) part->ends[0] = part->channels, part->blocks = 1;
    int64_t low = INT64_MAX, high = 0;
    for (int i = 0; i < part->channels; i++) {
        int64_t weight = g->terms[first + i].weight;
        low = weight < low ? weight : low;
        high = weight > high ? weight : high;
    }
    part->low = low;
    part->span = high - low < HELD_CHANNELS ? high - low + 1 : 0;
    for (int i = 0; i < part->channels; i++)
        part->offsets[i] = part->span ? (int)(g->terms[first + i].weight - low) : i;
    return 1;
}

static int find_stretches(const struct geometry *g, int64_t column, int columns, struct stretch *stretches) {
    const int64_t *result = g->of->result_sizes, *sizes = g->sizes;
    int found = 0;
    for (int done = 0, length; done < columns; done += length) {
        int64_t at = column + done, x = at % result[2], row = at / result[2];
        int64_t start = (row / result[1] * sizes[1] + row % result[1]) * sizes[2] + x;
        length = result[2] - x < columns - done ? (int)(result[2] - x) : columns - done;
        struct stretch *last = stretches + found - 1;
        if (found && last->start + last->length == start)
            last->length += length;
        else
            stretches[found++] = (struct stretch){done, length, start};
    }
    return found;
}

static struct panel pack_windows(struct supply *supply, const struct part *part, int64_t first, int64_t column,
                                 int columns, int rows, float *held) {
    (void)rows;
    const struct field_supply *from = (struct field_supply *)supply;
    const struct geometry *g = from->geometry;
    struct stretch stretches[PANEL];
    int count = find_stretches(g, column, columns, stretches);
    float *panel = held;
    for (int k = 0; k < part->channels; k++, panel += PANEL) {
        const float *plane = from->field + g->terms[first + k].plane;
        for (int i = 0; i < count; i++) {
            const float *source = plane + stretches[i].start;
            float *to = panel + stretches[i].column;
            if (g->copy) /* a little more is there to be read, and is overwritten where it is written */
                for (int j = 0; j < stretches[i].length; j += LANES) v_store(to + j, v_load(source + j));
            else
                memcpy(to, source, (size_t)stretches[i].length * sizeof *to);
        }
        for (int j = columns; j % LANES; j++) panel[j] = 0;
    }
    return (struct panel){held, PANEL, 0};
}

static void take_filters(struct supply *supply, const struct part *part, int64_t first, int64_t row, int rows,
                         float *held, const float **lefts) {
    const struct field_supply *from = (struct field_supply *)supply;
    const struct geometry *g = from->geometry;
    const struct operand *filters = &g->of->filters;
    int64_t size = g->of->channels * g->taps, start = from->filters + row * size;
    for (int i = 0; i < rows; i++, start += size, held += HELD_CHANNELS) {
        lefts[i] = held;
        if (filters->element == FLOAT && part->span)
            lefts[i] = (const float *)filters->data + start + part->low;
        else if (part->span)
            widen(filters, start + part->low, part->span, held);
        else
            for (int k = 0; k < part->channels; k++) widen(filters, start + g->terms[first + k].weight, 1, held + k);
    }
}

static struct supply *supply_field(const void *owner, int64_t batch, int64_t group, void *held) {
    const struct geometry *g = owner;
    struct field_supply *made = held;
    made->supply = (struct supply){cut_terms, pack_windows, take_filters};
    made->geometry = g;
    made->field = g->field + (batch * g->of->groups + group) * g->of->channels * g->plane;
    made->filters = group * g->of->outputs * g->of->channels * g->taps;
    made->block = 0;
    return &made->supply;
}

/* The other way round: positions are rows, read where they lie, and outputs columns, their filters turned. */
static struct panel pack_filters(struct supply *supply, const struct part *part, int64_t first, int64_t column,
                                 int columns, int rows, float *held) {
    const struct field_supply *from = (struct field_supply *)supply;
    const struct geometry *g = from->geometry;
    (void)rows;
    int64_t size = g->of->channels * g->taps;
    int places[HELD_CHANNELS]; /* in the part, of weights as they lie */
    memset(places, -1, (size_t)part->span * sizeof *places);
    for (int k = 0; k < part->channels; k++) places[g->terms[first + k].weight - part->low] = k;
    pack_turned(&g->of->filters, from->filters + column * size + part->low, size, (int)part->span, places, columns,
                held);
    return (struct panel){held, PANEL, 0};
}

static int cut_turned(struct supply *supply, int64_t first, struct part *part) {
    const struct geometry *g = ((struct field_supply *)supply)->geometry;
    if (!cut_terms(supply, first, part)) return 0;
    for (int k = 0; k < part->channels; k++) part->offsets[k] = (int)g->terms[first + k].plane;
    return 1;
}

static void take_windows(struct supply *supply, const struct part *part, int64_t first, int64_t row, int rows,
                         float *held, const float **lefts) {
    const struct field_supply *from = (struct field_supply *)supply;
    const struct geometry *g = from->geometry;
    (void)part, (void)first, (void)held;
    for (int i = 0; i < rows; i++) {
        struct stretch stretch;
        find_stretches(g, row + i, 1, &stretch);
        lefts[i] = from->field + stretch.start;
    }
}

static struct supply *supply_turned(const void *owner, int64_t batch, int64_t group, void *held) {
    struct supply *made = supply_field(owner, batch, group, held);
    *made = (struct supply){cut_turned, pack_filters, take_windows};
    return made;
}

enum { MOST_TURNED = 64 }; /* positions: more have few idle lanes beside them */

/* Whether turning the filters, which takes about half as long as multiplying each by one register of positions, is
   less than the work that is lost on registers that are not full. */
static int is_turned(const struct geometry *g) {
    const struct convolution *c = g->of;
    int64_t registers = divide_up(g->positions, LANES);
    int is_near = c->channels * g->plane < INT32_MAX && c->channels * g->taps < INT32_MAX;
    int has_spans = g->unit || g->taps == 1; /* parts are weights that lie together */
    int is_small = g->positions <= MOST_TURNED && c->outputs >= LANES;
    return is_near && has_spans && is_small && 2 * (registers * LANES - g->positions) > LANES;
}

static void convolve_blocks(const struct geometry *g, const struct machine *machine) {
    const struct convolution *c = g->of;
    int turned = is_turned(g);
    struct job job = {
        .batches = c->batches,
        .groups = c->groups,
        .rows = turned ? g->positions : c->outputs,
        .columns = turned ? c->outputs : g->positions,
        .is_turned = turned,
        .rule = c->nan_on_overflow ? NO_OVERFLOW : BOUNDED,
        .is_rounded = c->block > 0,
        .program = &c->program,
        .values = c->values,
        .result = c->result,
        .supply = turned ? supply_turned : supply_field,
        .owner = g,
    };
    run_job(&job, g->num_terms, machine);
}

/* --- groups of one channel ---------------------------------------------------------------------------------- */

enum { STRIP = 4, MOST_TAPS = 1024, MOST_MULTIPLES = 2 };

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

/* Some rows of the result's plane, whole ones unless it is one: rows of the field lie `sizes[2]` apart, so that some
   of what is added up is between them and is dropped. */
static void sum_rows(const struct geometry *g, const float *field, const float *weights, const int64_t *start,
                     int64_t rows, int64_t width, int64_t batch, int64_t output) {
    const struct convolution *c = g->of;
    struct operand_run operands[MOST_OPERANDS];
    float totals[RUN + STRIP * LANES];
    int64_t pitch = g->sizes[2], from = (start[0] * g->sizes[1] + start[1]) * pitch + start[2];
    int64_t column = (start[0] * c->result_sizes[1] + start[1]) * c->result_sizes[2] + start[2];
    int64_t count = (rows - 1) * pitch + width;
    int is_fast = sum_stretch(g, field + from, weights, count, c->nan_on_overflow ? NO_OVERFLOW : BOUNDED, totals);
    if (c->program.exception && c->block && !is_fast) {
        float told[RUN + STRIP * LANES];
        sum_stretch(g, field + from, weights, count, NO_OVERFLOW, told);
        for (int64_t row = 0; row < rows; row++) check_values(&c->program, told + row * pitch, width);
    }
    for (int64_t row = 1; row < rows; row++)
        memmove(totals + row * width, totals + row * pitch, (size_t)width * sizeof *totals);
    find_operands(&c->program, c->values, batch, output, column, operands);
    float *to = c->result + (batch * c->groups * c->outputs + output) * g->positions + column;
    run_steps(&c->program, operands, totals, to, rows * width);
}

static void convolve_channel(void *data, size_t number) {
    const struct geometry *g = data;
    const struct convolution *c = g->of;
    int64_t group = (int64_t)number % c->groups, batch = (int64_t)number / c->groups;
    const float *field = g->field + (int64_t)number * g->plane;
    int64_t height = c->result_sizes[1], width = c->result_sizes[2], start[MOST_SPATIAL];
    int64_t rows = g->sizes[2] <= RUN ? RUN / g->sizes[2] : 1, most = g->sizes[2] <= RUN ? width : RUN;
    for (int64_t output = group * c->outputs; output < (group + 1) * c->outputs; output++) {
        float weights[MOST_TAPS];
        widen(&c->filters, output * g->taps, g->taps, weights);
        for (start[0] = 0; start[0] < c->result_sizes[0]; start[0]++)
            for (start[1] = 0; start[1] < height; start[1] += rows)
                for (start[2] = 0; start[2] < width; start[2] += most)
                    sum_rows(g, field, weights, start, height - start[1] < rows ? height - start[1] : rows,
                             width - start[2] < most ? width - start[2] : most, batch, output);
    }
}

static void convolve_channels(struct geometry *g, const struct machine *machine) {
    const struct convolution *c = g->of;
    size_t tasks = (size_t)(c->batches * c->groups);
    if ((double)tasks * c->outputs * g->positions * g->taps < SMALL_JOB)
        for (size_t i = 0; i < tasks; i++) convolve_channel(g, i);
    else
        machine->parallel(machine->owner, convolve_channel, tasks, g);
}

/* --- a field of one position -------------------------------------------------------------------------------- */

static int is_one_position(const struct convolution *c) {
    int64_t positions = 1;
    for (int axis = 0; axis < MOST_SPATIAL; axis++) {
        positions *= c->field[axis] * c->kernel[axis] * c->result_sizes[axis];
        if (c->before[axis]) return 0;
    }
    return positions == 1 && c->groups == 1;
}

/* As after global pooling: filters are columns, and registers hold neighbouring outputs instead of positions. */
static enum outcome convolve_position(const struct convolution *c, const struct machine *machine) {
    struct values values[MOST_OPERANDS];
    for (int i = 0; i < c->program.num_steps; i++) {
        int operand = c->program.steps[i].operand;
        if (operand < 0) continue;
        const struct values *given = c->values + operand;
        values[operand] = (struct values){given->data, given->is_half, 0, given->batch, given->row};
    }
    struct product product = {
        .batches = 1,
        .rows = c->batches,
        .depth = c->channels,
        .columns = c->outputs,
        .left = c->source,
        .right = c->filters,
        .left_row = c->channels,
        .left_channel = 1,
        .right_channel = 1,
        .right_column = c->channels,
        .block = c->block,
        .nan_on_overflow = c->nan_on_overflow,
        .program = c->program,
        .values = values,
        .result = c->result,
    };
    return OF_SET(simipu_multiply)(&product, machine);
}

enum outcome OF_SET(simipu_convolve)(const struct convolution *convolution, const struct machine *machine) {
    if (is_one_position(convolution)) return convolve_position(convolution, machine);
    struct geometry g = {.of = convolution};
    measure(&g);
    if (!convolution->batches || !convolution->groups || !convolution->outputs || !g.positions) return DONE;
    int by_channel = convolution->channels == 1 && convolution->outputs <= MOST_MULTIPLES && g.taps <= MOST_TAPS;
    enum outcome outcome = take_field(&g, by_channel, machine);
    if (outcome == DONE) outcome = order_terms(&g, machine);
    if (outcome == DONE) {
        if (by_channel)
            convolve_channels(&g, machine);
        else
            convolve_blocks(&g, machine);
    }
    if (g.terms) machine->release(machine->owner, g.terms);
    if (g.copy) machine->release(machine->owner, g.copy);
    return outcome;
}
