/* The kernels as operators of ONNX Runtime's, in the domain `simipu`: Product, Conv and Chain.

   What comes in is checked here, all of it, on every call: a kernel may rely on what kernels.h says. A node is
   read when it is made; of a call only shapes, types and places of tensors are left to find. */

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "ort_abi.h"

enum {
    MOST_AXES = 16,   /* of a tensor */
    MOST_STEPS = 64,  /* of a program */
    MOST_FIXED = 2,   /* inputs before those */
    MOST_SCALE = 100, /* of 8-bit codes, as a power of two */
    MOST_MESSAGE = 512,
    MOST_NAME = 128,
    TABLE_ELEMENTS = 1 << 16,
    ALIGNMENT = 64,
    FEW_STARTS = 64, /* batches whose starts need no memory of their own */
    NUMBERS_OF_STEP = 3
};

/* --- nodes -------------------------------------------------------------------------------------------------- */

/* A node, as it was made; which of the numbers it has depends on its operator. */
struct node {
    const struct ort_api *api;
    struct ort_allocator *allocator;
    const struct description *description;
    char name[MOST_NAME];
    size_t inputs;
    struct program program;
    struct step steps[MOST_STEPS];
    int64_t block, nan_on_overflow, trans_left, trans_right, left_format, right_format, left_scale,
        right_scale;
    int64_t group, filters_format, filters_scale, packed_rows, slic_taps;
    size_t axes; /* spatial */
    int64_t strides[MOST_SPATIAL], dilations[MOST_SPATIAL], pads[2 * MOST_SPATIAL];
};

struct attribute {
    const char *name;
    size_t place;
    int64_t least, most;
};

/* An operator: what ONNX Runtime is told of it, and how it is read and run. */
struct description {
    struct ort_operator told; /* first: ONNX Runtime gives its address back */
    const char *name;
    size_t fixed; /* inputs before the operands of its steps */
    const struct attribute *attributes;
    struct ort_status *(*read)(struct node *node, const struct ort_info *info);
    struct ort_status *(*run)(struct node *node, struct ort_context *context);
};

__attribute__((format(printf, 2, 3))) static struct ort_status *refuse(const struct node *node,
                                                                       const char *format, ...) {
    char message[MOST_MESSAGE];
    int used = snprintf(message, sizeof message, "simipu.%s %s: ", node->description->name, node->name);
    va_list values;
    va_start(values, format);
    vsnprintf(message + used, sizeof message - (size_t)used, format, values);
    va_end(values);
    return node->api->create_status(ORT_INVALID_ARGUMENT, message);
}

/* Hand on what ONNX Runtime refuses. */
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        struct ort_status *status_ = (call);                                                                 \
        if (status_) return status_;                                                                         \
    } while (0)

static struct ort_status *read_integer(struct node *node, const struct ort_info *info,
                                       const struct attribute *attribute) {
    int64_t found;
    struct ort_status *status = node->api->get_integer(info, attribute->name, &found);
    if (status) {
        node->api->release_status(status);
        return refuse(node, "attribute '%s': expected an integer, found none", attribute->name);
    }
    if (found < attribute->least || found > attribute->most)
        return refuse(node, "attribute '%s': expected %lld to %lld, found %lld", attribute->name,
                      (long long)attribute->least, (long long)attribute->most, (long long)found);
    memcpy((char *)node + attribute->place, &found, sizeof found);
    return NULL;
}

/* At most `most` integers; how many in `count`: none where there is no such attribute. */
static struct ort_status *read_integers(struct node *node, const struct ort_info *info, const char *name,
                                        int64_t *found, size_t most, size_t *count) {
    struct ort_status *status = node->api->get_integers(info, name, NULL, count);
    if (status) {
        node->api->release_status(status);
        *count = 0;
    }
    if (*count > most)
        return refuse(node, "attribute '%s': expected at most %zu integers, found %zu", name, most, *count);
    return *count ? node->api->get_integers(info, name, found, count) : NULL;
}

static int takes_operand(enum kind kind) {
    return kind != STEP_NONE && kind != STEP_F143 && kind != STEP_F152;
}

/* The powers of two by which every 8-bit value stays a float, exactly. */
static int is_unit(float number) {
    for (int scale = -MOST_SCALE; scale <= MOST_SCALE; scale++)
        if (number == __builtin_ldexpf(1, scale)) return 1;
    return 0;
}

