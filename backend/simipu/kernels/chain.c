/* Chains of elementwise steps on a tensor, a run of its last axis at a time. */

#include "tasks.h"

enum { RUNS_OF_TASK = 16 };

struct walk {
    const struct chain *chain;
    int64_t runs_of_row, runs; /* of the last axis, of all */
};

/* Where the axes before the last put the row `row`, in elements. */
static int64_t place_row(const struct chain *chain, const int64_t *strides, int64_t row) {
    int64_t place = 0;
    for (int axis = chain->rank - 2; axis >= 0; axis--) {
        place += row % chain->sizes[axis] * strides[axis];
        row /= chain->sizes[axis];
    }
    return place;
}

static void run_run(const struct chain *chain, int64_t row, int64_t column, int64_t count) {
    int last = chain->rank - 1;
    struct operand_run operands[MAX_OPERANDS];
    float held[RUN + LANES];
    for (int i = 0; i < chain->program.num_steps; i++) {
        const struct step *step = chain->program.steps + i;
        if (step->operand < 0) continue;
        const int64_t *strides = chain->value_strides[step->operand];
        struct values value = chain->values[step->operand];
        value.column = strides[last];
        int64_t start = place_row(chain, strides, row) + column * strides[last];
        find_operand(step, &value, start, operands + step->operand);
    }
    /* Steps read floats that follow one another: halves are widened, and a value that is broadcast along
       the last axis is repeated. */
    int64_t start = place_row(chain, chain->source_strides, row) + column * chain->source_strides[last];
    const float *from = (const float *)chain->source + start;
    if (chain->source_is_half || !chain->source_strides[last]) {
        if (!chain->source_strides[last]) {
            float value = read_value(chain->source, chain->source_is_half, start);
            for (int64_t i = 0; i < count; i++) held[i] = value;
        } else {
            for (int64_t i = 0; i < count; i += LANES)
                v_store(held + i, widen_some((const uint16_t *)chain->source + start + i, count - i));
        }
        from = held;
    }
    run_steps(&chain->program, operands, (struct source){from, 0},
              chain->result + row * chain->sizes[last] + column, count);
}

static void run_some(void *data, size_t number) {
    const struct walk *walk = data;
    int64_t columns = walk->chain->sizes[walk->chain->rank - 1];
    int64_t first = (int64_t)number * RUNS_OF_TASK, end = first + RUNS_OF_TASK;
    for (int64_t run = first; run < end && run < walk->runs; run++) {
        int64_t column = run % walk->runs_of_row * RUN;
        run_run(walk->chain, run / walk->runs_of_row, column,
                columns - column < RUN ? columns - column : RUN);
    }
}

enum outcome OF_SET(simipu_run_chain)(const struct chain *chain, const struct machine *machine) {
    struct walk walk = {chain, divide_up(chain->sizes[chain->rank - 1], RUN), 1};
    walk.runs = walk.runs_of_row;
    for (int axis = 0; axis < chain->rank - 1; axis++) walk.runs *= chain->sizes[axis];
    int64_t tasks = divide_up(walk.runs, RUNS_OF_TASK);
    run_tasks(machine, tasks < 2, run_some, tasks, &walk);
    return DONE;
}
