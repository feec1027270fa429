/* What becomes of computed values: the steps of a program, on a run of neighbouring elements at a time that
   the first cache holds. A value is rounded in the register that it was computed in. */

#ifndef SIMIPU_STEPS_H
#define SIMIPU_STEPS_H

#include "kernels.h"
#include "vectors.h"

enum { RUN = 1024 }; /* elements of a run, at most; buffers of runs have LANES more */

/* The operand of a step for a run: one value for all of it, or one for each element, which begin again after
   each `period`, a power of two of whole registers; 0: they do not. */
struct operand_run {
    int is_one, is_half;
    float one;
    const void *data;
    int64_t period;
};

INLINE float read_value(const void *data, int is_half, int64_t index) {
    if (!is_half) return ((const float *)data)[index];
    uint16_t halves[LANES] = {((const uint16_t *)data)[index]};
    float wide[LANES];
    v_store(wide, v_widen(halves));
    return wide[0];
}

/* Loads and stores of the last, incomplete register: nothing beyond a tensor is touched. */
INLINE V load_some(const float *from, int64_t count) {
    return count >= LANES ? v_load(from) : v_load_part(from, count);
}

INLINE V widen_some(const uint16_t *from, int64_t count) {
    return count >= LANES ? v_widen(from) : v_widen_part(from, count);
}

INLINE void store_some(float *to, V x, int64_t count) {
    if (count >= LANES)
        v_store(to, x);
    else
        v_store_part(to, x, count);
}

INLINE V take_operand(const struct operand_run *operand, V one, int64_t at, int64_t count) {
    if (operand->is_one) return one;
    if (operand->period) at &= operand->period - 1, count = at + LANES;
    if (operand->is_half) return widen_some((const uint16_t *)operand->data + at, count - at);
    return load_some((const float *)operand->data + at, count - at);
}

INLINE V v_maximum(V x, V y) { return v_if_nan(x, y, v_add(x, y), v_max(x, y)); }
INLINE V v_minimum(V x, V y) { return v_if_nan(x, y, v_add(x, y), v_min(x, y)); }

/* To an 8-bit format: adding and taking away a large multiple leaves the leading bits, to nearest even; of
   normal values a multiple of themselves (Veltkamp's splitting, exact for the 11 bits of a half), of others a
   fixed one. */
INLINE V v_quarter(V x, float unit, int is_f152, int nan_on_overflow) {
    /* With m mantissa bits, 2 of F152 and 3 of F143: splits 2**(23 - m) + 1; the largest value; the least
       normal value and the least above zero, the step of subnormals; anchor 1.5 * 2**23 of these steps. */
    const float splits = is_f152 ? 0x1p21f + 1 : 0x1p20f + 1, most = is_f152 ? 57344.0f : 240.0f;
    const float least_normal = is_f152 ? 0x1p-15f : 0x1p-7f, least = is_f152 ? 0x1p-17f : 0x1p-10f;
    V limit = v_all(most * unit), anchor = v_all(0x1.8p23f * least * unit);
    if (!nan_on_overflow) x = v_min(limit, v_max(v_all(-most * unit), x));
    V grown = v_mul(x, v_all(splits)), normal = v_sub(grown, v_sub(grown, x));
    V small = v_sub(v_add(x, anchor), anchor);
    V rounded = v_if_less(v_abs(x), v_all(least_normal * unit), small, normal);
    return nan_on_overflow ? v_if_less(limit, v_abs(rounded), v_all(__builtin_nanf("")), rounded) : rounded;
}

INLINE V apply(enum kind kind, V x, V y, float unit, int nan_on_overflow) {
    switch (kind) {
    case STEP_ADD: return v_add(x, y);
    case STEP_SUBTRACT: return v_sub(x, y);
    case STEP_TAKE: return v_sub(y, x);
    case STEP_MULTIPLY: return v_mul(x, y);
    case STEP_DIVIDE: return v_div(x, y);
    case STEP_UNDER: return v_div(y, x);
    case STEP_MAXIMUM: return v_maximum(x, y);
    case STEP_MINIMUM: return v_minimum(x, y);
    case STEP_F143: return v_quarter(x, unit, 0, nan_on_overflow);
    case STEP_F152: return v_quarter(x, unit, 1, nan_on_overflow);
    default: return x;
    }
}

