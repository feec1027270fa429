/* What of ONNX Runtime's C interface is used here, declared by its place: a table of functions whose order
   never changes, whatever its version, and whose header comes with no wheel. Places are those of version 18
   (ONNX Runtime 1.18), the oldest that has all of them. */

#ifndef SIMIPU_ORT_ABI_H
#define SIMIPU_ORT_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { ORT_VERSION = 18 };

enum ort_code { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 };
enum ort_type { ORT_UNDEFINED = 0, ORT_FLOAT = 1, ORT_UINT8 = 2, ORT_INT32 = 6, ORT_FLOAT16 = 10 };

struct ort_status;
struct ort_session_options;
struct ort_domain;
struct ort_operator;
struct ort_info;    /* of a node, when its kernel is made */
struct ort_context; /* of a call */
struct ort_value;
struct ort_shape; /* the type and shape of a tensor */
struct ort_allocator;
struct ort_inference;

/* Entries that are not used, from one place to before another. */
#define GAP(first, last) void (*gap_##first[(last) - (first)])(void)

struct ort_api {
    struct ort_status *(*create_status)(enum ort_code code, const char *message);
    GAP(1, 26);
    struct ort_status *(*create_domain)(const char *name, struct ort_domain **made);
    struct ort_status *(*add_operator)(struct ort_domain *domain, const struct ort_operator *added);
    struct ort_status *(*add_domain)(struct ort_session_options *options, struct ort_domain *added);
    GAP(29, 51);
    struct ort_status *(*get_data)(struct ort_value *value, void **data);
    GAP(52, 57);
    struct ort_status *(*create_shape)(struct ort_shape **made);
    struct ort_status *(*set_type)(struct ort_shape *shape, enum ort_type type);
    struct ort_status *(*set_sizes)(struct ort_shape *shape, const int64_t *sizes, size_t count);
    struct ort_status *(*get_type)(const struct ort_shape *shape, enum ort_type *type);
    struct ort_status *(*get_rank)(const struct ort_shape *shape, size_t *rank);
    struct ort_status *(*get_sizes)(const struct ort_shape *shape, int64_t *sizes, size_t count);
    struct ort_status *(*get_symbols)(const struct ort_shape *shape, const char **names, size_t count);
    GAP(64, 65);
    struct ort_status *(*get_shape)(const struct ort_value *value, struct ort_shape **shape);
    GAP(66, 75);
    struct ort_status *(*allocate)(struct ort_allocator *allocator, size_t bytes, void **memory);
    struct ort_status *(*release)(struct ort_allocator *allocator, void *memory);
    GAP(77, 86);
    struct ort_status *(*get_integer)(const struct ort_info *info, const char *name, int64_t *found);
    GAP(87, 90);
    struct ort_status *(*get_input)(const struct ort_context *context, size_t index,
                                    const struct ort_value **value);
    struct ort_status *(*get_output)(struct ort_context *context, size_t index, const int64_t *sizes,
                                     size_t count, struct ort_value **value);
    GAP(92, 93);
    void (*release_status)(struct ort_status *status);
    GAP(94, 99);
    void (*release_shape)(struct ort_shape *shape);
    GAP(100, 132);
    void (*release_allocator)(struct ort_allocator *allocator);
    GAP(133, 162);
    /* `count`: the most that there is room for, then how many there are; with no room (NULL) only that. */
    struct ort_status *(*get_floats)(const struct ort_info *info, const char *name, float *found,
                                     size_t *count);
    struct ort_status *(*get_integers)(const struct ort_info *info, const char *name, int64_t *found,
                                       size_t *count);
    GAP(164, 230);
    struct ort_status *(*count_inputs)(const struct ort_info *info, size_t *count);
    GAP(231, 244);
    struct ort_status *(*get_node_name)(const struct ort_info *info, char *name, size_t *bytes);
    GAP(245, 267);
    struct ort_status *(*count_shapes)(const struct ort_inference *inference, size_t *count);
    struct ort_status *(*get_input_shape)(const struct ort_inference *inference, size_t index,
                                          struct ort_shape **borrowed);
    GAP(269, 270);
    struct ort_status *(*set_output_shape)(const struct ort_inference *inference, size_t index,
                                           const struct ort_shape *shape);
    struct ort_status *(*set_symbols)(struct ort_shape *shape, const char **names, size_t count);
    GAP(272, 274);
    /* With `batches` 0 a thread takes the next index when it has done with one. */
    struct ort_status *(*parallel_for)(const struct ort_context *context, void (*work)(void *data, size_t i),
                                       size_t count, size_t batches, void *data);
    GAP(275, 278);
    struct ort_status *(*get_allocator)(const struct ort_info *info, int memory_type,
                                        struct ort_allocator **allocator);
};

_Static_assert(offsetof(struct ort_api, get_allocator) == 278 * sizeof(void (*)(void)), "a place has moved");

#undef GAP

struct ort_api_base {
    const struct ort_api *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
};

enum ort_presence { ORT_REQUIRED, ORT_OPTIONAL, ORT_VARIADIC };

struct ort_operator {
    uint32_t version;
    void *(*create_kernel)(const struct ort_operator *self, const struct ort_api *api,
                           const struct ort_info *info);
    const char *(*get_name)(const struct ort_operator *self);
    const char *(*get_provider)(const struct ort_operator *self);
    enum ort_type (*get_input_type)(const struct ort_operator *self, size_t index);
    size_t (*count_input_types)(const struct ort_operator *self);
    enum ort_type (*get_output_type)(const struct ort_operator *self, size_t index);
    size_t (*count_output_types)(const struct ort_operator *self);
    void (*compute)(void *kernel, struct ort_context *context);
    void (*destroy_kernel)(void *kernel);
    enum ort_presence (*get_input_presence)(const struct ort_operator *self, size_t index);
    enum ort_presence (*get_output_presence)(const struct ort_operator *self, size_t index);
    int (*get_input_memory)(const struct ort_operator *self, size_t index);
    int (*get_least_variadic_inputs)(const struct ort_operator *self);
    int (*has_one_input_type)(const struct ort_operator *self);
    int (*get_least_variadic_outputs)(const struct ort_operator *self);
    int (*has_one_output_type)(const struct ort_operator *self);
    /* These two in the place of `create_kernel` and `compute`, which have no way to refuse. */
    struct ort_status *(*try_create_kernel)(const struct ort_operator *self, const struct ort_api *api,
                                            const struct ort_info *info, void **kernel);
    struct ort_status *(*try_compute)(void *kernel, struct ort_context *context);
    struct ort_status *(*infer_shapes)(const struct ort_operator *self, struct ort_inference *inference);
    int (*get_first_opset)(const struct ort_operator *self);
    int (*get_last_opset)(const struct ort_operator *self);
    /* Which outputs may lie where which inputs do: two lists of indices, and their length. */
    size_t (*get_in_place)(int **inputs, int **outputs);
    void (*release_in_place)(int *inputs, int *outputs);
    size_t (*get_aliases)(int **inputs, int **outputs);
    void (*release_aliases)(int *inputs, int *outputs);
};

#endif
