/* How the operators are read and run. */

#ifndef SIMIPU_OPERATORS_H
#define SIMIPU_OPERATORS_H

#include "nodes.h"

/* The attributes left_format, right_format and filters_format. */
enum { FORMAT_OF_TENSOR, FORMAT_F143, FORMAT_F152 };

struct ort_status *run_product(struct node *node, struct ort_context *context);
struct ort_status *read_convolution(struct node *node, const struct ort_info *info);
struct ort_status *run_convolution(struct node *node, struct ort_context *context);
struct ort_status *run_recurrent(struct node *node, struct ort_context *context);
struct ort_status *run_chain(struct node *node, struct ort_context *context);

#endif
