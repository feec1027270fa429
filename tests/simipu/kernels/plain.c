/* What kernels.h says, element by element, in loops that do nothing else. The arithmetic of halves and 8-bit
   floats is done in doubles, in which it is exact: no instruction that the kernels use is used here. */

#include "plain.h"

#include <math.h>
#include <string.h>

static const double HALF_MAX = 65504;

static float value_of_half(uint16_t bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double size = exponent == 31
                      ? (mantissa ? NAN : INFINITY)
                      : ldexp(exponent ? 1024 + mantissa : mantissa, (exponent ? exponent : 1) - 25);
    return (float)(bits >> 15 ? -size : size);
}

/* To the nearest multiple of the last place that a float of so many bits of mantissa has there, ties to even;
   `least` is the exponent of its smallest normal number. */
static double round_to_bits(double size, int mantissa_bits, int least) {
    int exponent;
    frexp(size, &exponent);
    int place = (exponent - 1 > least ? exponent - 1 : least) - mantissa_bits;
    return ldexp(nearbyint(ldexp(size, -place)), place);
}

static float round_to_half(float value, enum rounding rounding, int nan_on_overflow) {
    if (rounding == KEPT || isnan(value)) return value;
    if (isinf(value) && rounding != GROWING) return value;
    double size = isinf(value) ? INFINITY : round_to_bits(fabs((double)value), 10, -14);
    if (size > HALF_MAX) size = rounding == PLAIN ? INFINITY : nan_on_overflow ? NAN : HALF_MAX;
    return (float)copysign(size, value);
}

static uint16_t bits_of_half(float value) {
    uint16_t sign = signbit(value) ? 1 << 15 : 0;
    double size = fabs((double)value);
    if (isnan(value)) return 0x7E00;
    if (isinf(value)) return sign | 0x7C00;
    int exponent;
    frexp(size, &exponent);
    if (size < ldexp(1, -14)) return sign | (uint16_t)ldexp(size, 24);
    return sign | (uint16_t)((exponent + 14) << 10) | (uint16_t)(ldexp(size, 11 - exponent) - 1024);
}

struct quarter {
    int mantissa_bits, bias;
    double largest;
};

static const struct quarter QUARTERS[] = {[F143] = {3, 8, 240}, [F152] = {2, 16, 57344}};

static float value_of_code(uint8_t code, const struct quarter *quarter) {
    int exponent = (code & 0x7F) >> quarter->mantissa_bits, normal = 1 << quarter->mantissa_bits;
    int mantissa = code & (normal - 1);
    if (code == 0x80) return NAN;
    double size = ldexp(exponent ? normal + mantissa : mantissa,
                        (exponent ? exponent : 1) - quarter->bias - quarter->mantissa_bits);
    return (float)(code >> 7 ? -size : size);
}

static float round_to_quarter(float value, const struct quarter *quarter, double unit, int nan_on_overflow) {
    if (isnan(value) || (isinf(value) && nan_on_overflow)) return NAN;
    double size = isinf(value)
                      ? INFINITY
                      : round_to_bits(fabs((double)value) / unit, quarter->mantissa_bits, 1 - quarter->bias);
    if (size > quarter->largest) size = nan_on_overflow ? NAN : quarter->largest;
    /* There is no negative zero. */
    return size == 0 ? 0 : (float)copysign(size * unit, value);
}

static float element_of(const struct operand *operand, int64_t i) {
    switch (operand->element) {
    case HALF: return value_of_half(((const uint16_t *)operand->data)[i]);
    case F143:
    case F152:
        return operand->unit *
               value_of_code(((const uint8_t *)operand->data)[i], &QUARTERS[operand->element]);
    default: return ((const float *)operand->data)[i];
    }
}

static float value_at(const struct values *values, int64_t i) {
    return values->is_half ? value_of_half(((const uint16_t *)values->data)[i])
                           : ((const float *)values->data)[i];
}

