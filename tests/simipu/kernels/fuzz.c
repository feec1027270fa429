/* Draws products, convolutions, chains and recurrent networks, has every set of instructions of this machine
   compute them, and compares each result with plain.c's, bit for bit.

       fuzz SECONDS [SEED]       as many as there is time for
       fuzz 0 SEED               the one of that seed

   Tensors lie in memory of exactly their size, where a sanitizer sees who goes beyond. Sums that are not
   rounded are of small whole numbers: those have one value whatever the order. */

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dispatch.c" /* for its table of sets, and which of them are there */
#include "plain.h"

enum { MAX_WORK = 200000, MAX_DRAWN_STEPS = 6, MAX_TENSORS = 32, TABLE = 1 << 16 };

/* --- what is drawn --- */

static uint64_t state;

/* Vigna's splitmix64: a stream of its own for each seed. */
static uint64_t draw_bits(void) {
    uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

static int64_t draw(int64_t least, int64_t most) {
    return least + (int64_t)(draw_bits() % (uint64_t)(most - least + 1));
}

static int one_in(int64_t count) { return draw(1, count) == 1; }

/* Mostly a few, seldom more than any tile, task or run has place for. */
static int64_t draw_size(int64_t most) {
    int64_t size = one_in(8) ? draw(1, most) : one_in(3) ? draw(1, 70) : draw(1, 9);
    return size < most ? size : most;
}

static void *tensors[MAX_TENSORS];
static int num_tensors;

static void *keep(size_t bytes) {
    void *made = malloc(bytes ? bytes : 1);
    if (!made || num_tensors == MAX_TENSORS) abort();
    return tensors[num_tensors++] = made;
}

static void drop_tensors(void) {
    while (num_tensors) free(tensors[--num_tensors]);
}

static const uint16_t SPECIAL[] = {0x7E00, 0x7C00, 0xFC00, 0x8000, 0x0000,
                                   0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF};
enum { NUM_SPECIAL = sizeof SPECIAL / sizeof *SPECIAL };

/* How the numbers of a case are: whole ones, and how seldom one is special (0: never). */
static int is_whole, rarity;

static uint16_t draw_half(void) {
    static const uint16_t whole[] = {0, 0x3C00, 0xBC00, 0x4000, 0xC000, 0x4200};
    if (is_whole) return whole[draw(0, 5)];
    if (rarity && one_in(rarity)) return SPECIAL[draw(0, NUM_SPECIAL - 1)];
    /* Exponents around 1, sometimes all of them. */
    int64_t exponent = one_in(50) ? draw(0, 30) : draw(11, 17);
    return (uint16_t)(draw(0, 1) << 15 | exponent << 10 | draw(0, 1023));
}

static float half_value(uint16_t bits) {
    float value;
    struct values one = {.data = &bits, .is_half = 1};
    struct chain chain = {.rank = 1, .sizes = {1}, .source = one.data, .source_is_half = 1, .result = &value};
    plain_run_chain(&chain);
    return value;
}

static void *draw_halves(int64_t count) {
    uint16_t *made = keep((size_t)count * sizeof *made);
    for (int64_t i = 0; i < count; i++) made[i] = draw_half();
    return made;
}

/* Halves as floats; any floats with `is_any`. */
static void *draw_floats(int64_t count, int is_any) {
    float *made = keep((size_t)count * sizeof *made);
    for (int64_t i = 0; i < count; i++) {
        made[i] = half_value(draw_half());
        if (is_any) made[i] *= 1 + (float)draw(0, 1 << 20) * 0x1p-23f;
    }
    return made;
}

static void *draw_codes(int64_t count) {
    uint8_t *made = keep((size_t)count);
    for (int64_t i = 0; i < count; i++) made[i] = is_whole ? (uint8_t)draw(0, 1) : (uint8_t)draw(0, 255);
    return made;
}

static struct operand draw_operand(int64_t count, int has_codes) {
    struct operand made = {.element = (enum element)draw(FLOAT, has_codes ? F152 : HALF), .unit = 1};
    if (made.element == FLOAT)
        made.data = draw_floats(count, 0);
    else if (made.element == HALF)
        made.data = draw_halves(count);
    else {
        made.data = draw_codes(count);
        /* Codes 0 and 1 are multiples of the smallest value. */
        made.unit = ldexpf(1, is_whole ? made.element == F143 ? 10 : 17 : (int)draw(-8, 8));
    }
    return made;
}

/* --- steps --- */

/* Where an operand may lie: the sizes of three groups of axes, or of all of a chain's. */
struct layout {
    int axes;
    int64_t sizes[MAX_CHAIN_AXES];
};

static int exception;
static struct step steps[2 * MAX_DRAWN_STEPS];
static struct values values[MAX_DRAWN_STEPS];
static int64_t value_strides[MAX_DRAWN_STEPS][MAX_CHAIN_AXES];

/* Strides of a tensor that has some of the axes. */
static int64_t draw_strides(const struct layout *layout, int64_t *strides) {
    int64_t elements = 1;
    for (int i = layout->axes; i-- > 0;) {
        int is_there = layout->sizes[i] > 1 && !one_in(3);
        strides[i] = is_there ? elements : 0;
        elements *= is_there ? layout->sizes[i] : 1;
    }
    return elements;
}

static void draw_table(struct values *made) {
    uint16_t *table = draw_halves(TABLE);
    for (int i = 0; i < TABLE; i++)
        if ((i & 0x7FFF) > 0x7C00) table[i] = 0x7E00; /* which NaN it is has no meaning */
    *made = (struct values){.data = table, .is_half = 1};
}

static void make_hard_swish(struct values *made) {
    uint16_t *table = keep(TABLE * sizeof *table);
    for (int i = 0; i < TABLE; i++) {
        uint16_t bits = (uint16_t)i;
        _Float16 half;
        memcpy(&half, &bits, sizeof half);
        double x = half, value = x * fmin(fmax(x + 3, 0), 6) / 6;
        half = (_Float16)value + (_Float16)0; /* no -0 */
        memcpy(table + i, &half, sizeof half);
        if (value != value) table[i] = 0x7E00;
    }
    *made = (struct values){.data = table, .is_half = 1};
}

static void draw_value(const struct layout *layout, int number) {
    int64_t *strides = value_strides[number];
    int64_t elements = draw_strides(layout, strides);
    int is_half = draw(0, 1);
    const void *data = is_half ? draw_halves(elements) : draw_floats(elements, 1);
    values[number] = (struct values){data, is_half, strides[0], strides[1], strides[2]};
}

/* What the kernels do in one go: a rounding, a bias, another tensor, a Relu, a table and a rounding to 8
   bits. Returns the number of steps. */
static int draw_ending(const struct layout *layout, int is_half) {
    int count = 0, operands = (int)draw(0, 2);
    if (one_in(2)) steps[count++] = (struct step){STEP_NONE, ROUNDED, -1, 0}, is_half = 1;
    for (int i = 0; i < operands; i++, is_half = 1) {
        steps[count++] = (struct step){STEP_ADD, ROUNDED, i, 0};
        draw_value(layout, i);
    }
    if (one_in(2)) steps[count++] = (struct step){STEP_MAXIMUM, KEPT, -1, one_in(4) ? -0.0f : 0};
    if (is_half && one_in(8)) {
        int is_hard_swish = one_in(2);
        is_hard_swish ? make_hard_swish(&values[operands]) : draw_table(&values[operands]);
        steps[count++] = (struct step){STEP_TABLE, KEPT, operands, is_hard_swish ? HARD_SWISH : 0};
    }
    if (is_half && one_in(2)) {
        float unit = ldexpf(1, (int)draw(-12, 12));
        steps[count++] = (struct step){one_in(2) ? STEP_F143 : STEP_F152, KEPT, -1, unit};
    }
    return count;
}

/* A program; `is_half`: what it begins with are halves. What wants a half gets one. */
static struct program draw_program(const struct layout *layout, int is_half, int nan_on_overflow) {
    int count = 0, operands = 0, wanted = (int)draw(0, MAX_DRAWN_STEPS);
    memset(value_strides, 0, sizeof value_strides);
    if (one_in(2)) wanted = 0, count = draw_ending(layout, is_half);
    for (int i = 0; i < wanted; i++) {
        struct step step = {(enum kind)draw(STEP_NONE, STEP_F152), (enum rounding)draw(KEPT, PLAIN), -1, 0};
        int is_narrow = step.kind >= STEP_TABLE;
        if (is_narrow && !is_half) steps[count++] = (struct step){STEP_NONE, ROUNDED, -1, 0};
        step.number = step.kind > STEP_TABLE ? ldexpf(1, (int)draw(-12, 12)) : half_value(draw_half());
        if (step.kind == STEP_TABLE) {
            if (!one_in(8)) continue; /* it is large */
            draw_table(&values[step.operand = operands++]);
        } else if (step.kind > STEP_NONE && step.kind < STEP_TABLE && !one_in(3)) {
            step.operand = one_in(4) && operands && !values[operands - 1].is_half ? operands - 1 : operands++;
            if (step.operand == operands - 1) draw_value(layout, step.operand);
        }
        is_half = step.kind == STEP_TABLE || step.rounding != KEPT;
        steps[count++] = step;
    }
    return (struct program){
        .num_steps = count,
        .nan_on_overflow = nan_on_overflow,
        .steps = steps,
        .exception = one_in(3) ? &exception : NULL,
    };
}

/* --- a machine --- */

/* Tasks in an order that nobody may count on, on two threads where `has_threads`. */
struct tasks {
    void (*work)(void *data, size_t i);
    void *data;
    size_t count, next;
};

static int has_threads, is_short_of_memory, num_held;

static void *run_tasks(void *given) {
    struct tasks *tasks = given;
    for (size_t i; (i = __atomic_fetch_add(&tasks->next, 1, __ATOMIC_RELAXED)) < tasks->count;)
        tasks->work(tasks->data, tasks->count - 1 - i);
    return NULL;
}

static void run_parallel(void *owner, void (*work)(void *data, size_t i), size_t count, void *data) {
    (void)owner;
    struct tasks tasks = {work, data, count, 0};
    pthread_t other;
    if (has_threads && pthread_create(&other, NULL, run_tasks, &tasks)) abort();
    run_tasks(&tasks);
    if (has_threads) pthread_join(other, NULL);
}

static void *allocate(void *owner, size_t bytes) {
    (void)owner;
    void *made;
    if ((is_short_of_memory && one_in(2)) || posix_memalign(&made, 64, bytes)) return NULL;
    memset(made, 0xFF, bytes);
    __atomic_fetch_add(&num_held, 1, __ATOMIC_RELAXED);
    return made;
}

static void release(void *owner, void *memory) {
    (void)owner;
    __atomic_fetch_sub(&num_held, memory != NULL, __ATOMIC_RELAXED);
    free(memory);
}

static const struct machine MACHINE = {
    .parallel = run_parallel, .allocate = allocate, .release = release, .threads = 2};

/* --- cases --- */

static int is_same(float one, float other) {
    return (isnan(one) && isnan(other)) || !memcmp(&one, &other, sizeof one);
}

static int compare(const char *what, const struct set *set, const float *expected, const float *found,
                   int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!is_same(expected[i], found[i])) {
            printf("%s, %s: element %lld of %lld: expected %a, found %a\n", what, set->name, (long long)i,
                   (long long)count, (double)expected[i], (double)found[i]);
            return 0;
        }
    return 1;
}