INLINE V round_value(V x, enum rounding rounding, int nan_on_overflow) {
    if (rounding == KEPT) return x;
    if (rounding == PLAIN) return v_half(x);
    int growing = rounding == GROWING;
    return nan_on_overflow ? v_half_or_nan(x, growing) : v_half_bounded(x, growing);
}

/* The same of a few registers, of which seldom a value is too large: then all are rounded once more. */
enum { ROUNDED_TOGETHER = 4 };

INLINE void round_together(V values[ROUNDED_TOGETHER], enum rounding rounding, int nan_on_overflow) {
    V halves[ROUNDED_TOGETHER], lost = v_all(0);
    for (int i = 0; i < ROUNDED_TOGETHER; i++) {
        halves[i] = v_half(values[i]);
        lost = v_add(lost, v_sub(halves[i], halves[i])); /* NaN where one is infinite or NaN */
    }
    int is_lost = !v_are_zero(lost);
    for (int i = 0; i < ROUNDED_TOGETHER; i++)
        values[i] = is_lost ? round_value(values[i], rounding, nan_on_overflow) : halves[i];
}

INLINE void apply_to_run(enum kind kind, enum rounding rounding, int nan_on_overflow,
                         const struct operand_run *y, const float *from, float *to, int64_t count) {
    V one = v_all(y->one);
    int64_t at = 0;
    for (; rounding != KEPT && at + ROUNDED_TOGETHER * LANES <= count; at += ROUNDED_TOGETHER * LANES) {
        V values[ROUNDED_TOGETHER];
        for (int i = 0; i < ROUNDED_TOGETHER; i++) {
            int64_t place = at + i * LANES;
            values[i] = apply(kind, v_load(from + place), take_operand(y, one, place, count), y->one,
                              nan_on_overflow);
        }
        round_together(values, rounding, nan_on_overflow);
        for (int i = 0; i < ROUNDED_TOGETHER; i++) v_store(to + at + i * LANES, values[i]);
    }
    for (; at < count; at += LANES) {
        V x = load_some(from + at, count - at);
        x = apply(kind, x, take_operand(y, one, at, count), y->one, nan_on_overflow);
        store_some(to + at, round_value(x, rounding, nan_on_overflow), count - at);
    }
}

/* What half models are full of has loops of its own; all else goes through one with its choices inside. */
static void run_step(const struct step *step, int nan_on_overflow, const struct operand_run *y,
                     const float *from, float *to, int64_t count) {
    if (step->rounding == ROUNDED && !nan_on_overflow) {
        switch (step->kind) {
        case STEP_NONE: apply_to_run(STEP_NONE, ROUNDED, 0, y, from, to, count); return;
        case STEP_ADD: apply_to_run(STEP_ADD, ROUNDED, 0, y, from, to, count); return;
        case STEP_MULTIPLY: apply_to_run(STEP_MULTIPLY, ROUNDED, 0, y, from, to, count); return;
        default: break;
        }
    }
    if (step->rounding == KEPT && step->kind == STEP_MAXIMUM) {
        apply_to_run(STEP_MAXIMUM, KEPT, 0, y, from, to, count);
        return;
    }
    apply_to_run(step->kind, step->rounding, nan_on_overflow, y, from, to, count);
}

static void look_up(const uint16_t *table, const float *from, float *to, int64_t count) {
    for (int64_t at = 0; at < count; at += LANES)
        store_some(to + at, v_look_up(table, load_some(from + at, count - at)), count - at);
}

static void raise_exception(const struct program *program) {
    __atomic_store_n(program->exception, 1, __ATOMIC_RELAXED);
}

/* Of totals or other values that are NaN where anything was lost. */
static void check_values(const struct program *program, const float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (values[i] != values[i]) raise_exception(program);
}

INLINE int is_finite(float x) { return x - x == 0; }

enum { TOO_LARGE = 65520 }; /* the least number that is rounded beyond the largest half */

INLINE int is_exception(float made, float x, float y, enum rounding rounding) {
    if (made != made) return 1;
    if (!is_finite(made)) return rounding == GROWING || (is_finite(x) && is_finite(y));
    return rounding != KEPT && __builtin_fabsf(made) >= TOO_LARGE;
}

/* Whether a step of these values is an exception: looked at before it is taken, a register at a time; closely
   where something is infinite, NaN or too large. */