static float apply(const struct step *step, float x, float y, const struct values *table,
                   int nan_on_overflow) {
    switch (step->kind) {
    case STEP_ADD: return x + y;
    case STEP_SUBTRACT: return x - y;
    case STEP_TAKE: return y - x;
    case STEP_MULTIPLY: return x * y;
    case STEP_DIVIDE: return x / y;
    case STEP_UNDER: return y / x;
    case STEP_MAXIMUM: return isnan(x) || isnan(y) ? NAN : x > y ? x : y;
    case STEP_MINIMUM: return isnan(x) || isnan(y) ? NAN : x < y ? x : y;
    case STEP_TABLE: return value_at(table, bits_of_half(x));
    case STEP_F143:
    case STEP_F152:
        return round_to_quarter(x, &QUARTERS[step->kind == STEP_F143 ? F143 : F152], y, nan_on_overflow);
    default: return x;
    }
}

static void check_step(const struct program *program, const struct step *step, float x, float y) {
    float made = apply(step, x, y, NULL, 1);
    int is_new = isinf(made) && (step->rounding == GROWING || (isfinite(x) && isfinite(y)));
    int is_too_large = step->rounding != KEPT && isfinite(made) && isinf(round_to_half(made, PLAIN, 0));
    if (isnan(made) || is_new || is_too_large) *program->exception = 1;
}

/* `places`: where each operand's element lies. */
static float run_steps(const struct program *program, const struct values *values, const int64_t *places,
                       float x) {
    for (int i = 0; i < program->num_steps; i++) {
        const struct step *step = &program->steps[i];
        const struct values *operand = step->operand < 0 ? NULL : &values[step->operand];
        float y =
            operand && step->kind != STEP_TABLE ? value_at(operand, places[step->operand]) : step->number;
        if (program->exception && step->kind != STEP_TABLE) check_step(program, step, x, y);
        x = apply(step, x, y, operand, program->nan_on_overflow);
        if (step->kind != STEP_TABLE) x = round_to_half(x, step->rounding, program->nan_on_overflow);
    }
    return x;
}

enum { MAX_PLACES = 64 };

static void place(const struct program *program, const struct values *values, int64_t b, int64_t i, int64_t j,
                  int64_t *places) {
    for (int s = 0; s < program->num_steps; s++) {
        int o = program->steps[s].operand;
        if (o >= 0) places[o] = b * values[o].batch + i * values[o].row + j * values[o].column;
    }
}

/* A sum as it goes: `end_block` where a block is at its end. */
struct sum {
    float total, block;
    float strict; /* the total, were what is too large NaN: then it is an exception */
};

static void end_block(struct sum *sum, int is_rounded, int nan_on_overflow) {
    sum->total = round_to_half(sum->total + sum->block, is_rounded ? ROUNDED : KEPT, nan_on_overflow);
    sum->strict = round_to_half(sum->strict + sum->block, is_rounded ? ROUNDED : KEPT, 1);
    sum->block = 0;
}

static float take_total(const struct sum *sum, const struct program *program, int is_rounded) {
    if (program->exception && is_rounded && isnan(sum->strict)) *program->exception = 1;
    return sum->total;
}

void plain_multiply(const struct product *p) {
    int64_t places[MAX_PLACES];
    for (int64_t b = 0; b < p->batches; b++)
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t j = 0; j < p->columns; j++) {
                int64_t left = (p->left_starts ? p->left_starts[b] : 0) + i * p->left_row;
                int64_t right = (p->right_starts ? p->right_starts[b] : 0) + j * p->right_column;
                struct sum sum = {0};
                for (int64_t k = 0; k < p->depth; k++) {
                    sum.block += element_of(&p->left, left + k * p->left_channel) *
                                 element_of(&p->right, right + k * p->right_channel);
                    if (k + 1 == p->depth || (p->block && (k + 1) % p->block == 0))
                        end_block(&sum, p->block, p->nan_on_overflow);
                }
                place(&p->program, p->values, b, i, j, places);
                p->result[(b * p->rows + i) * p->columns + j] =
                    run_steps(&p->program, p->values, places, take_total(&sum, &p->program, p->block));
            }
}