static int check_outcome(const char *what, const struct set *set, enum outcome outcome, int expected) {
    if (outcome == DONE && exception != expected)
        printf("%s, %s: exception %d, expected %d\n", what, set->name, exception, expected);
    if (num_held) printf("%s, %s: %d pieces of memory were not released\n", what, set->name, num_held);
    if (outcome != DONE && !is_short_of_memory) printf("%s, %s: outcome %d\n", what, set->name, (int)outcome);
    return !num_held && (outcome == DONE ? exception == expected : is_short_of_memory);
}

static int fuzz_product(void) {
    int64_t batches = one_in(3) ? draw_size(9) : 1, depth = draw_size(700);
    int64_t rows = draw_size(MAX_WORK / depth / batches < 400 ? MAX_WORK / depth / batches : 400);
    int64_t columns = draw_size(MAX_WORK / depth / batches / rows + 1);
    if (one_in(3)) columns = (columns + 15) / 16 * 16; /* whole registers: read where they lie */
    int left_turned = one_in(4), right_turned = one_in(3), block = one_in(4) ? 0 : (int)draw(1, MAX_BLOCK);
    if (one_in(12)) depth = 0;
    block = block && !one_in(3) ? (draw(0, 1) ? 16 : 32) : block;
    is_whole = !block;
    struct product product = {
        .batches = batches,
        .rows = rows,
        .depth = depth,
        .columns = columns,
        .left_row = left_turned ? 1 : depth,
        .left_channel = left_turned ? rows : 1,
        .right_channel = right_turned ? 1 : columns,
        .right_column = right_turned ? depth : 1,
        .block = block,
        .nan_on_overflow = one_in(3),
        .values = values,
    };
    int64_t *starts = keep(2 * (size_t)batches * sizeof *starts);
    int left_shared = one_in(3), right_shared = one_in(3);
    for (int64_t b = 0; b < batches; b++) {
        starts[b] = left_shared ? 0 : (batches - 1 - b) * rows * depth;
        starts[batches + b] = right_shared ? 0 : b * depth * columns;
    }
    product.left_starts = left_shared && draw(0, 1) ? NULL : starts;
    product.right_starts = right_shared && draw(0, 1) ? NULL : starts + batches;
    product.left = draw_operand((left_shared ? 1 : batches) * rows * depth, 1);
    product.right = draw_operand((right_shared ? 1 : batches) * depth * columns, 1);
    is_whole = 0;
    struct layout layout = {3, {batches, rows, columns}};
    product.program = draw_program(&layout, block > 0, product.nan_on_overflow);
    int64_t count = batches * rows * columns;
    float *expected = keep((size_t)count * sizeof *expected), *found = keep((size_t)count * sizeof *found);
    product.result = expected;
    exception = 0;
    plain_multiply(&product);
    int raised = exception;
    product.result = found;
    int is_right = 1;
    for (int i = 0; i < NUM_SETS; i++) {
        if (!is_there(SETS[i].name)) continue;
        memset(found, 0xFF, (size_t)count * sizeof *found);
        exception = 0;
        enum outcome outcome = SETS[i].multiply(&product, &MACHINE);
        is_right &= check_outcome("product", &SETS[i], outcome, raised);
        is_right &= outcome != DONE || compare("product", &SETS[i], expected, found, count);
    }
    return is_right;
}