static void check_step(const struct program *program, const struct step *step,
                       const struct operand_run *operand, const float *from, int64_t count) {
    V one = v_all(operand->one), limit = v_all(step->rounding == KEPT ? __builtin_inff() : (float)TOO_LARGE);
    for (int64_t at = 0; at < count; at += LANES) {
        V value = load_some(from + at, count - at), other = take_operand(operand, one, at, count);
        V result = apply(step->kind, value, other, operand->one, 1);
        if (v_are_zero(v_if_less(v_abs(result), limit, v_all(0), v_all(1)))) continue;
        float x[LANES], y[LANES], made[LANES];
        v_store(x, value);
        v_store(y, other);
        v_store(made, result);
        for (int i = 0; i < LANES && at + i < count; i++)
            if (is_exception(made[i], x[i], y[i], step->rounding)) raise_exception(program);
    }
}

/* --- whole programs --- */

/* Where the elements of a run lie: `pitch` floats from each CHANNEL_BLOCK to the next; 0: one after the
   other. */
struct source {
    const float *from;
    ptrdiff_t pitch;
};

INLINE const float *find_element(struct source source, int64_t at) {
    return source.from + (source.pitch ? at / CHANNEL_BLOCK * source.pitch + at % CHANNEL_BLOCK : at);
}

/* What most products and convolutions end with, which is done while a value is in its register: a rounding, a
   bias, a tensor of the result's shape, a Relu, a table and a rounding to 8 bits. */
struct ending {
    const struct operand_run *bias, *other; /* NULL: none */
    const uint16_t *table;                  /* likewise */
    const struct step *quarter;             /* likewise */
    int is_rounded, is_relu, is_hard_swish; /* the table's function */
};

INLINE int is_relu(const struct step *step) {
    return step->kind == STEP_MAXIMUM && step->rounding == KEPT && step->operand < 0 && step->number == 0 &&
           !__builtin_signbit(step->number);
}

/* Whether a step was added to the ending. */
static int add_to_ending(const struct step *step, const struct operand_run *operands, struct ending *ending) {
    const struct operand_run *y = step->operand < 0 ? NULL : operands + step->operand;
    if (ending->quarter) return 0;
    if (step->kind == STEP_F143 || step->kind == STEP_F152)
        return step->rounding == KEPT && (ending->quarter = step);
    if (ending->table) return 0;
    if (step->kind == STEP_TABLE) {
        ending->table = y->data;
        ending->is_hard_swish = step->number == HARD_SWISH;
        return 1;
    }
    if (ending->is_relu) return 0;
    if (is_relu(step)) return ending->is_relu = 1;
    if (step->rounding != ROUNDED || ending->other) return 0;
    if (step->kind == STEP_NONE) return ending->bias ? 0 : (ending->is_rounded = 1);
    if (step->kind != STEP_ADD || !y) return 0;
    if (!y->is_one && !y->period) return (ending->other = y) != NULL;
    return ending->bias ? 0 : (ending->bias = y) != NULL;
}

static int find_ending(const struct program *program, const struct operand_run *operands,
                       struct ending *ending) {
    *ending = (struct ending){0};
    if (program->nan_on_overflow || program->exception) return 0;
    for (int i = 0; i < program->num_steps; i++)
        if (!add_to_ending(program->steps + i, operands, ending)) return 0;
    return 1;
}

/* max(x, +0): NaN stays NaN, and -0 becomes +0. */
INLINE V v_relu(V x) { return v_add(v_max(v_all(0), x), v_all(0)); }

/* Of a group of registers or the last, incomplete one. */
INLINE void round_some(int registers, V *x) {
    if (registers == ROUNDED_TOGETHER)
        round_together(x, ROUNDED, 0);
    else
        x[0] = round_value(x[0], ROUNDED, 0);
}

INLINE void add_rounded(const struct operand_run *y, int registers, V *x, int64_t at, int64_t count) {
    V one = v_all(y->one);
    for (int i = 0; i < registers; i++) x[i] = v_add(x[i], take_operand(y, one, at + i * LANES, at + count));
    round_some(registers, x);
}

/* By the table where one is infinite or NaN. */
INLINE void look_up_some(const struct ending *ending, int registers, V *x) {
    V lost = v_all(0);
    for (int i = 0; i < registers && ending->is_hard_swish; i++) lost = v_add(lost, v_sub(x[i], x[i]));
    int is_computed = ending->is_hard_swish && v_are_zero(lost);
    for (int i = 0; i < registers; i++)
        x[i] = is_computed ? v_hard_swish(x[i]) : v_look_up(ending->table, x[i]);
}

