/* A custom-operator library as a user writes one: Thrice gives 3 * x, Pairs the sums of neighbours along the
   last axis. */

#include "ort_abi.h"

#include <stdlib.h>

enum { MAX_AXES = 8 };

struct entry {
    struct ort_operator told;
    const char *name;
    int makes_pairs;
};

struct kernel {
    const struct ort_api *api;
    const struct entry *entry;
};

static const char *get_name(const struct ort_operator *self) {
    return ((const struct entry *)self)->name;
}

static const char *get_provider(const struct ort_operator *self) {
    (void)self;
    return NULL;
}

static enum ort_type get_type(const struct ort_operator *self, size_t index) {
    (void)self, (void)index;
    return ORT_FLOAT;
}

static size_t count_one(const struct ort_operator *self) {
    (void)self;
    return 1;
}

static enum ort_presence get_presence(const struct ort_operator *self, size_t index) {
    (void)self, (void)index;
    return ORT_REQUIRED;
}

static int get_memory(const struct ort_operator *self, size_t index) {
    (void)self, (void)index;
    return 0;
}

static int get_one(const struct ort_operator *self) {
    (void)self;
    return 1;
}

static struct ort_status *create(const struct ort_operator *self, const struct ort_api *api,
                                 const struct ort_info *info, void **made) {
    (void)info;
    struct kernel *kernel = malloc(sizeof *kernel);
    kernel->api = api, kernel->entry = (const struct entry *)self;
    *made = kernel;
    return NULL;
}

static struct ort_status *compute(void *made, struct ort_context *context) {
    const struct kernel *kernel = made;
    const struct ort_api *api = kernel->api;
    const struct ort_value *input;
    struct ort_value *output;
    struct ort_shape *shape;
    size_t rank, count = 1;
    int64_t sizes[MAX_AXES];
    void *x, *y;
    api->get_input(context, 0, &input);
    api->get_shape(input, &shape);
    api->get_rank(shape, &rank);
    if (rank < 1 || rank > MAX_AXES)
        return api->create_status(ORT_INVALID_ARGUMENT, "expected 1 to 8 axes");
    api->get_sizes(shape, sizes, rank);
    api->release_shape(shape);
    int pairs = kernel->entry->makes_pairs;
    if (pairs)
        sizes[rank - 1] /= 2;
    for (size_t i = 0; i < rank; i++)
        count *= (size_t)sizes[i];
    api->get_output(context, 0, sizes, rank, &output);
    api->get_data((struct ort_value *)input, &x);
    api->get_data(output, &y);
    for (size_t i = 0; i < count; i++)
        ((float *)y)[i] = pairs ? ((float *)x)[2 * i] + ((float *)x)[2 * i + 1] : 3 * ((float *)x)[i];
    return NULL;
}

#define TOLD                                                                                                 \
    .version = ORT_VERSION, .get_name = get_name, .get_provider = get_provider, .get_input_type = get_type,  \
    .count_input_types = count_one, .get_output_type = get_type, .count_output_types = count_one,            \
    .destroy_kernel = free, .get_input_presence = get_presence, .get_output_presence = get_presence,         \
    .get_input_memory = get_memory, .get_least_variadic_inputs = get_one, .has_one_input_type = get_one,     \
    .get_least_variadic_outputs = get_one, .has_one_output_type = get_one, .try_create_kernel = create,      \
    .try_compute = compute, .get_first_opset = get_one

static const struct entry OPERATORS[] = {{{TOLD}, "Thrice", 0}, {{TOLD}, "Pairs", 1}};

static struct ort_domain *domain;

struct ort_status *RegisterCustomOps(struct ort_session_options *options, const struct ort_api_base *base) {
    const struct ort_api *api = base->get_api(ORT_VERSION);
    if (!domain) {
        api->create_domain("my.ops", &domain);
        for (size_t i = 0; i < sizeof OPERATORS / sizeof *OPERATORS; i++)
            api->add_operator(domain, &OPERATORS[i].told);
    }
    return api->add_domain(options, domain);
}