/* Sizes of which all positions of the result are inside of the padded field. */
static void draw_axis(struct convolution *c, int axis, int64_t most) {
    c->kernel[axis] = one_in(3) ? 1 : draw(1, 5);
    c->strides[axis] = one_in(2) ? 1 : draw(1, 4);
    c->dilations[axis] = one_in(2) ? 1 : draw(1, 3);
    c->before[axis] = one_in(2) ? 0 : draw(0, 4);
    int64_t after = draw(0, 3), reach = (c->kernel[axis] - 1) * c->dilations[axis] + 1;
    int64_t wanted = (draw_size(most) - 1) * c->strides[axis] + reach + draw(0, c->strides[axis] - 1);
    c->field[axis] = wanted > c->before[axis] + after ? wanted - c->before[axis] - after : 1;
    c->result_sizes[axis] = (c->field[axis] + c->before[axis] + after - reach) / c->strides[axis] + 1;
    if (c->result_sizes[axis] == 1) c->strides[axis] = 1; /* as who calls sees to */
}

/* Channels in whole blocks, and which of them lie so. */
static void draw_blocks(struct convolution *c, int is_depthwise) {
    if (is_depthwise) {
        c->groups = draw(1, 3) * CHANNEL_BLOCK;
        c->outputs = c->channels = 1;
    } else {
        c->groups = 1;
        if (one_in(2)) c->channels = (c->channels + CHANNEL_BLOCK) / CHANNEL_BLOCK * CHANNEL_BLOCK;
        if (one_in(2)) c->outputs = (c->outputs + CHANNEL_BLOCK) / CHANNEL_BLOCK * CHANNEL_BLOCK;
    }
    c->is_source_blocked = draw(0, 1) && c->groups * c->channels % CHANNEL_BLOCK == 0;
    c->is_result_blocked = draw(0, 1) && c->groups * c->outputs % CHANNEL_BLOCK == 0;
}

