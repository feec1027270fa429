/* Recurrent: from what a call is given to what kernels.h wants, all of it checked. */

#include <string.h>

#include "calls.h"
#include "operators.h"

enum { AXES = 3, ALL_AXES = 4, NUM_BIASES = 2, NUM_PEEPHOLES = 3, TABLE_ELEMENTS = 1 << 16 };

static struct ort_status *check_input(const struct call *call, size_t i, enum ort_type type, size_t rank,
                                      const int64_t *sizes) {
    const struct tensor *found = &call->inputs[i];
    if (found->type != type || found->rank != rank)
        return refuse(call->node, "input %zu: expected ONNX type %d and %zu axes, found %d and %zu", i,
                      (int)type, rank, (int)found->type, found->rank);
    for (size_t axis = 0; axis < rank; axis++)
        if (found->sizes[axis] != sizes[axis])
            return refuse(call->node, "input %zu, axis %zu: expected a size of %lld, found %lld", i, axis,
                          (long long)sizes[axis], (long long)found->sizes[axis]);
    return NULL;
}

/* An input that may be missing: its place is an attribute. */
static struct ort_status *find_input(const struct call *call, int64_t place, enum ort_type type, size_t rank,
                                     const int64_t *sizes, const void *found) {
    if (!place) return NULL;
    if ((size_t)place >= call->node->inputs)
        return refuse(call->node, "expected input %lld, which an attribute names, found %zu inputs",
                      (long long)place, call->node->inputs);
    TRY(check_input(call, (size_t)place, type, rank, sizes));
    memcpy((void *)found, &call->inputs[place].data, sizeof(void *));
    return NULL;
}

/* Each row has from 0 to all of the steps, as in ONNX Runtime's own kernels. */
static struct ort_status *check_lengths(const struct call *call, const struct recurrence *of) {
    for (int64_t row = 0; of->lengths && row < of->batch; row++)
        if (of->lengths[row] < 0 || of->lengths[row] > of->steps)
            return refuse(call->node,
                          "input sequence_lens, row %lld: expected a length from 0 to %lld, found %d",
                          (long long)row, (long long)of->steps, (int)of->lengths[row]);
    return NULL;
}

static struct ort_status *find_optional(const struct call *call, struct recurrence *of) {
    const struct node *node = call->node;
    int64_t states[] = {of->directions, of->batch, of->hidden};
    int64_t biases[] = {of->directions, NUM_BIASES * count_gates(of->cell) * of->hidden};
    int64_t peepholes[] = {of->directions, NUM_PEEPHOLES * of->hidden};
    TRY(find_input(call, node->bias, ORT_FLOAT, 2, biases, &of->bias));
    TRY(find_input(call, node->lengths, ORT_INT32, 1, &of->batch, &of->lengths));
    TRY(check_lengths(call, of));
    TRY(find_input(call, node->state, ORT_FLOAT, AXES, states, &of->state));
    TRY(find_input(call, node->cells, ORT_FLOAT, AXES, states, &of->cells));
    return find_input(call, node->peepholes, ORT_FLOAT, 2, peepholes, &of->peepholes);
}

/* The tables follow the weights: those of the first direction, then those of the second. */
static struct ort_status *find_tables(const struct call *call, struct recurrence *of) {
    static const int64_t elements = TABLE_ELEMENTS;
    int64_t functions = of->cell == CELL_RNN ? 1 : of->cell == CELL_LSTM ? MAX_FUNCTIONS : 2;
    for (int64_t i = 0; i < of->directions * functions; i++)
        TRY(find_input(call, 2 + i, ORT_FLOAT16, 1, &elements, &of->tables[i / functions][i % functions]));
    return NULL;
}

static float read_half(int64_t bits) {
    int64_t exponent = bits >> 10, rest = bits & 0x3FF;
    if (exponent == 31) return __builtin_inff();
    return __builtin_ldexpf((float)(exponent ? rest | 0x400 : rest), (int)(exponent ? exponent : 1) - 25);
}

/* The outputs; the cells are of no elements where there are none. */
static struct ort_status *open_outputs(struct call *call, struct recurrence *of) {
    int64_t all[] = {of->steps, of->directions, of->batch, of->hidden};
    int64_t last[] = {of->directions, of->batch, of->hidden};
    if (count_elements(all, ALL_AXES) < 0 || count_elements(last, AXES) < 0)
        return refuse(call->node, "the result: expected less than 2**61 elements, found more");
    TRY(open_output(call, 0, all, ALL_AXES, &of->all));
    TRY(open_output(call, 1, last, AXES, &of->last));
    if (of->cell != CELL_LSTM) last[0] = 0;
    return open_output(call, 2, last, AXES, &of->last_cells);
}

struct ort_status *run_recurrent(struct node *node, struct ort_context *context) {
    struct call call;
    TRY(begin(&call, node, context));
    const struct tensor *source = &call.inputs[0];
    if (source->rank != AXES) return refuse(node, "input 0: expected %d axes, found %zu", AXES, source->rank);
    struct recurrence recurrence = {
        .cell = (enum cell)node->cell,
        .directions = node->directions,
        .steps = source->sizes[0],
        .batch = source->sizes[1],
        .width = source->sizes[2],
        .hidden = node->hidden,
        .is_reversed = (int)node->is_reversed,
        .is_coupled = (int)node->is_coupled,
        .block = (int)node->block,
        .nan_on_overflow = (int)node->nan_on_overflow,
        .clip = read_half(node->clip),
        .source = source->data,
        .weights = call.inputs[1].data,
    };
    int64_t weights[] = {node->directions, recurrence.width + node->hidden,
                         count_gates(recurrence.cell) * pad_gate(node->hidden)};
    TRY(check_input(&call, 0, ORT_FLOAT, AXES, source->sizes));
    TRY(check_input(&call, 1, ORT_FLOAT16, AXES, weights));
    TRY(find_tables(&call, &recurrence));
    TRY(find_optional(&call, &recurrence));
    TRY(open_outputs(&call, &recurrence));
    struct machine machine = machine_of(&call);
    return conclude(&call, simipu_recur(&recurrence, &machine));
}