/* --- convolutions: a position of the kernel at a position of the result --- */

struct at {
    const struct convolution *of;
    int64_t n, o, result[MAX_SPATIAL];
};

/* The products of one kernel position and the channels from `first` to before `last`. */
static void add_position(const struct at *at, const int64_t *kernel, int64_t first, int64_t last,
                         float *sum) {
    const struct convolution *c = at->of;
    int64_t field = 0, filter = 0, field_size = 1, kernel_size = 1, is_inside = 1;
    for (int a = 0; a < MAX_SPATIAL; a++) {
        int64_t x = at->result[a] * c->strides[a] + kernel[a] * c->dilations[a] - c->before[a];
        is_inside &= x >= 0 && x < c->field[a];
        field = field * c->field[a] + x;
        filter = filter * c->kernel[a] + kernel[a];
        field_size *= c->field[a];
        kernel_size *= c->kernel[a];
    }
    int64_t group = at->o / c->outputs;
    for (int64_t i = first; i < last; i++) {
        int64_t channel = (at->n * c->groups + group) * c->channels + i;
        float x = is_inside ? element_of(&c->source, channel * field_size + field) : 0;
        *sum += x * element_of(&c->filters, (at->o * c->channels + i) * kernel_size + filter);
    }
}

/* Blocks of channels, in each the kernel positions, `together` of them along `axis` for one block. */
static float sum_blocks(const struct at *at, int axis, int64_t together) {
    const struct convolution *c = at->of;
    int64_t block = c->block ? c->block : c->channels;
    struct sum sum = {0};
    int64_t steps[MAX_SPATIAL] = {1, 1, 1}, k[MAX_SPATIAL];
    steps[axis] = together;
    for (int64_t first = 0; first < c->channels; first += block) {
        int64_t last = first + block < c->channels ? first + block : c->channels;
        for (k[0] = 0; k[0] < c->kernel[0]; k[0] += steps[0])
            for (k[1] = 0; k[1] < c->kernel[1]; k[1] += steps[1])
                for (k[2] = 0; k[2] < c->kernel[2]; k[2] += steps[2]) {
                    int64_t position[MAX_SPATIAL];
                    memcpy(position, k, sizeof position);
                    for (int64_t t = 0; t < together && k[axis] + t < c->kernel[axis]; t++) {
                        position[axis] = k[axis] + t;
                        add_position(at, position, first, last, &sum.block);
                    }
                    end_block(&sum, c->block, c->nan_on_overflow);
                }
    }
    return take_total(&sum, &c->program, c->block);
}

void plain_convolve(const struct convolution *c) {
    int64_t places[MAX_PLACES], outputs = c->groups * c->outputs;
    int axis = c->slic_taps ? MAX_SPATIAL - 1 : c->packed_axis;
    int64_t together = c->slic_taps ? c->slic_taps : c->packed_rows;
    int64_t positions = c->result_sizes[0] * c->result_sizes[1] * c->result_sizes[2];
    struct at at = {.of = c};
    for (at.n = 0; at.n < c->batches; at.n++)
        for (at.o = 0; at.o < outputs; at.o++)
            for (int64_t p = 0; p < positions; p++) {
                at.result[2] = p % c->result_sizes[2];
                at.result[1] = p / c->result_sizes[2] % c->result_sizes[1];
                at.result[0] = p / c->result_sizes[2] / c->result_sizes[1];
                float total = sum_blocks(&at, axis, together);
                place(&c->program, c->values, at.n, at.o, p, places);
                c->result[(at.n * outputs + at.o) * positions + p] =
                    run_steps(&c->program, c->values, places, total);
            }
}

/* --- chains --- */