static struct convolution draw_convolution(void) {
    struct convolution c = {.batches = draw(1, 3), .groups = one_in(3) ? draw(2, 9) : 1, .packed_rows = 1};
    int is_depthwise = one_in(4);
    if (is_depthwise) c.groups = draw(2, 40);
    int axes = (int)draw(1, MAX_SPATIAL);
    c.packed_axis = MAX_SPATIAL - axes;
    for (int i = 0; i < MAX_SPATIAL; i++)
        c.field[i] = c.kernel[i] = c.strides[i] = c.dilations[i] = c.result_sizes[i] = 1;
    int64_t work = MAX_WORK / c.batches / c.groups;
    for (int i = c.packed_axis; i < MAX_SPATIAL; i++) {
        draw_axis(&c, i, work < 200 ? work / axes + 1 : 200);
        work = work / (c.kernel[i] * c.result_sizes[i]) + 1;
    }
    c.channels = one_in(3) ? draw(1, 4) : draw_size(work < 90 ? work : 90);
    c.outputs = one_in(3) ? 1 : draw_size(work / c.channels + 1 < 300 ? work / c.channels + 1 : 300);
    if (is_depthwise) c.channels = 1, c.outputs = draw(1, 2);
    if (one_in(20)) c.channels = 0;
    if (one_in(2)) draw_blocks(&c, is_depthwise);
    c.block = one_in(4) ? 0 : one_in(4) ? (int)draw(1, MAX_BLOCK) : draw(0, 1) ? 16 : 32;
    if (c.block && c.channels <= c.block && (c.groups > 1 ? !one_in(4) : one_in(8))) {
        c.slic_taps = one_in(3) ? (int)draw(1, 4) : 4;
        while (c.slic_taps * c.channels > c.block) c.slic_taps--;
    } else if (c.groups == 1 && c.block)
        while (c.packed_rows < 4 && (c.packed_rows + 1) * c.channels <= c.block && !one_in(6))
            c.packed_rows++;
    c.nan_on_overflow = one_in(3);
    return c;
}

