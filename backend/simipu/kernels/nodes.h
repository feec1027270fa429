/* Nodes of the kernels' operators, read and checked when ONNX Runtime makes them. */

#ifndef SIMIPU_NODES_H
#define SIMIPU_NODES_H

#include "kernels.h"
#include "ort_abi.h"

enum {
    MAX_AXES = 16,   /* of a tensor */
    MAX_STEPS = 64,  /* of a program */
    MAX_FIXED = 2,   /* inputs before the operands of steps */
    MAX_SCALE = 100, /* of 8-bit codes, as a power of two */
    MAX_NAME = 128,
    MAX_MESSAGE = 512,
};

/* A node, as it was made; which of the numbers it has depends on its operator. */
struct node {
    const struct ort_api *api;
    struct ort_allocator *allocator;
    const struct description *description;
    char name[MAX_NAME];
    size_t inputs;
    struct program program;
    struct step steps[MAX_STEPS];
    int64_t block, nan_on_overflow, raises, trans_left, trans_right, left_format, right_format, left_scale,
        right_scale;
    int64_t group, filters_format, filters_scale, packed_rows, slic_taps, blocked_source, blocked_result;
    int64_t cell, hidden, directions, is_reversed, is_coupled, clip; /* `clip`: the bits of a half */
    int64_t bias, lengths, state, cells, peepholes;                  /* the inputs' places; 0: none */
    int64_t threads;                                                 /* of the session; 0: not known */
    size_t axes;                                                     /* spatial */
    int64_t strides[MAX_SPATIAL], dilations[MAX_SPATIAL], pads[2 * MAX_SPATIAL];
};

/* An integer of a node: where it is kept, and what it may be. */
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
    size_t outputs;
    const struct attribute *attributes;
    struct ort_status *(*read)(struct node *node, const struct ort_info *info);
    struct ort_status *(*run)(struct node *node, struct ort_context *context);
};

/* Hand on what ONNX Runtime refuses. */
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        struct ort_status *status_ = (call);                                                                 \
        if (status_) return status_;                                                                         \
    } while (0)

/* An error that names the operator and the node. */
__attribute__((format(printf, 2, 3))) struct ort_status *refuse(const struct node *node, const char *format,
                                                                ...);

/* At most `most` integers; how many in `count`: none where there is no such attribute. */
struct ort_status *read_integers(struct node *node, const struct ort_info *info, const char *name,
                                 int64_t *found, size_t most, size_t *count);

/* Read a node, or say what is wrong with it. */
struct ort_status *create_node(const struct ort_operator *self, const struct ort_api *api,
                               const struct ort_info *info, void **made);
void destroy_node(void *made);

#endif
