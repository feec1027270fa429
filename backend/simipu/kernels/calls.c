/* What a call is given, checked against its node, and what its kernel works with. */

#include "calls.h"

#include <stdio.h>
#include <string.h>

enum { TABLE_ELEMENTS = 1 << 16, ALIGNMENT = 64 };

static struct ort_status *read_shape(const struct node *node, size_t i, const struct ort_shape *shape,
                                     struct tensor *tensor) {
    TRY(node->api->get_type(shape, &tensor->type));
    TRY(node->api->get_rank(shape, &tensor->rank));
    if (tensor->rank > MAX_AXES)
        return refuse(node, "input %zu: expected at most %d axes, found %zu", i, MAX_AXES, tensor->rank);
    return node->api->get_sizes(shape, tensor->sizes, tensor->rank);
}

static struct ort_status *read_tensor(struct call *call, size_t i) {
    const struct node *node = call->node;
    const struct ort_value *value;
    struct ort_shape *shape;
    TRY(node->api->get_input(call->context, i, &value));
    if (!value) return refuse(node, "input %zu: expected a tensor, found none", i);
    TRY(node->api->get_shape(value, &shape));
    struct ort_status *status = read_shape(node, i, shape, &call->inputs[i]);
    node->api->release_shape(shape);
    TRY(status);
    /* The entry is that of values to write to; this one is only read. */
    void *data;
    TRY(node->api->get_data((struct ort_value *)value, &data));
    call->inputs[i].data = data;
    return NULL;
}

struct ort_status *begin(struct call *call, struct node *node, struct ort_context *context) {
    call->node = node;
    call->context = context;
    call->has_failed = call->exception = 0;
    memset(call->values, 0, sizeof call->values);
    for (size_t i = 0; i < node->inputs; i++) TRY(read_tensor(call, i));
    return NULL;
}

struct tensor *operand_of(struct call *call, int operand) {
    return &call->inputs[call->node->description->fixed + (size_t)operand];
}

static struct ort_status *refuse_operand(const struct node *node, int operand, const char *expected,
                                         const struct tensor *found) {
    char text[MAX_MESSAGE / 2] = "";
    size_t used = 0;
    for (size_t i = 0; i < found->rank && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", i ? ", " : "",
                                 (long long)found->sizes[i]);
    return refuse(node, "operand %d of the steps: expected %s, found [%s] of ONNX type %d", operand, expected,
                  text, (int)found->type);
}

struct ort_status *check_operands(struct call *call) {
    struct node *node = call->node;
    for (int i = 0; i < node->program.num_steps; i++) {
        int operand = node->steps[i].operand;
        if (operand < 0) continue;
        const struct tensor *found = operand_of(call, operand);
        int is_half = found->type == ORT_FLOAT16;
        if (node->steps[i].kind == STEP_TABLE &&
            !(is_half && found->rank == 1 && found->sizes[0] == TABLE_ELEMENTS))
            return refuse_operand(node, operand, "a table of 65536 halves", found);
        if (!is_half && found->type != ORT_FLOAT)
            return refuse_operand(node, operand, "floats or halves", found);
        call->values[operand] = (struct values){.data = found->data, .is_half = is_half};
    }
    return NULL;
}

/* Whether the axes of an operand that lie on those of the result from `first` to before `last`, both aligned
   right, are as large (1), all of one element (0), or neither (-1). */
static int match_axes(const struct tensor *operand, const int64_t *sizes, size_t rank, size_t first,
                      size_t last) {
    int is_whole = 1, is_one = 1;
    for (size_t i = first; i < last; i++) {
        int64_t size = i + operand->rank < rank ? 1 : operand->sizes[i + operand->rank - rank];
        is_whole &= size == sizes[i];
        is_one &= size == 1;
    }
    return is_one ? 0 : is_whole ? 1 : -1;
}