/* The elements of plain planes, of `bytes` each, with their channels in blocks. */
static void *put_in_blocks(const void *plain, size_t bytes, int64_t planes, int64_t positions) {
    char *made = keep((size_t)(planes * positions) * bytes);
    for (int64_t i = 0; i < planes; i++)
        for (int64_t p = 0; p < positions; p++) {
            int64_t to = (i / CHANNEL_BLOCK * positions + p) * CHANNEL_BLOCK + i % CHANNEL_BLOCK;
            memcpy(made + (size_t)to * bytes, (const char *)plain + (size_t)(i * positions + p) * bytes,
                   bytes);
        }
    return made;
}

/* The same of what a convolution is given; without, where an operand is broadcast along the channels only. */
static void put_operands_in_blocks(struct convolution *c, int64_t positions) {
    int is_done[MAX_DRAWN_STEPS] = {0};
    for (int i = 0; i < c->program.num_steps; i++) {
        const struct step *step = steps + i;
        if (step->operand >= 0 && values[step->operand].column && !values[step->operand].row)
            c->is_result_blocked = 0;
    }
    for (int i = 0; i < c->program.num_steps && c->is_result_blocked; i++) {
        int operand = steps[i].operand;
        if (operand < 0 || !values[operand].column || is_done[operand]++) continue;
        int64_t batches = values[operand].batch ? c->batches : 1;
        values[operand].data = put_in_blocks(values[operand].data, values[operand].is_half ? 2 : 4,
                                             batches * c->groups * c->outputs, positions);
    }
}

