/* A call of an operator: the tensors that it is given, and ONNX Runtime's threads and memory for the kernel.
 */

#ifndef SIMIPU_CALLS_H
#define SIMIPU_CALLS_H

#include "nodes.h"

struct tensor {
    const void *data;
    enum ort_type type;
    size_t rank;
    int64_t sizes[MAX_AXES];
};

struct call {
    struct node *node;
    struct ort_context *context;
    int has_failed; /* ONNX Runtime's threads did */
    int exception;  /* see `struct program` */
    struct tensor inputs[MAX_FIXED + MAX_OPERANDS];
    struct values values[MAX_OPERANDS];
};

/* Find out what a call is given: every input is there and has few enough axes. */
struct ort_status *begin(struct call *call, struct node *node, struct ort_context *context);

/* The tensor of an operand of the steps. */
struct tensor *operand_of(struct call *call, int operand);

/* Each operand that a step takes is a table or numbers to broadcast; says what it is, not yet where it lies.
 */
struct ort_status *check_operands(struct call *call);

/* The same, and where operands of a product's or a convolution's steps lie. The result's axes are batches, up
   to `row_axis`, rows, that one, and columns, those after it. */
struct ort_status *place_operands(struct call *call, const int64_t *sizes, size_t rank, size_t row_axis);

/* The product of sizes; -1 where no memory could hold so many floats. */
int64_t count_elements(const int64_t *sizes, size_t rank);

/* Memory for the result, and for one of several. */
struct ort_status *open_result(struct call *call, const int64_t *sizes, size_t rank, float **result);
struct ort_status *open_output(struct call *call, size_t i, const int64_t *sizes, size_t rank,
                               float **result);

/* What a kernel runs on: ONNX Runtime's threads, and its memory, which has a limit. */
struct machine machine_of(struct call *call);
void *allocate(void *owner, size_t bytes);
void release(void *owner, void *memory);

/* The node's steps, and where they tell of exceptions. */
struct program program_of(struct call *call);

/* What a kernel came to, for ONNX Runtime. */
struct ort_status *conclude(struct call *call, enum outcome outcome);

#endif