static struct ort_status *check_step(struct node *node, size_t i, const int64_t *found, float number) {
    int64_t kind = found[0], rounding = found[1], operand = found[2];
    int64_t operands = (int64_t)(node->inputs - node->description->fixed);
    if (kind < STEP_NONE || kind > STEP_F152 || rounding < KEPT || rounding > PLAIN)
        return refuse(node, "step %zu: expected a kind up to %d and a rounding up to %d, found %lld and %lld",
                      i, STEP_F152, PLAIN, (long long)kind, (long long)rounding);
    if (!takes_operand((enum kind)kind)) operand = -1;
    if (operand < (kind == STEP_TABLE ? 0 : -1) || operand >= operands)
        return refuse(node, "step %zu of kind %lld: expected one of %lld operands, found %lld", i,
                      (long long)kind, (long long)operands, (long long)operand);
    if ((kind == STEP_F143 || kind == STEP_F152) && !is_unit(number))
        return refuse(node, "step %zu: expected a power of two from 2**-%d to 2**%d, found %g", i, MOST_SCALE,
                      MOST_SCALE, (double)number);
    node->steps[i] = (struct step){(enum kind)kind, (enum rounding)rounding, (int)operand, number};
    return NULL;
}

static struct ort_status *read_steps(struct node *node, const struct ort_info *info) {
    int64_t found[NUMBERS_OF_STEP * MOST_STEPS];
    float numbers[MOST_STEPS];
    size_t count, num_numbers = 0;
    TRY(read_integers(node, info, "steps", found, NUMBERS_OF_STEP * MOST_STEPS, &count));
    size_t num_steps = count / NUMBERS_OF_STEP;
    struct ort_status *status = node->api->get_floats(info, "numbers", NULL, &num_numbers);
    if (status) {
        node->api->release_status(status);
        num_numbers = 0;
    }
    if (count % NUMBERS_OF_STEP || num_numbers != num_steps)
        return refuse(node,
                      "attributes 'steps' and 'numbers': expected three integers and a float for each step, "
                      "found %zu and %zu",
                      count, num_numbers);
    if (num_steps) TRY(node->api->get_floats(info, "numbers", numbers, &num_numbers));
    for (size_t i = 0; i < num_steps; i++) TRY(check_step(node, i, found + NUMBERS_OF_STEP * i, numbers[i]));
    node->program = (struct program){(int)num_steps, (int)node->nan_on_overflow, node->steps};
    return NULL;
}

static struct ort_status *read_node(struct node *node, const struct ort_info *info) {
    size_t bytes = sizeof node->name;
    struct ort_status *status = node->api->get_node_name(info, node->name, &bytes);
    if (status) { /* it is longer than that */
        node->api->release_status(status);
        strcpy(node->name, "(of a long name)");
    }
    TRY(node->api->count_inputs(info, &node->inputs));
    size_t fixed = node->description->fixed;
    if (node->inputs < fixed || node->inputs > fixed + MOST_OPERANDS)
        return refuse(node, "expected %zu to %zu inputs, found %zu", fixed, fixed + MOST_OPERANDS,
                      node->inputs);
    for (const struct attribute *each = node->description->attributes; each->name; each++)
        TRY(read_integer(node, info, each));
    TRY(read_steps(node, info));
    if (node->description->read) TRY(node->description->read(node, info));
    return node->api->get_allocator(info, 0, &node->allocator);
}

static void destroy_node(void *made) {
    struct node *node = made;
    if (node && node->allocator) node->api->release_allocator(node->allocator);
    free(node);
}

static struct ort_status *create_node(const struct ort_operator *self, const struct ort_api *api,
                                      const struct ort_info *info, void **made) {
    *made = NULL;
    struct node *node = calloc(1, sizeof *node);
    if (!node) return api->create_status(ORT_FAIL, "Failed to allocate memory for a node of simipu");
    node->api = api;
    node->description = (const struct description *)self;
    struct ort_status *status = read_node(node, info);
    if (status)
        destroy_node(node);
    else
        *made = node;
    return status;
}

/* --- a call: its tensors ------------------------------------------------------------------------------------ */

struct tensor {
    const void *data;
    enum ort_type type;
    size_t rank;
    int64_t sizes[MOST_AXES];
};

struct call {
    struct node *node;
    struct ort_context *context;
    int has_failed; /* ONNX Runtime's threads: set once, before they are done */
    struct tensor inputs[MOST_FIXED + MOST_OPERANDS];
    struct values values[MOST_OPERANDS];
};