static int fuzz_convolution(void) {
    struct convolution c = draw_convolution();
    int64_t field = c.field[0] * c.field[1] * c.field[2], kernel = c.kernel[0] * c.kernel[1] * c.kernel[2];
    int64_t positions = c.result_sizes[0] * c.result_sizes[1] * c.result_sizes[2];
    int64_t outputs = c.groups * c.outputs, count = c.batches * outputs * positions;
    is_whole = !c.block;
    c.source = draw_operand(c.batches * c.groups * c.channels * field, 0);
    if (c.source.element != FLOAT) c.is_source_blocked = 0;
    c.filters = draw_operand(outputs * c.channels * kernel, 1);
    is_whole = 0;
    struct layout layout = {3, {c.batches, outputs, positions}};
    c.program = draw_program(&layout, c.block > 0, c.nan_on_overflow);
    c.values = values;
    float *expected = keep((size_t)count * sizeof *expected), *found = keep((size_t)count * sizeof *found);
    c.result = expected;
    exception = 0;
    plain_convolve(&c);
    int raised = exception;
    c.result = found;
    put_operands_in_blocks(&c, positions);
    if (c.is_source_blocked)
        c.source.data = put_in_blocks(c.source.data, sizeof(float), c.batches * c.groups * c.channels, field);
    if (c.is_result_blocked)
        expected = put_in_blocks(expected, sizeof(float), c.batches * outputs, positions);
    int is_right = 1;
    for (int i = 0; i < NUM_SETS; i++) {
        if (!is_there(SETS[i].name)) continue;
        memset(found, 0xFF, (size_t)count * sizeof *found);
        exception = 0;
        enum outcome outcome = SETS[i].convolve(&c, &MACHINE);
        is_right &= check_outcome("convolution", &SETS[i], outcome, raised);
        is_right &= outcome != DONE || compare("convolution", &SETS[i], expected, found, count);
    }
    return is_right;
}

static int fuzz_chain(void) {
    struct chain chain = {.rank = (int)draw(1, MAX_CHAIN_AXES), .values = values};
    struct layout layout = {.axes = chain.rank};
    int64_t count = 1;
    for (int i = 0; i < chain.rank; i++) {
        int64_t most = MAX_WORK / 10 / count;
        chain.sizes[i] = layout.sizes[i] = i == chain.rank - 1 && one_in(2) ? draw(1, most) : draw_size(most);
        count *= chain.sizes[i];
    }
    int is_whole_source = one_in(2);
    int64_t elements = draw_strides(&layout, chain.source_strides);
    if (is_whole_source) {
        elements = 1;
        for (int i = chain.rank; i-- > 0; elements *= chain.sizes[i]) chain.source_strides[i] = elements;
    }
    chain.source_is_half = one_in(3);
    int is_any = draw(0, 1);
    chain.source = chain.source_is_half ? draw_halves(elements) : draw_floats(elements, is_any);
    chain.program = draw_program(&layout, chain.source_is_half || !is_any, one_in(3));
    chain.value_strides = (const int64_t (*)[MAX_CHAIN_AXES])value_strides;
    float *expected = keep((size_t)count * sizeof *expected), *found = keep((size_t)count * sizeof *found);
    chain.result = expected;
    exception = 0;
    plain_run_chain(&chain);
    int raised = exception;
    chain.result = found;
    int is_in_place = is_whole_source && !chain.source_is_half && draw(0, 1), is_right = 1;
    const void *source = chain.source;
    for (int i = 0; i < NUM_SETS; i++) {
        if (!is_there(SETS[i].name)) continue;
        memset(found, 0xFF, (size_t)count * sizeof *found);
        if (is_in_place) chain.source = memcpy(found, source, (size_t)count * sizeof *found);
        exception = 0;
        enum outcome outcome = SETS[i].run_chain(&chain, &MACHINE);
        is_right &= check_outcome("chain", &SETS[i], outcome, raised);
        is_right &= outcome != DONE || compare("chain", &SETS[i], expected, found, count);
    }
    return is_right;
}

/* Each of them is there or not. */
static void draw_optional(struct recurrence *r) {
    int64_t states = r->directions * r->batch * r->hidden, gates = count_gates(r->cell) * r->hidden;
    if (!one_in(3)) r->bias = draw_floats(2 * r->directions * gates, 0);
    if (one_in(2)) r->state = draw_floats(states, 0);
    if (r->cell == CELL_LSTM && one_in(2)) r->cells = draw_floats(states, 0);
    if (r->cell == CELL_LSTM && one_in(3)) r->peepholes = draw_floats(3 * r->directions * r->hidden, 0);
    if (!one_in(3)) return;
    int32_t *lengths = keep((size_t)r->batch * sizeof *lengths);
    for (int64_t i = 0; i < r->batch; i++) {
        lengths[i] = (int32_t)draw(-1, r->steps + 1);
        if (one_in(8)) lengths[i] = one_in(2) ? INT32_MIN : INT32_MAX;
    }
    r->lengths = lengths;
}

