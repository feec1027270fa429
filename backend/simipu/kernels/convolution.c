/* Convolutions: a product of the filters' rows with the field's windows, packed position by position; where
   positions are few, the other way round. */

#include "channels.h"
#include "geometry.h"
#include "lanes.h"

/* --- as a product --- */

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
    int64_t position;   /* of the result, the next one as a row of the left, and where its window is */
    int64_t at[MAX_SPATIAL];
};

static int cut_terms(struct supply *supply, int64_t first, struct part *part) {
    struct field_supply *from = (struct field_supply *)supply;
    const struct geometry *g = from->geometry;
    /* As many whole blocks as fit; where a unit of blocks begins, only if all of it fits. */
    part->channels = part->blocks = 0;
    for (; from->block < g->num_blocks; from->block++) {
        int size = g->blocks[from->block];
        int64_t needed = g->unit && (first + part->channels) % g->unit == 0 ? g->unit : size;
        if (part->channels && part->channels + needed > MAX_CHANNELS) break;
        part->channels += size;
        part->ends[part->blocks++] = part->channels;
    }
    if (!part->channels) return 0;
    if (!g->of->block) part->ends[0] = part->channels, part->blocks = 1;
    /* Where the part's weights lie within HELD_CHANNELS of a filter, that span is widened as a whole, and
       the offsets point into it; else each weight is fetched alone, in the order of the sum. */
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
    /* Column (z * height + y) * width + x of the result is at (z, y, x) of a plane, whose rows and layers may
       be longer: a stretch ends with a row, unless the next one follows it at once. */
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

static struct panel pack_windows(struct supply *supply, const struct part *part, int64_t first,
                                 int64_t column, int columns, int rows, float *held) {
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
    return (struct panel){held, PANEL, PACKED, 1};
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
            for (int k = 0; k < part->channels; k++)
                widen(filters, start + g->terms[first + k].weight, 1, held + k);
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
static struct panel pack_filters(struct supply *supply, const struct part *part, int64_t first,
                                 int64_t column, int columns, int rows, float *held) {
    const struct field_supply *from = (struct field_supply *)supply;
    const struct geometry *g = from->geometry;
    (void)rows;
    int64_t size = g->of->channels * g->taps;
    if (!part->span) { /* they lie apart */
        for (int k = 0; k < part->channels; k++)
            for (int j = 0; j < PANEL; j++) {
                float *to = held + k * PANEL + j;
                *to = 0;
                if (j < columns)
                    widen(&g->of->filters, from->filters + (column + j) * size + g->terms[first + k].weight,
                          1, to);
            }
        return (struct panel){held, PANEL, PACKED, 1};
    }
    int places[HELD_CHANNELS]; /* in the part, of weights as they lie */
    memset(places, -1, (size_t)part->span * sizeof *places);
    for (int k = 0; k < part->channels; k++) places[g->terms[first + k].weight - part->low] = k;
    pack_turned(&g->of->filters, from->filters + column * size + part->low, size, (int)part->span, places,
                columns, held);
    return (struct panel){held, PANEL, PACKED, 1};
}

static int cut_turned(struct supply *supply, int64_t first, struct part *part) {
    const struct geometry *g = ((struct field_supply *)supply)->geometry;
    if (!cut_terms(supply, first, part)) return 0;
    for (int k = 0; k < part->channels; k++) part->offsets[k] = (int)g->terms[first + k].plane;
    return 1;
}

/* Go to a position of the result; from one to the next without a division. */
static void find_window(struct field_supply *from, int64_t position) {
    const int64_t *sizes = from->geometry->of->result_sizes;
    if (position != from->position) {
        from->at[2] = position % sizes[2];
        from->at[1] = position / sizes[2] % sizes[1];
        from->at[0] = position / sizes[2] / sizes[1];
    }
    from->position = position;
}

static void go_on(struct field_supply *from) {
    const int64_t *sizes = from->geometry->of->result_sizes;
    from->position++;
    if (++from->at[2] < sizes[2]) return;
    from->at[2] = 0;
    if (++from->at[1] < sizes[1]) return;
    from->at[1] = 0;
    from->at[0]++;
}

static void take_windows(struct supply *supply, const struct part *part, int64_t first, int64_t row, int rows,
                         float *held, const float **lefts) {
    struct field_supply *from = (struct field_supply *)supply;
    const struct geometry *g = from->geometry;
    (void)part, (void)first, (void)held;
    find_window(from, row);
    for (int i = 0; i < rows; i++, go_on(from)) {
        int64_t line = from->at[0] * g->steps[0] * g->sizes[1] + from->at[1] * g->steps[1];
        lefts[i] = from->field + (line * g->sizes[2] + from->at[2] * g->steps[2]) * g->pitch;
    }
}

static struct supply *supply_turned(const void *owner, int64_t batch, int64_t group, void *held) {
    struct field_supply *made = (struct field_supply *)supply_field(owner, batch, group, held);
    made->supply = (struct supply){cut_turned, pack_filters, take_windows};
    made->position = -1;
    return &made->supply;
}

enum { MAX_TURNED = 64 }; /* positions: more have few idle lanes beside them */

/* Whether turning the filters, which takes about half as long as multiplying each by one register of
   positions, is less than the work that is lost on registers that are not full. */
static int is_turned(const struct geometry *g) {
    const struct convolution *c = g->of;
    if (c->is_source_blocked || c->is_result_blocked) return 1;
    int64_t registers = divide_up(g->positions, LANES);
    int is_near = c->channels * g->plane < INT32_MAX && c->channels * g->taps < INT32_MAX;
    int has_spans = g->unit || g->taps == 1; /* parts are weights that lie together */
    int is_small = g->positions <= MAX_TURNED && c->outputs >= LANES;
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
        .is_blocked = c->is_result_blocked,
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

/* --- a field of one position --- */

static int is_one_position(const struct convolution *c) {
    for (int axis = 0; axis < MAX_SPATIAL; axis++)
        if (c->field[axis] != 1 || c->kernel[axis] != 1 || c->result_sizes[axis] != 1 || c->before[axis])
            return 0;
    return c->groups == 1;
}

/* As after global pooling: filters are columns, and registers hold neighbouring outputs instead of positions.
 */
static enum outcome convolve_position(const struct convolution *c, const struct machine *machine) {
    struct values values[MAX_OPERANDS];
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

/* --- filters of many batches --- */

enum { MAX_WIDENED = 1 << 18 }; /* weights that the caches hold as floats */

/* Each batch would widen the filters anew. */
static int is_widened(const struct convolution *c) {
    if (c->filters.element == FLOAT || c->batches < 2) return 0;
    int64_t weights = c->groups * c->outputs * c->channels;
    for (int axis = 0; axis < MAX_SPATIAL && weights <= MAX_WIDENED; axis++) weights *= c->kernel[axis];
    return weights <= MAX_WIDENED;
}

static enum outcome convolve(const struct convolution *convolution, const struct machine *machine) {
    struct geometry g = {.of = convolution};
    measure(&g);
    if (!convolution->batches || !convolution->groups || !convolution->outputs || !g.positions) return DONE;
    int by_channel =
        convolution->channels == 1 && convolution->outputs <= MAX_MULTIPLES && g.taps <= MAX_TAPS;
    int by_lanes = by_channel && is_by_lanes(&g);
    enum outcome outcome = by_lanes ? DONE : take_field(&g, by_channel, machine);
    if (outcome == DONE) outcome = order_terms(&g, machine);
    if (outcome == DONE && by_lanes)
        outcome = convolve_by_lanes(&g, machine);
    else if (outcome == DONE && by_channel)
        convolve_channels(&g, machine);
    else if (outcome == DONE)
        convolve_blocks(&g, machine);
    if (g.terms) machine->release(machine->owner, g.terms);
    if (g.copy) machine->release(machine->owner, g.copy);
    return outcome;
}

enum outcome OF_SET(simipu_convolve)(const struct convolution *convolution, const struct machine *machine) {
    if (is_one_position(convolution)) return convolve_position(convolution, machine);
    if (!is_widened(convolution)) return convolve(convolution, machine);
    const int64_t *kernel = convolution->kernel;
    struct convolution widened = *convolution;
    int64_t weights = convolution->groups * convolution->outputs * convolution->channels * kernel[0] *
                      kernel[1] * kernel[2];
    float *filters = machine->allocate(machine->owner, (size_t)weights * sizeof *filters + 1);
    if (!filters) return NO_MEMORY;
    widen(&convolution->filters, 0, weights, filters);
    widened.filters = (struct operand){filters, FLOAT, 1};
    enum outcome outcome = convolve(&widened, machine);
    machine->release(machine->owner, filters);
    return outcome;
}
