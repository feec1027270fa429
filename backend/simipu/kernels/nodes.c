/* Reads nodes: what is asked of an attribute, its description says. */

#include "nodes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Attribute `steps`, three integers a step: | kind | rounding | operand | kind | ...; `numbers` has a float
   for each. */
enum { NUMBERS_OF_STEP = 3 };

struct ort_status *refuse(const struct node *node, const char *format, ...) {
    char message[MAX_MESSAGE];
    int used = snprintf(message, sizeof message, "simipu.%s %s: ", node->description->name, node->name);
    va_list values;
    va_start(values, format);
    vsnprintf(message + used, sizeof message - (size_t)used, format, values);
    va_end(values);
    return node->api->create_status(ORT_INVALID_ARGUMENT, message);
}

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

struct ort_status *read_integers(struct node *node, const struct ort_info *info, const char *name,
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
    for (int scale = -MAX_SCALE; scale <= MAX_SCALE; scale++)
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
        return refuse(node, "step %zu: expected a power of two from 2**-%d to 2**%d, found %g", i, MAX_SCALE,
                      MAX_SCALE, (double)number);
    node->steps[i] = (struct step){(enum kind)kind, (enum rounding)rounding, (int)operand, number};
    return NULL;
}

static struct ort_status *read_steps(struct node *node, const struct ort_info *info) {
    int64_t found[NUMBERS_OF_STEP * MAX_STEPS];
    float numbers[MAX_STEPS];
    size_t count, num_numbers = 0;
    TRY(read_integers(node, info, "steps", found, NUMBERS_OF_STEP * MAX_STEPS, &count));
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
    node->program = (struct program){(int)num_steps, (int)node->nan_on_overflow, node->steps, NULL};
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
    if (node->inputs < fixed || node->inputs > fixed + MAX_OPERANDS)
        return refuse(node, "expected %zu to %zu inputs, found %zu", fixed, fixed + MAX_OPERANDS,
                      node->inputs);
    for (const struct attribute *each = node->description->attributes; each->name; each++)
        TRY(read_integer(node, info, each));
    TRY(read_steps(node, info));
    if (node->description->read) TRY(node->description->read(node, info));
    return node->api->get_allocator(info, 0, &node->allocator);
}

void destroy_node(void *made) {
    struct node *node = made;
    if (node && node->allocator) node->api->release_allocator(node->allocator);
    free(node);
}

struct ort_status *create_node(const struct ort_operator *self, const struct ort_api *api,
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