static struct ort_status *read_shape(const struct node *node, size_t i, const struct ort_shape *shape,
                                     struct tensor *tensor) {
    TRY(node->api->get_type(shape, &tensor->type));
    TRY(node->api->get_rank(shape, &tensor->rank));
    if (tensor->rank > MOST_AXES)
        return refuse(node, "input %zu: expected at most %d axes, found %zu", i, MOST_AXES, tensor->rank);
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

static struct ort_status *begin(struct call *call, struct node *node, struct ort_context *context) {
    call->node = node;
    call->context = context;
    call->has_failed = 0;
    memset(call->values, 0, sizeof call->values);
    for (size_t i = 0; i < node->inputs; i++) TRY(read_tensor(call, i));
    return NULL;
}

static struct tensor *operand_of(struct call *call, int operand) {
    return &call->inputs[call->node->description->fixed + (size_t)operand];
}

static struct ort_status *refuse_operand(const struct node *node, int operand, const char *expected,
                                         const struct tensor *found) {
    char text[MOST_MESSAGE / 2] = "";
    size_t used = 0;
    for (size_t i = 0; i < found->rank && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", i ? ", " : "",
                                 (long long)found->sizes[i]);
    return refuse(node, "operand %d of the steps: expected %s, found [%s] of ONNX type %d", operand, expected,
                  text, (int)found->type);
}

/* Each operand that a step takes is a table or numbers to broadcast. */
static struct ort_status *check_operands(struct call *call) {
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

/* Where operands of a product's or a convolution's steps lie. The result's axes are batches, up to `row_axis`,
   rows, that one, and columns, those after it. */
static struct ort_status *place_operands(struct call *call, const int64_t *sizes, size_t rank,
                                         size_t row_axis) {
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
        int64_t row_elements = column ? columns : 1;
        struct values *values = &call->values[number];
        values->column = column;
        values->row = row ? row_elements : 0;
        values->batch = batch ? row_elements * (row ? sizes[row_axis] : 1) : 0;
    }
    return NULL;
}

/* The product of sizes, or -1 where it is no number of floats that memory could hold. */
static int64_t count_elements(const int64_t *sizes, size_t rank) {
    int64_t count = 1;
    for (size_t i = 0; i < rank; i++)
        if (sizes[i] == 0) return 0;
    for (size_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(count, sizes[i], &count) || count > INT64_MAX / (int64_t)sizeof(float))
            return -1;
    return count;
}

/* Memory for a result of `count` elements, which the caller has found not to be too many. */
static struct ort_status *open_result(struct call *call, const int64_t *sizes, size_t rank, float **result) {
    const struct ort_api *api = call->node->api;
    struct ort_value *value;
    void *data;
    TRY(api->get_output(call->context, 0, sizes, rank, &value));
    TRY(api->get_data(value, &data));
    *result = data;
    return NULL;
}

/* --- a call: its machine ------------------------------------------------------------------------------------ */

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

/* Of ONNX Runtime's memory, which has a limit; its place is kept before the aligned one. */
static void *allocate(void *owner, size_t bytes) {
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

static void release(void *owner, void *aligned) {
    const struct node *node = ((struct call *)owner)->node;
    void *memory;
    if (!aligned) return;
    memcpy(&memory, (char *)aligned - sizeof memory, sizeof memory);
    struct ort_status *status = node->api->release(node->allocator, memory);
    if (status) node->api->release_status(status);
}

static struct machine machine_of(struct call *call) {
    return (struct machine){call, work_on_all_threads, allocate, release};
}

static struct ort_status *conclude(struct call *call, enum outcome outcome) {
    if (outcome == DONE && !call->has_failed) return NULL;
    /* In ONNX Runtime's own words, by which such a failure is known. */
    return call->node->api->create_status(
        ORT_FAIL, outcome == NO_MEMORY ? "Failed to allocate memory that a kernel of simipu works in"
                                       : "a thread of ONNX Runtime failed in a kernel of simipu");
}

/* --- products ----------------------------------------------------------------------------------------------- */

enum { FORMAT_OF_TENSOR, FORMAT_F143, FORMAT_F152 };

/* How an operand lies in memory, by its type and the node's attributes. */
static struct ort_status *read_operand(const struct call *call, size_t i, int64_t format, int64_t scale,
                                       struct operand *operand) {
    const struct tensor *tensor = &call->inputs[i];
    operand->data = tensor->data;
    operand->unit = 1;
    if (format == FORMAT_OF_TENSOR && (tensor->type == ORT_FLOAT || tensor->type == ORT_FLOAT16)) {
        operand->element = tensor->type == ORT_FLOAT ? FLOAT : HALF;
        return NULL;
    }
    if (format != FORMAT_OF_TENSOR && tensor->type == ORT_UINT8) {
        operand->element = format == FORMAT_F143 ? F143 : F152;
        operand->unit = __builtin_ldexpf(1, (int)scale);
        return NULL;
    }
    return refuse(call->node, "input %zu: expected %s, found ONNX type %d", i,
                  format == FORMAT_OF_TENSOR ? "floats or halves" : "8-bit codes (UINT8)", (int)tensor->type);
}

struct batches {
    size_t rank; /* of the result */
    int64_t sizes[MOST_AXES];
    int64_t count;
};

/* The leading axes, broadcast. */
static struct ort_status *find_batches(const struct call *call, struct batches *batches) {
    const struct tensor *left = &call->inputs[0], *right = &call->inputs[1];
    batches->rank = left->rank > right->rank ? left->rank : right->rank;
    for (size_t i = 0; i + 2 < batches->rank; i++) {
        int64_t one = i + left->rank < batches->rank ? 1 : left->sizes[i + left->rank - batches->rank];
        int64_t other = i + right->rank < batches->rank ? 1 : right->sizes[i + right->rank - batches->rank];
        if (one != other && one != 1 && other != 1)
            return refuse(call->node,
                          "inputs 0 and 1: expected leading axes that broadcast, found sizes %lld and "
                          "%lld",
                          (long long)one, (long long)other);
        batches->sizes[i] = one == 1 ? other : one;
    }
    return NULL;
}

/* Where each batch of an operand begins. Counts through the result's leading axes as an odometer does. */
static void find_starts(const struct tensor *operand, const struct batches *batches, int64_t *starts) {
    int64_t strides[MOST_AXES] = {0}, at[MOST_AXES] = {0};
    size_t leading = batches->rank - 2, missing = batches->rank - operand->rank;
    int64_t elements = operand->sizes[operand->rank - 2] * operand->sizes[operand->rank - 1], start = 0;
    for (size_t i = leading; i-- > missing;) {
        strides[i] = operand->sizes[i - missing] == 1 ? 0 : elements;
        elements *= operand->sizes[i - missing];
    }
    for (int64_t b = 0; b < batches->count; b++) {
        starts[b] = start;
        for (size_t i = leading; i-- > 0;) {
            start += strides[i];
            if (++at[i] < batches->sizes[i]) break;
            start -= strides[i] * batches->sizes[i];
            at[i] = 0;
        }
    }
}

/* A right operand that all batches share makes them rows of one: so its parts are brought to the processor once.
   Not where an operand of the steps tells batches and rows apart in any other way. */
static void join_batches(struct call *call, struct product *product) {
    const struct tensor *right = &call->inputs[1];
    if (call->node->trans_left || count_elements(right->sizes, right->rank - 2) != 1) return;
    for (int i = 0; i < MOST_OPERANDS; i++) {
        struct values *values = &call->values[i];
        if (product->rows == 1) values->row = values->batch;
        if (values->batch != values->row * product->rows) return;
    }
    product->rows *= product->batches;
    product->batches = 1;
}

static struct ort_status *multiply(struct call *call, struct product *product,
                                   const struct batches *batches) {
    struct machine machine = machine_of(call);
    int64_t few[2][FEW_STARTS], *starts = &few[0][0];
    join_batches(call, product);
    if (product->batches > FEW_STARTS) starts = allocate(call, 2 * (size_t)product->batches * sizeof *starts);
    if (!starts) return conclude(call, NO_MEMORY);
    if (product->batches > 1) {
        find_starts(&call->inputs[0], batches, starts);
        find_starts(&call->inputs[1], batches, starts + product->batches);
        product->left_starts = starts;
        product->right_starts = starts + product->batches;
    }
    enum outcome outcome = simipu_multiply(product, &machine);
    if (product->batches > FEW_STARTS) release(call, starts);
    return conclude(call, outcome);
}

static struct ort_status *run_product(struct node *node, struct ort_context *context) {
    struct call call;
    struct batches batches;
    TRY(begin(&call, node, context));
    const struct tensor *left = &call.inputs[0], *right = &call.inputs[1];
    if (left->rank < 2 || right->rank < 2)
        return refuse(node, "inputs 0 and 1: expected two or more axes, found %zu and %zu", left->rank,
                      right->rank);
    const int64_t *left_sizes = left->sizes + left->rank - 2, *right_sizes = right->sizes + right->rank - 2;
    int left_turned = (int)node->trans_left, right_turned = (int)node->trans_right;
    struct product product = {
        .rows = left_sizes[left_turned],
        .depth = left_sizes[!left_turned],
        .columns = right_sizes[!right_turned],
        .left_row = left_turned ? 1 : left_sizes[1],
        .left_channel = left_turned ? left_sizes[1] : 1,
        .right_channel = right_turned ? 1 : right_sizes[1],
        .right_column = right_turned ? right_sizes[1] : 1,
        .block = (int)node->block,
        .nan_on_overflow = (int)node->nan_on_overflow,
        .program = node->program,
        .values = call.values,
    };
    if (product.depth != right_sizes[right_turned])
        return refuse(node, "inputs 0 and 1: expected as many channels in both, found %lld and %lld",
                      (long long)product.depth, (long long)right_sizes[right_turned]);
    TRY(read_operand(&call, 0, node->left_format, node->left_scale, &product.left));
    TRY(read_operand(&call, 1, node->right_format, node->right_scale, &product.right));
    TRY(find_batches(&call, &batches));
    batches.sizes[batches.rank - 2] = product.rows;
    batches.sizes[batches.rank - 1] = product.columns;
    int64_t elements = count_elements(batches.sizes, batches.rank);
    if (elements < 0) return refuse(node, "the result: expected less than 2**61 elements, found more");
    TRY(open_result(&call, batches.sizes, batches.rank, &product.result));
    if (!elements) return NULL;
    product.batches = batches.count = elements / (product.rows * product.columns);
    TRY(place_operands(&call, batches.sizes, batches.rank, batches.rank - 2));
    return multiply(&call, &product, &batches);
}

/* --- convolutions ------------------------------------------------------------------------------------------- */

static struct ort_status *read_convolution(struct node *node, const struct ort_info *info) {
    size_t dilations, pads;
    TRY(read_integers(node, info, "strides", node->strides, MOST_SPATIAL, &node->axes));
    TRY(read_integers(node, info, "dilations", node->dilations, MOST_SPATIAL, &dilations));
    TRY(read_integers(node, info, "pads", node->pads, 2 * MOST_SPATIAL, &pads));
    if (!node->axes || dilations != node->axes || pads != 2 * node->axes)
        return refuse(node,
                      "attributes 'strides', 'dilations' and 'pads': expected 1 to %d integers, as many, and "
                      "twice as many, found %zu, %zu and %zu",
                      MOST_SPATIAL, node->axes, dilations, pads);
    for (size_t i = 0; i < pads; i++) {
        int64_t stride = node->strides[i / 2], dilation = node->dilations[i / 2], pad = node->pads[i];
        if (stride < 1 || stride > INT32_MAX || dilation < 1 || dilation > INT32_MAX || pad < 0 ||
            pad > INT32_MAX)
            return refuse(
                node,
                "attributes 'strides', 'dilations' and 'pads': expected 1, 1 and 0 or more, and less "
                "than 2**31, found %lld, %lld and %lld",
                (long long)stride, (long long)dilation, (long long)pad);
    }
    if (node->packed_rows > 1 && (!node->block || node->group > 1 || node->slic_taps))
        return refuse(
            node,
            "attribute 'packed_rows': expected 1 where there are groups, SLIC taps or no block, found %lld",
            (long long)node->packed_rows);
    return NULL;
}

/* Field and filters fit together and nothing that is made of their sizes overflows. */
static struct ort_status *check_convolution(const struct call *call) {
    const struct node *node = call->node;
    const struct tensor *field = &call->inputs[0], *filters = &call->inputs[1];
    size_t rank = node->axes + 2;
    if (field->rank != rank || filters->rank != rank)
        return refuse(node, "inputs 0 and 1: expected %zu axes, found %zu and %zu", rank, field->rank,
                      filters->rank);
    for (size_t i = 0; i < rank; i++)
        if (field->sizes[i] > INT32_MAX || filters->sizes[i] > INT32_MAX || (i > 1 && filters->sizes[i] < 1))
            return refuse(node,
                          "inputs 0 and 1, axis %zu: expected sizes below 2**31 and one or more of a kernel, "
                          "found %lld and %lld",
                          i, (long long)field->sizes[i], (long long)filters->sizes[i]);
    if (field->sizes[1] != filters->sizes[1] * node->group || filters->sizes[0] % node->group)
        return refuse(node,
                      "inputs 0 and 1: expected channels and filters of %lld groups, found %lld channels and "
                      "%lld filters of %lld",
                      (long long)node->group, (long long)field->sizes[1], (long long)filters->sizes[0],
                      (long long)filters->sizes[1]);
    int64_t together = node->slic_taps ? node->slic_taps : node->packed_rows;
    if (node->block && together > 1 && filters->sizes[1] * together > node->block)
        return refuse(node,
                      "input 1: expected no more channels than a block of %lld has room for, found %lld",
                      (long long)node->block, (long long)filters->sizes[1]);
    return NULL;
}

/* The spatial axes, aligned right: those that are not used are of size 1. */
static struct ort_status *place_axes(const struct call *call, struct convolution *convolution,
                                     int64_t *sizes) {
    const struct node *node = call->node;
    int64_t room[2 + MOST_SPATIAL] = {call->inputs[0].sizes[0], call->inputs[0].sizes[1]};
    for (size_t i = 0; i < MOST_SPATIAL; i++) {
        convolution->field[i] = convolution->kernel[i] = convolution->result_sizes[i] = 1;
        convolution->strides[i] = convolution->dilations[i] = 1;
        convolution->before[i] = 0;
    }
    for (size_t i = 0; i < node->axes; i++) {
        size_t axis = MOST_SPATIAL - node->axes + i;
        int64_t field = call->inputs[0].sizes[2 + i], kernel = call->inputs[1].sizes[2 + i];
        int64_t padded = field + node->pads[i] + node->pads[node->axes + i];
        int64_t reach = (kernel - 1) * node->dilations[i] + 1;
        if (padded < reach)
            return refuse(node, "axis %zu: expected a field of at least %lld, with its padding, found %lld",
                          i + 2, (long long)reach, (long long)padded);
        convolution->field[axis] = field;
        convolution->kernel[axis] = kernel;
        convolution->strides[axis] = node->strides[i];
        convolution->dilations[axis] = node->dilations[i];
        convolution->before[axis] = node->pads[i];
        sizes[2 + i] = convolution->result_sizes[axis] = (padded - reach) / node->strides[i] + 1;
        /* Where there is one position there is no stride; others are smaller than what they stride over. */
        if (convolution->result_sizes[axis] == 1) convolution->strides[axis] = 1;
        room[2 + i] = 2 * padded;
    }
    /* A kernel may want to copy the field with its padding, in as many parts as there are strides. */
    if (count_elements(room, node->axes + 2) < 0)
        return refuse(node, "expected a field with its padding below 2**58 elements, found more");
    return NULL;
}

static struct ort_status *run_convolution(struct node *node, struct ort_context *context) {
    struct call call;
    TRY(begin(&call, node, context));
    TRY(check_convolution(&call));
    const struct tensor *field = &call.inputs[0], *filters = &call.inputs[1];
    struct convolution convolution = {
        .batches = field->sizes[0],
        .groups = node->group,
        .channels = filters->sizes[1],
        .outputs = filters->sizes[0] / node->group,
        .block = (int)node->block,
        .packed_axis = MOST_SPATIAL - (int)node->axes,
        .packed_rows = (int)node->packed_rows,
        .slic_taps = (int)node->slic_taps,
        .nan_on_overflow = (int)node->nan_on_overflow,
        .program = node->program,
        .values = call.values,
    };
    int64_t sizes[2 + MOST_SPATIAL] = {field->sizes[0], filters->sizes[0]};
    TRY(place_axes(&call, &convolution, sizes));
    TRY(read_operand(&call, 0, FORMAT_OF_TENSOR, 0, &convolution.source));
    TRY(read_operand(&call, 1, node->filters_format, node->filters_scale, &convolution.filters));
    int64_t elements = count_elements(sizes, node->axes + 2);
    if (elements < 0) return refuse(node, "the result: expected less than 2**61 elements, found more");
    TRY(open_result(&call, sizes, node->axes + 2, &convolution.result));
    if (!elements) return NULL;
    TRY(place_operands(&call, sizes, node->axes + 2, 1));
    struct machine machine = machine_of(&call);
    return conclude(&call, simipu_convolve(&convolution, &machine));
}

/* --- chains ------------------------------------------------------------------------------------------------- */

/* A chain's axes while they are joined: of the result, the source, and each operand of the steps. */
struct joined {
    size_t rank;
    int64_t sizes[MOST_AXES];
    int64_t strides[1 + MOST_OPERANDS][MOST_AXES]; /* the source's are the first */
};

/* Axis `i` of the result, joined with the one before it where all go on from the one to the other. */
static void join_axis(struct joined *joined, int64_t size, const int64_t *strides, size_t count) {
    int continues = joined->rank > 0;
    for (size_t t = 0; t < count && continues; t++)
        continues = joined->strides[t][joined->rank - 1] == strides[t] * size;
    if (!continues) joined->sizes[joined->rank++] = 1;
    joined->sizes[joined->rank - 1] *= size;
    for (size_t t = 0; t < count; t++) joined->strides[t][joined->rank - 1] = strides[t];
}

static void join_axes(const struct tensor *const *tensors, size_t count, const int64_t *sizes, size_t rank,
                      struct joined *joined) {
    int64_t strides[MOST_AXES][1 + MOST_OPERANDS], elements[1 + MOST_OPERANDS];
    for (size_t t = 0; t < count; t++) elements[t] = 1;
    for (size_t i = rank; i-- > 0;)
        for (size_t t = 0; t < count; t++) {
            size_t missing = rank - tensors[t]->rank;
            int64_t size = i < missing ? 1 : tensors[t]->sizes[i - missing];
            strides[i][t] = size == 1 ? 0 : elements[t];
            elements[t] *= size;
        }
    joined->rank = 0;
    for (size_t i = 0; i < rank; i++)
        if (sizes[i] != 1) join_axis(joined, sizes[i], strides[i], count);
}

static struct ort_status *broadcast(const struct node *node, const struct tensor *tensor, int64_t *sizes,
                                    size_t rank) {
    for (size_t i = 0; i < tensor->rank; i++) {
        int64_t *size = &sizes[i + rank - tensor->rank], found = tensor->sizes[i];
        if (*size != found && *size != 1 && found != 1)
            return refuse(node, "expected shapes that broadcast, found sizes %lld and %lld", (long long)*size,
                          (long long)found);
        if (*size == 1) *size = found;
    }
    return NULL;
}

/* The tensors that are broadcast: the source, and operands that are no tables, each in the place of its number. */
static size_t list_tensors(struct call *call, const struct tensor **tensors, size_t *rank) {
    static const struct tensor none; /* of no axes: as for tables */
    const struct node *node = call->node;
    size_t count = node->inputs;
    tensors[0] = &call->inputs[0];
    for (size_t t = 1; t < count; t++) tensors[t] = &none;
    for (int i = 0; i < node->program.num_steps; i++)
        if (node->steps[i].operand >= 0 && node->steps[i].kind != STEP_TABLE)
            tensors[1 + node->steps[i].operand] = operand_of(call, node->steps[i].operand);
    *rank = 0;
    for (size_t t = 0; t < count; t++)
        if (tensors[t]->rank > *rank) *rank = tensors[t]->rank;
    return count;
}

static struct ort_status *run_chain(struct node *node, struct ort_context *context) {
    struct call call;
    struct joined joined;
    const struct tensor *tensors[1 + MOST_OPERANDS];
    int64_t sizes[MOST_AXES], strides[MOST_OPERANDS][MOST_CHAIN_AXES] = {{0}};
    size_t rank;
    TRY(begin(&call, node, context));
    TRY(check_operands(&call));
    if (call.inputs[0].type != ORT_FLOAT && call.inputs[0].type != ORT_FLOAT16)
        return refuse(node, "input 0: expected floats or halves, found ONNX type %d",
                      (int)call.inputs[0].type);
    size_t count = list_tensors(&call, tensors, &rank);
    for (size_t i = 0; i < rank; i++) sizes[i] = 1;
    for (size_t t = 0; t < count; t++) TRY(broadcast(node, tensors[t], sizes, rank));
    int64_t elements = count_elements(sizes, rank);
    if (elements < 0) return refuse(node, "the result: expected less than 2**61 elements, found more");
    struct chain chain = {
        .rank = 1,
        .sizes = {1},
        .source = call.inputs[0].data,
        .source_is_half = call.inputs[0].type == ORT_FLOAT16,
        .program = node->program,
        .values = call.values,
        .value_strides = (const int64_t (*)[MOST_CHAIN_AXES])strides,
    };
    TRY(open_result(&call, sizes, rank, &chain.result));
    if (!elements) return NULL;
    join_axes(tensors, count, sizes, rank, &joined);
    if (joined.rank > MOST_CHAIN_AXES)
        return refuse(node, "expected shapes that broadcast along at most %d axes, found %zu",
                      MOST_CHAIN_AXES, joined.rank);
    if (joined.rank) {
        chain.rank = (int)joined.rank;
        memcpy(chain.sizes, joined.sizes, joined.rank * sizeof *sizes);
        memcpy(chain.source_strides, joined.strides[0], joined.rank * sizeof *sizes);
        for (size_t t = 1; t < count; t++)
            memcpy(strides[t - 1], joined.strides[t], joined.rank * sizeof *sizes);
    }
    struct machine machine = machine_of(&call);
    return conclude(&call, simipu_run_chain(&chain, &machine));
}

/* --- what ONNX Runtime is told ------------------------------------------------------------------------------ */

enum { MOST_PACKED_ROWS = 4, SLIC_TAPS = 4 };

#define INTEGER(name, least, most) {#name, offsetof(struct node, name), least, most}
#define END {NULL, 0, 0, 0}

static const struct attribute PRODUCT[] = {
    INTEGER(block, 0, MOST_BLOCK),
    INTEGER(nan_on_overflow, 0, 1),
    INTEGER(trans_left, 0, 1),
    INTEGER(trans_right, 0, 1),
    INTEGER(left_format, 0, FORMAT_F152),
    INTEGER(right_format, 0, FORMAT_F152),
    INTEGER(left_scale, -MOST_SCALE, MOST_SCALE),
    INTEGER(right_scale, -MOST_SCALE, MOST_SCALE),
    END,
};

static const struct attribute CONVOLUTION[] = {
    INTEGER(block, 0, MOST_BLOCK),
    INTEGER(nan_on_overflow, 0, 1),
    INTEGER(filters_format, 0, FORMAT_F152),
    INTEGER(filters_scale, -MOST_SCALE, MOST_SCALE),
    INTEGER(group, 1, INT32_MAX),
    INTEGER(packed_rows, 1, MOST_PACKED_ROWS),
    INTEGER(slic_taps, 0, SLIC_TAPS),
    END,
};

static const struct attribute CHAIN[] = {INTEGER(nan_on_overflow, 0, 1), END};

static const char *get_name(const struct ort_operator *self) {
    return ((const struct description *)self)->name;
}

static const char *get_provider(const struct ort_operator *self) {
    (void)self;
    return NULL; /* the CPU's */
}

/* All inputs take every type: which do is said above. */
static enum ort_type get_input_type(const struct ort_operator *self, size_t index) {
    (void)self, (void)index;
    return ORT_UNDEFINED;
}

static size_t count_input_types(const struct ort_operator *self) {
    return ((const struct description *)self)->fixed + 1;
}

static enum ort_type get_output_type(const struct ort_operator *self, size_t index) {
    (void)self, (void)index;
    return ORT_FLOAT;
}

static size_t count_output_types(const struct ort_operator *self) {
    (void)self;
    return 1;
}

static enum ort_presence get_input_presence(const struct ort_operator *self, size_t index) {
    return index < ((const struct description *)self)->fixed ? ORT_REQUIRED : ORT_VARIADIC;
}

static enum ort_presence get_output_presence(const struct ort_operator *self, size_t index) {
    (void)self, (void)index;
    return ORT_REQUIRED;
}

static int get_input_memory(const struct ort_operator *self, size_t index) {
    (void)self, (void)index;
    return 0;
}

static int get_zero(const struct ort_operator *self) {
    (void)self;
    return 0;
}

static int get_one(const struct ort_operator *self) {
    (void)self;
    return 1;
}

static struct ort_status *compute(void *made, struct ort_context *context) {
    struct node *node = made;
    return node->description->run(node, context);
}

/* A chain may write its result over its source. */
static size_t get_in_place(int **inputs, int **outputs) {
    *inputs = calloc(1, sizeof **inputs);
    *outputs = calloc(1, sizeof **outputs);
    return *inputs && *outputs;
}

static void release_in_place(int *inputs, int *outputs) {
    free(inputs);
    free(outputs);
}

#define TOLD                                                                                                 \
    .version = ORT_VERSION, .get_name = get_name, .get_provider = get_provider,                              \
    .get_input_type = get_input_type, .count_input_types = count_input_types,                                \
    .get_output_type = get_output_type, .count_output_types = count_output_types,                            \
    .destroy_kernel = destroy_node, .get_input_presence = get_input_presence,                                \
    .get_output_presence = get_output_presence, .get_input_memory = get_input_memory,                        \
    .get_least_variadic_inputs = get_zero, .has_one_input_type = get_zero,                                   \
    .get_least_variadic_outputs = get_one, .has_one_output_type = get_one, .try_create_kernel = create_node, \
    .try_compute = compute, .get_first_opset = get_one

static const struct description OPERATORS[] = {
    {{TOLD}, "Product", 2, PRODUCT, NULL, run_product},
    {{TOLD}, "Conv", 2, CONVOLUTION, read_convolution, run_convolution},
    {{TOLD, .get_in_place = get_in_place, .release_in_place = release_in_place},
     "Chain",
     1,
     CHAIN,
     NULL,
     run_chain},
};

/* One domain for all sessions: they only read it, and nobody says when the last of them is gone. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static struct ort_domain *domain;

static struct ort_status *make_domain(const struct ort_api *api) {
    struct ort_domain *made;
    TRY(api->create_domain("simipu", &made));
    for (size_t i = 0; i < sizeof OPERATORS / sizeof *OPERATORS; i++)
        TRY(api->add_operator(made, &OPERATORS[i].told));
    domain = made;
    return NULL;
}

__attribute__((visibility("default"))) struct ort_status *
RegisterCustomOps(struct ort_session_options *options, const struct ort_api_base *base) {
    const struct ort_api *api = base->get_api(ORT_VERSION);
    if (!api) {
        /* The first entry is the oldest. */
        api = base->get_api(1);
        return api->create_status(ORT_FAIL, "the kernels of simipu need ONNX Runtime 1.18 or later");
    }
    pthread_mutex_lock(&making);
    struct ort_status *status = domain ? NULL : make_domain(api);
    pthread_mutex_unlock(&making);
    TRY(status);
    return api->add_domain(options, domain);
}
