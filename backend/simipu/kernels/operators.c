/* Product, Conv and Chain: from what a call is given to what kernels.h wants, all of it checked; a kernel may
   rely on what that says. */

#include "operators.h"

#include <string.h>

#include "calls.h"

enum { FEW_STARTS = 64 }; /* batches whose starts need no memory of their own */

/* --- products --- */

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
    int64_t sizes[MAX_AXES];
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
    /* A stride of 0 repeats an axis of one element, or one that the operand lacks. */
    int64_t strides[MAX_AXES] = {0}, at[MAX_AXES] = {0};
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

/* A right operand that all batches share makes them rows of one: so its parts are brought to the processor
   once. Not where an operand of the steps tells batches and rows apart in any other way. */
static void join_batches(struct call *call, struct product *product) {
    const struct tensor *right = &call->inputs[1];
    if (call->node->trans_left || count_elements(right->sizes, right->rank - 2) != 1) return;
    for (int i = 0; i < MAX_OPERANDS; i++) {
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

struct ort_status *run_product(struct node *node, struct ort_context *context) {
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
        .program = program_of(&call),
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

/* --- convolutions --- */

struct ort_status *read_convolution(struct node *node, const struct ort_info *info) {
    size_t dilations, pads;
    TRY(read_integers(node, info, "strides", node->strides, MAX_SPATIAL, &node->axes));
    TRY(read_integers(node, info, "dilations", node->dilations, MAX_SPATIAL, &dilations));
    TRY(read_integers(node, info, "pads", node->pads, 2 * MAX_SPATIAL, &pads));
    if (!node->axes || dilations != node->axes || pads != 2 * node->axes)
        return refuse(node,
                      "attributes 'strides', 'dilations' and 'pads': expected 1 to %d integers, as many, and "
                      "twice as many, found %zu, %zu and %zu",
                      MAX_SPATIAL, node->axes, dilations, pads);
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
    if (node->slic_taps && !node->block)
        return refuse(node, "attribute 'slic_taps': expected 0 where there is no block, found %lld",
                      (long long)node->slic_taps);
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
    /* A block of one row's channels may be several; one of SLIC's positions is never cut. */
    if ((node->slic_taps || together > 1) && filters->sizes[1] * together > node->block)
        return refuse(node,
                      "input 1: expected no more channels than a block of %lld has room for, found %lld",
                      (long long)node->block, (long long)filters->sizes[1]);
    return NULL;
}

/* The spatial axes, aligned right: those that are not used are of size 1. */
static struct ort_status *place_axes(const struct call *call, struct convolution *convolution,
                                     int64_t *sizes) {
    const struct node *node = call->node;
    const int64_t *given = call->inputs[0].sizes;
    /* No size of 0 may hide what the others overflow: products of some of them are made, too. */
    int64_t room[2 + MAX_SPATIAL] = {given[0] ? given[0] : 1, given[1] ? given[1] : 1};
    for (size_t i = 0; i < MAX_SPATIAL; i++) {
        convolution->field[i] = convolution->kernel[i] = convolution->result_sizes[i] = 1;
        convolution->strides[i] = convolution->dilations[i] = 1;
        convolution->before[i] = 0;
    }
    for (size_t i = 0; i < node->axes; i++) {
        size_t axis = MAX_SPATIAL - node->axes + i;
        int64_t field = given[2 + i], kernel = call->inputs[1].sizes[2 + i];
        int64_t padded = field + node->pads[i] + node->pads[node->axes + i];
        /* a dilated kernel of 3: k . k . k, of reach 5 */
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

/* See a tensor whose channels are in blocks as [batches, channels, ...], as all that is checked here. */
static struct ort_status *join_channels(struct call *call, size_t i) {
    struct tensor *tensor = &call->inputs[i];
    size_t last = call->node->axes + 2;
    if (tensor->rank != last + 1 || tensor->sizes[last] != CHANNEL_BLOCK ||
        tensor->sizes[1] > INT32_MAX / CHANNEL_BLOCK)
        return refuse(call->node,
                      "input %zu: expected %zu axes, the last of a block of %d channels, found %zu", i,
                      last + 1, CHANNEL_BLOCK, tensor->rank);
    tensor->rank = last;
    tensor->sizes[1] *= CHANNEL_BLOCK;
    return NULL;
}

/* Where channels are in blocks: whether they can be, and the offsets of a window's elements are ints. */
static struct ort_status *check_blocks(const struct call *call, const struct convolution *convolution) {
    const struct node *node = call->node;
    if (!convolution->is_source_blocked && !convolution->is_result_blocked) return NULL;
    if (convolution->is_source_blocked && convolution->source.element != FLOAT)
        return refuse(node, "input 0: expected floats where channels are in blocks, found halves");
    if (!can_be_blocked(convolution))
        return refuse(
            node,
            "attributes 'blocked_source' and 'blocked_result': expected a multiple of %d channels in "
            "one group, or one channel and one of at most %d weights in each, found %lld groups of "
            "%lld channels and %lld filters",
            CHANNEL_BLOCK, MAX_TAPS, (long long)convolution->groups, (long long)convolution->channels,
            (long long)convolution->outputs);
    double floats = (double)convolution->channels;
    for (size_t i = 0; i < node->axes; i++)
        floats *= (double)call->inputs[0].sizes[2 + i] + (double)node->pads[i] +
                  (double)node->pads[node->axes + i] + (double)node->strides[i];
    if (floats > INT32_MAX)
        return refuse(node, "input 0: expected less than 2**31 elements of a batch with its padding where "
                            "channels are in blocks, found more");
    return NULL;
}

/* The operands of the steps of a result in blocks: each lies so, or is one value for a channel or all. */
static struct ort_status *place_blocked_operands(struct call *call, const int64_t *sizes) {
    const struct node *node = call->node;
    int is_joined[MAX_OPERANDS] = {0};
    size_t rank = node->axes + 2;
    for (size_t i = node->description->fixed; i < node->inputs; i++)
        if (call->inputs[i].rank == rank + 1) {
            TRY(join_channels(call, i));
            is_joined[i - node->description->fixed] = 1;
        }
    TRY(place_operands(call, sizes, rank, 1));
    for (size_t i = 0; i + node->description->fixed < node->inputs; i++)
        if (call->values[i].column && !(call->values[i].row && is_joined[i]))
            return refuse(node,
                          "operand %zu of the steps: expected a value for each channel, or the channels in "
                          "blocks as the result's, found neither",
                          i);
    return NULL;
}

/* The result, [batches, channels, ...] or in blocks. */
static struct ort_status *open_field(struct call *call, const int64_t *sizes, float **result) {
    size_t rank = call->node->axes + 2;
    int64_t blocked[3 + MAX_SPATIAL];
    if (!call->node->blocked_result) return open_result(call, sizes, rank, result);
    memcpy(blocked, sizes, rank * sizeof *blocked);
    blocked[1] /= CHANNEL_BLOCK;
    blocked[rank] = CHANNEL_BLOCK;
    return open_result(call, blocked, rank + 1, result);
}

struct ort_status *run_convolution(struct node *node, struct ort_context *context) {
    struct call call;
    TRY(begin(&call, node, context));
    if (node->blocked_source) TRY(join_channels(&call, 0));
    TRY(check_convolution(&call));
    const struct tensor *field = &call.inputs[0], *filters = &call.inputs[1];
    struct convolution convolution = {
        .batches = field->sizes[0],
        .groups = node->group,
        .channels = filters->sizes[1],
        .outputs = filters->sizes[0] / node->group,
        .block = (int)node->block,
        .packed_axis = MAX_SPATIAL - (int)node->axes,
        .packed_rows = (int)node->packed_rows,
        .slic_taps = (int)node->slic_taps,
        .is_source_blocked = (int)node->blocked_source,
        .is_result_blocked = (int)node->blocked_result,
        .nan_on_overflow = (int)node->nan_on_overflow,
        .program = program_of(&call),
        .values = call.values,
    };
    int64_t sizes[2 + MAX_SPATIAL] = {field->sizes[0], filters->sizes[0]};
    TRY(place_axes(&call, &convolution, sizes));
    TRY(read_operand(&call, 0, FORMAT_OF_TENSOR, 0, &convolution.source));
    TRY(read_operand(&call, 1, node->filters_format, node->filters_scale, &convolution.filters));
    TRY(check_blocks(&call, &convolution));
    int64_t elements = count_elements(sizes, node->axes + 2);
    if (elements < 0) return refuse(node, "the result: expected less than 2**61 elements, found more");
    TRY(open_field(&call, sizes, &convolution.result));
    if (!elements) return NULL;
    if (node->blocked_result)
        TRY(place_blocked_operands(&call, sizes));
    else
        TRY(place_operands(&call, sizes, node->axes + 2, 1));
    struct machine machine = machine_of(&call);
    return conclude(&call, simipu_convolve(&convolution, &machine));
}

/* --- chains --- */

/* A chain's axes while they are joined: of the result, the source, and each operand of the steps. */
struct joined {
    size_t rank;
    int64_t sizes[MAX_AXES];
    int64_t strides[1 + MAX_OPERANDS][MAX_AXES]; /* the source's are the first */
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
    int64_t strides[MAX_AXES][1 + MAX_OPERANDS], elements[1 + MAX_OPERANDS];
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

/* The tensors that are broadcast: the source, and operands that are no tables, each in the place of its
 * number. */
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

struct ort_status *run_chain(struct node *node, struct ort_context *context) {
    struct call call;
    struct joined joined;
    const struct tensor *tensors[1 + MAX_OPERANDS];
    int64_t sizes[MAX_AXES], strides[MAX_OPERANDS][MAX_CHAIN_AXES] = {{0}};
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
        .program = program_of(&call),
        .values = call.values,
        .value_strides = (const int64_t (*)[MAX_CHAIN_AXES])strides,
    };
    TRY(open_result(&call, sizes, rank, &chain.result));
    if (!elements) return NULL;
    join_axes(tensors, count, sizes, rank, &joined);
    if (joined.rank > MAX_CHAIN_AXES)
        return refuse(node, "expected shapes that broadcast along at most %d axes, found %zu", MAX_CHAIN_AXES,
                      joined.rank);
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