struct ort_status *place_operands(struct call *call, const int64_t *sizes, size_t rank, size_t row_axis) {
    struct node *node = call->node;
    TRY(check_operands(call));
    int64_t columns = 1;
    for (size_t i = row_axis + 1; i < rank; i++) columns *= sizes[i];
    for (int i = 0; i < node->program.num_steps; i++) {
        int number = node->steps[i].operand;
        if (number < 0 || node->steps[i].kind == STEP_TABLE) continue;
        const struct tensor *operand = operand_of(call, number);
        int batch = match_axes(operand, sizes, rank, 0, row_axis);
        int row = match_axes(operand, sizes, rank, row_axis, row_axis + 1);
        int column = match_axes(operand, sizes, rank, row_axis + 1, rank);
        if (operand->rank > rank || batch < 0 || row < 0 || column < 0)
            return refuse_operand(node, number, "batches, rows and columns each as the result's or 1",
                                  operand);
        /* The operand is packed, without the axes that are broadcast: a batch has `row_elements` for each
           row, or for all rows. */
        int64_t row_elements = column ? columns : 1;
        struct values *values = &call->values[number];
        values->column = column;
        values->row = row ? row_elements : 0;
        values->batch = batch ? row_elements * (row ? sizes[row_axis] : 1) : 0;
    }
    return NULL;
}

int64_t count_elements(const int64_t *sizes, size_t rank) {
    /* Zeros first: the sizes before a zero may overflow although there are no elements. */
    int64_t count = 1;
    for (size_t i = 0; i < rank; i++)
        if (sizes[i] == 0) return 0;
    for (size_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(count, sizes[i], &count) || count > INT64_MAX / (int64_t)sizeof(float))
            return -1;
    return count;
}

struct ort_status *open_result(struct call *call, const int64_t *sizes, size_t rank, float **result) {
    return open_output(call, 0, sizes, rank, result);
}

struct ort_status *open_output(struct call *call, size_t i, const int64_t *sizes, size_t rank,
                               float **result) {
    const struct ort_api *api = call->node->api;
    struct ort_value *value;
    void *data;
    TRY(api->get_output(call->context, i, sizes, rank, &value));
    TRY(api->get_data(value, &data));
    *result = data;
    return NULL;
}

static void work_on_all_threads(void *owner, void (*work)(void *data, size_t i), size_t count, void *data) {
    struct call *call = owner;
    if (count < 2) {
        for (size_t i = 0; i < count; i++) work(data, i);
        return;
    }
    const struct ort_api *api = call->node->api;
    struct ort_status *status = api->parallel_for(call->context, work, count, 0, data);
    if (status) {
        api->release_status(status);
        call->has_failed = 1;
    }
}

/* ONNX Runtime's memory is not aligned to registers. What it returned is stored just before what is returned
   here, for `release`:

       | up to 2 * ALIGNMENT - 1 bytes | memory | bytes ...
       ^ memory                                 ^ aligned */
void *allocate(void *owner, size_t bytes) {
    const struct node *node = ((struct call *)owner)->node;
    void *memory = NULL;
    if (bytes > SIZE_MAX - 2 * ALIGNMENT) return NULL;
    struct ort_status *status = node->api->allocate(node->allocator, bytes + 2 * ALIGNMENT, &memory);
    if (status) {
        node->api->release_status(status);
        return NULL;
    }
    if (!memory) return NULL;
    uintptr_t aligned = ((uintptr_t)memory + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    memcpy((void *)(aligned - sizeof memory), &memory, sizeof memory);
    return (void *)aligned;
}

void release(void *owner, void *aligned) {
    const struct node *node = ((struct call *)owner)->node;
    void *memory;
    if (!aligned) return;
    memcpy(&memory, (char *)aligned - sizeof memory, sizeof memory);
    struct ort_status *status = node->api->release(node->allocator, memory);
    if (status) node->api->release_status(status);
}

struct machine machine_of(struct call *call) {
    return (struct machine){call, work_on_all_threads, allocate, release, (int)call->node->threads};
}

struct program program_of(struct call *call) {
    struct program program = call->node->program;
    program.exception = call->node->raises ? &call->exception : NULL;
    return program;
}

struct ort_status *conclude(struct call *call, enum outcome outcome) {
    if (call->exception)
        return refuse(call->node, "floating-point exception: a value is NaN, or too large for its "
                                  "type (debug.floatPointOpException)");
    if (outcome == DONE && !call->has_failed) return NULL;
    /* In ONNX Runtime's own words, by which such a failure is known. */
    return call->node->api->create_status(
        ORT_FAIL, outcome == NO_MEMORY ? "Failed to allocate memory that a kernel of simipu works in"
                                       : "a thread of ONNX Runtime failed in a kernel of simipu");
}