static struct recurrence draw_recurrence(void) {
    struct recurrence r = {
        .cell = (enum cell)draw(CELL_RNN, CELL_GRU_RESET_AFTER),
        .directions = draw(1, MAX_DIRECTIONS),
        .steps = draw(0, 9),
        .batch = one_in(8) ? draw(0, 40) : draw(1, 6),
        .width = draw_size(80),
        .is_reversed = one_in(3),
        .is_coupled = one_in(4),
        .block = one_in(4) ? (int)draw(1, MAX_BLOCK) : 16,
        .nan_on_overflow = one_in(3),
        .clip = one_in(3) ? half_value((uint16_t)draw(0x3800, 0x4800)) : INFINITY,
    };
    int64_t most = MAX_WORK / ((r.steps + 1) * (r.batch + 1) * (r.width + 20) * r.directions);
    r.hidden = draw_size(most < 1 ? 1 : most > 300 ? 300 : most);
    struct values tables[MAX_FUNCTIONS];
    for (int i = 0; i < MAX_FUNCTIONS; i++) draw_table(&tables[i]);
    for (int d = 0; d < MAX_DIRECTIONS; d++)
        for (int i = 0; i < MAX_FUNCTIONS; i++) r.tables[d][i] = tables[draw(0, MAX_FUNCTIONS - 1)].data;
    return r;
}

static int fuzz_recurrence(void) {
    struct recurrence r = draw_recurrence();
    int64_t states = r.directions * r.batch * r.hidden, all = r.steps * states, count = all + 2 * states;
    r.source = draw_floats(r.steps * r.batch * r.width, 0);
    r.weights = draw_halves(r.directions * (r.width + r.hidden) * count_gates(r.cell) * pad_gate(r.hidden));
    draw_optional(&r);
    float *expected = keep((size_t)count * sizeof *expected), *found = keep((size_t)count * sizeof *found);
    memset(expected, 0xFF, (size_t)count * sizeof *expected);
    r.all = expected;
    r.last = expected + all;
    r.last_cells = expected + all + states;
    plain_recur(&r);
    r.all = found;
    r.last = found + all;
    r.last_cells = found + all + states;
    int is_right = 1;
    exception = 0;
    for (int i = 0; i < NUM_SETS; i++) {
        if (!is_there(SETS[i].name)) continue;
        memset(found, 0xFF, (size_t)count * sizeof *found);
        enum outcome outcome = SETS[i].recur(&r, &MACHINE);
        is_right &= check_outcome("recurrence", &SETS[i], outcome, 0);
        is_right &= outcome != DONE || compare("recurrence", &SETS[i], expected, found, count);
    }
    return is_right;
}

static int fuzz(uint64_t seed) {
    static int (*const kinds[])(void) = {fuzz_product, fuzz_convolution, fuzz_chain, fuzz_recurrence};
    state = seed;
    rarity = one_in(2) ? 0 : one_in(2) ? 1000 : 20;
    has_threads = one_in(8);
    is_short_of_memory = one_in(20);
    int is_right = kinds[draw(0, 3)]();
    if (!is_right) printf("that was seed %llu\n", (unsigned long long)seed);
    drop_tensors();
    return is_right;
}

int main(int count, char **arguments) {
    double seconds = count > 1 ? atof(arguments[1]) : 5;
    uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 10) : (uint64_t)time(NULL) << 20, cases = 0;
    time_t end = time(NULL) + (time_t)seconds;
    do {
        if (!fuzz(seed + cases++)) return 1;
    } while (time(NULL) < end);
    printf("%llu cases from seed %llu on:", (unsigned long long)cases, (unsigned long long)seed);
    for (int i = 0; i < NUM_SETS; i++)
        if (is_there(SETS[i].name)) printf(" %s", SETS[i].name);
    printf("\n");
    return 0;
}