void plain_run_chain(const struct chain *c) {
    int64_t places[MAX_PLACES] = {0}, elements = 1;
    for (int a = 0; a < c->rank; a++) elements *= c->sizes[a];
    for (int64_t e = 0; e < elements; e++) {
        int64_t rest = e, source = 0;
        memset(places, 0, sizeof places);
        for (int a = c->rank; a-- > 0;) {
            int64_t i = rest % c->sizes[a];
            rest /= c->sizes[a];
            source += i * c->source_strides[a];
            for (int s = 0; s < c->program.num_steps; s++) {
                int o = c->program.steps[s].operand, first = 1;
                for (int before = 0; before < s; before++) first &= c->program.steps[before].operand != o;
                if (o >= 0 && first) places[o] += i * c->value_strides[o][a];
            }
        }
        float x = value_at(&(struct values){.data = c->source, .is_half = c->source_is_half}, source);
        c->result[e] = run_steps(&c->program, c->values, places, x);
    }
}

/* --- recurrent networks: one value of one row at a time --- */

/* A step of a row: what it is given, and where its gates' weights and states begin. */
struct moment {
    const struct recurrence *of;
    int64_t direction;
    const float *input, *state, *cells;
};

static float rounded(const struct recurrence *of, float value) {
    return round_to_half(value, ROUNDED, of->nan_on_overflow);
}

static float function_of(const struct moment *m, int function, float x, int is_clipped) {
    float clip = m->of->clip;
    if (is_clipped && x > clip) x = clip;
    if (is_clipped && x < -clip) x = -clip;
    return value_of_half(m->of->tables[m->direction][function][bits_of_half(x)]);
}

/* Channels from `first` to before `last` of the input and `state`, joined, times a gate's column. */
static float sum_channels(const struct moment *m, const float *state, int64_t first, int64_t last,
                          int64_t gate, int64_t unit) {
    const struct recurrence *of = m->of;
    int64_t columns = count_gates(of->cell) * pad_gate(of->hidden);
    float total = 0, sum = 0;
    for (int64_t k = first; k < last; k++) {
        int64_t row = m->direction * (of->width + of->hidden) + k;
        float left = k < of->width ? m->input[k] : state[k - of->width];
        sum += left * value_of_half(of->weights[row * columns + gate * pad_gate(of->hidden) + unit]);
        if ((k - first + 1) % of->block && k + 1 < last) continue;
        total = rounded(of, total + sum);
        sum = 0;
    }
    return total;
}

/* The bias of the input (0) or the state (1). */
static float bias_of(const struct moment *m, int side, int64_t gate, int64_t unit) {
    int64_t gates = count_gates(m->of->cell);
    return m->of->bias[((2 * m->direction + side) * gates + gate) * m->of->hidden + unit];
}

static float gate_of(const struct moment *m, const float *state, int64_t gate, int64_t unit) {
    const struct recurrence *of = m->of;
    float sum = sum_channels(m, state, 0, of->width + of->hidden, gate, unit);
    if (!of->bias) return sum;
    return rounded(of, sum + rounded(of, bias_of(m, 0, gate, unit) + bias_of(m, 1, gate, unit)));
}

/* The sum of the input (0) or the state (1) alone. */
static float side_of(const struct moment *m, int side, int64_t gate, int64_t unit) {
    const struct recurrence *of = m->of;
    int64_t last = side ? of->width + of->hidden : of->width;
    float sum = sum_channels(m, m->state, side ? of->width : 0, last, gate, unit);
    return of->bias ? rounded(of, sum + bias_of(m, side, gate, unit)) : sum;
}

static float look(const struct moment *m, int64_t peephole, float gate, float cells, int64_t unit) {
    const struct recurrence *of = m->of;
    if (!of->peepholes) return gate;
    float weight = of->peepholes[(m->direction * 3 + peephole) * of->hidden + unit];
    return rounded(of, gate + rounded(of, cells * weight));
}

