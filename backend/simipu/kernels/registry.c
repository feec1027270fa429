/* The kernels as operators of ONNX Runtime's, in the domain `simipu`: what it is told of them. */

#include <pthread.h>
#include <stdlib.h>

#include "operators.h"

enum { MAX_PACKED_ROWS = 4, SLIC_TAPS = 4, MAX_THREADS = 1024, INFINITE_HALF = 0x7C00 };

#define INTEGER(name, least, most) {#name, offsetof(struct node, name), least, most}
#define END {NULL, 0, 0, 0}

static const struct attribute PRODUCT[] = {
    INTEGER(block, 0, MAX_BLOCK),
    INTEGER(nan_on_overflow, 0, 1),
    INTEGER(raises, 0, 1),
    INTEGER(trans_left, 0, 1),
    INTEGER(trans_right, 0, 1),
    INTEGER(left_format, 0, FORMAT_F152),
    INTEGER(right_format, 0, FORMAT_F152),
    INTEGER(left_scale, -MAX_SCALE, MAX_SCALE),
    INTEGER(right_scale, -MAX_SCALE, MAX_SCALE),
    INTEGER(threads, 0, MAX_THREADS),
    END,
};

static const struct attribute CONVOLUTION[] = {
    INTEGER(block, 0, MAX_BLOCK),
    INTEGER(nan_on_overflow, 0, 1),
    INTEGER(raises, 0, 1),
    INTEGER(filters_format, 0, FORMAT_F152),
    INTEGER(filters_scale, -MAX_SCALE, MAX_SCALE),
    INTEGER(group, 1, INT32_MAX),
    INTEGER(packed_rows, 1, MAX_PACKED_ROWS),
    INTEGER(slic_taps, 0, SLIC_TAPS),
    INTEGER(blocked_source, 0, 1),
    INTEGER(blocked_result, 0, 1),
    INTEGER(threads, 0, MAX_THREADS),
    END,
};

static const struct attribute RECURRENT[] = {
    INTEGER(cell, CELL_RNN, CELL_GRU_RESET_AFTER),
    INTEGER(hidden, 1, INT32_MAX),
    INTEGER(block, 1, MAX_BLOCK),
    INTEGER(directions, 1, MAX_DIRECTIONS),
    INTEGER(is_reversed, 0, 1),
    INTEGER(is_coupled, 0, 1),
    INTEGER(clip, 0, INFINITE_HALF),
    INTEGER(nan_on_overflow, 0, 1),
    INTEGER(bias, 0, MAX_OPERANDS),
    INTEGER(lengths, 0, MAX_OPERANDS),
    INTEGER(state, 0, MAX_OPERANDS),
    INTEGER(cells, 0, MAX_OPERANDS),
    INTEGER(peepholes, 0, MAX_OPERANDS),
    INTEGER(threads, 0, MAX_THREADS),
    END,
};

static const struct attribute CHAIN[] = {INTEGER(nan_on_overflow, 0, 1), INTEGER(raises, 0, 1), END};

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
    return ((const struct description *)self)->outputs;
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
    {{TOLD}, "Product", 2, 1, PRODUCT, NULL, run_product},
    {{TOLD}, "Conv", 2, 1, CONVOLUTION, read_convolution, run_convolution},
    {{TOLD}, "Recurrent", 2, 3, RECURRENT, NULL, run_recurrent},
    {{TOLD, .get_in_place = get_in_place, .release_in_place = release_in_place},
     "Chain",
     1,
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