INLINE void take_ending(const struct ending *ending, int registers, V *x, int64_t at, int64_t count) {
    if (ending->is_rounded) round_some(registers, x);
    if (ending->bias) add_rounded(ending->bias, registers, x, at, count);
    if (ending->other) add_rounded(ending->other, registers, x, at, count);
    for (int i = 0; i < registers && ending->is_relu; i++) x[i] = v_relu(x[i]);
    if (ending->table) look_up_some(ending, registers, x);
    for (int i = 0; i < registers && ending->quarter; i++)
        x[i] = v_quarter(x[i], ending->quarter->number, ending->quarter->kind == STEP_F152, 0);
}

static void run_ending(const struct ending *ending, struct source source, float *to, int64_t count) {
    enum { GROUP = ROUNDED_TOGETHER * LANES };
    int64_t at = 0;
    for (; at + GROUP <= count; at += GROUP) {
        V x[ROUNDED_TOGETHER];
        for (int i = 0; i < ROUNDED_TOGETHER; i++) x[i] = v_load(find_element(source, at + i * LANES));
        take_ending(ending, ROUNDED_TOGETHER, x, at, GROUP);
        for (int i = 0; i < ROUNDED_TOGETHER; i++) v_store(to + at + i * LANES, x[i]);
    }
    for (; at < count; at += LANES) {
        V x = load_some(find_element(source, at), count - at);
        take_ending(ending, 1, &x, at, count - at);
        store_some(to + at, x, count - at);
    }
}

/* to = steps(source), of `count` <= RUN elements, whole blocks where there is a pitch; `operands` has each
   operand's values for the run. */
static void run_steps(const struct program *program, const struct operand_run *operands, struct source source,
                      float *to, int64_t count) {
    struct ending ending;
    if (find_ending(program, operands, &ending)) {
        run_ending(&ending, source, to, count);
        return;
    }
    const float *from = source.from;
    if (source.pitch || !program->num_steps) {
        for (int64_t at = 0; at < count; at += LANES)
            store_some(to + at, load_some(find_element(source, at), count - at), count - at);
        from = to;
    }
    for (int i = 0; i < program->num_steps; i++, from = to) {
        const struct step *step = program->steps + i;
        struct operand_run number = {1, 0, step->number, NULL, 0};
        const struct operand_run *y = step->operand < 0 ? &number : operands + step->operand;
        if (program->exception && step->kind != STEP_TABLE) check_step(program, step, y, from, count);
        if (step->kind == STEP_TABLE)
            look_up(y->data, from, to, count);
        else
            run_step(step, program->nan_on_overflow, y, from, to, count);
    }
}

/* The operand of a step for the run that begins at its element `start`. */
INLINE void find_operand(const struct step *step, const struct values *value, int64_t start,
                         struct operand_run *operand) {
    if (step->kind == STEP_TABLE) start = 0;
    operand->is_half = value->is_half;
    operand->is_one = value->column == 0;
    operand->period = 0;
    operand->data = (const char *)value->data + start * (value->is_half ? 2 : 4);
    operand->one = operand->is_one ? read_value(value->data, value->is_half, start) : 0;
}

/* The operands of a program for the run of columns from `column` on, in a batch and a row. */
INLINE void find_operands(const struct program *program, const struct values *values, int64_t batch,
                          int64_t row, int64_t column, struct operand_run *operands) {
    for (int i = 0; i < program->num_steps; i++) {
        int operand = program->steps[i].operand;
        if (operand < 0) continue;
        const struct values *value = values + operand;
        int64_t start = batch * value->batch + row * value->row + column * value->column;
        find_operand(program->steps + i, value, start, operands + operand);
    }
}

/* The same where channels are in blocks, for a run of positions from `position` on of the block that begins
   with the row `channel`: CHANNEL_BLOCK elements for each. */
INLINE void find_blocked_operands(const struct program *program, const struct values *values, int64_t batch,
                                  int64_t channel, int64_t position, struct operand_run *operands) {
    for (int i = 0; i < program->num_steps; i++) {
        int operand = program->steps[i].operand;
        if (operand < 0) continue;
        struct values value = values[operand];
        int64_t start = batch * value.batch + channel * value.row + position * value.column * CHANNEL_BLOCK;
        int is_repeated = !value.column && value.row;
        value.column = value.column || value.row;
        find_operand(program->steps + i, &value, start, operands + operand);
        if (is_repeated) operands[operand].period = CHANNEL_BLOCK;
    }
}

#endif