static float run_lstm(const struct moment *m, int64_t unit, float *cells) {
    const struct recurrence *of = m->of;
    float before = m->cells[unit];
    float in = function_of(m, 0, look(m, 0, gate_of(m, m->state, 0, unit), before, unit), 1);
    float kept = function_of(m, 0, look(m, 2, gate_of(m, m->state, 2, unit), before, unit), 1);
    if (of->is_coupled) kept = rounded(of, 1 - in);
    float new = function_of(m, 1, gate_of(m, m->state, 3, unit), 1);
    *cells = rounded(of, rounded(of, before * kept) + rounded(of, new * in));
    float out = function_of(m, 0, look(m, 1, gate_of(m, m->state, 1, unit), *cells, unit), 1);
    return rounded(of, function_of(m, 2, *cells, 0) * out);
}

static float run_gru(const struct moment *m, int64_t unit, const float *reset_state) {
    const struct recurrence *of = m->of;
    float update, new;
    if (of->cell == CELL_GRU) {
        update = function_of(m, 0, gate_of(m, m->state, 0, unit), 1);
        new = function_of(m, 1, gate_of(m, reset_state, 2, unit), 1);
    } else {
        update = function_of(m, 0, rounded(of, side_of(m, 0, 0, unit) + side_of(m, 1, 0, unit)), 1);
        float reset = function_of(m, 0, rounded(of, side_of(m, 0, 1, unit) + side_of(m, 1, 1, unit)), 1);
        float kept = rounded(of, side_of(m, 1, 2, unit) * reset);
        new = function_of(m, 1, rounded(of, side_of(m, 0, 2, unit) + kept), 1);
    }
    return rounded(of, new + rounded(of, update * rounded(of, m->state[unit] - new)));
}

/* The new state of a row, and its cells, in the place of the old. */
static void run_moment(const struct moment *m, float *state, float *cells) {
    const struct recurrence *of = m->of;
    float made[of->hidden], made_cells[of->hidden], reset_state[of->hidden];
    for (int64_t i = 0; of->cell == CELL_GRU && i < of->hidden; i++)
        reset_state[i] = rounded(of, function_of(m, 0, gate_of(m, m->state, 1, i), 1) * m->state[i]);
    for (int64_t i = 0; i < of->hidden; i++)
        made[i] = of->cell == CELL_RNN    ? function_of(m, 0, gate_of(m, m->state, 0, i), 1)
                  : of->cell == CELL_LSTM ? run_lstm(m, i, &made_cells[i])
                                          : run_gru(m, i, reset_state);
    memcpy(state, made, sizeof made);
    if (of->cell == CELL_LSTM) memcpy(cells, made_cells, sizeof made_cells);
}

static void run_row(const struct recurrence *of, int64_t direction, int64_t row) {
    int64_t place = (direction * of->batch + row) * of->hidden;
    float cells[of->hidden], *state = of->last + place;
    for (int64_t i = 0; i < of->hidden; i++) {
        state[i] = of->state ? of->state[place + i] : 0;
        cells[i] = of->cells ? of->cells[place + i] : 0;
    }
    for (int64_t i = 0; i < of->steps; i++) {
        int64_t step = direction || of->is_reversed ? of->steps - 1 - i : i;
        float *to = of->all + ((step * of->directions + direction) * of->batch + row) * of->hidden;
        struct moment m = {of, direction, of->source + (step * of->batch + row) * of->width, state, cells};
        int is_there = !of->lengths || step < of->lengths[row];
        if (is_there) run_moment(&m, state, cells);
        for (int64_t unit = 0; unit < of->hidden; unit++) to[unit] = is_there ? state[unit] : 0;
    }
    if (of->cell == CELL_LSTM) memcpy(of->last_cells + place, cells, sizeof cells);
}

void plain_recur(const struct recurrence *of) {
    for (int64_t direction = 0; direction < of->directions; direction++)
        for (int64_t row = 0; row < of->batch; row++) run_row(of, direction, row);
}
