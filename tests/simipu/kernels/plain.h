/* The same functions, one step after the other: what the kernels are compared with. */

#ifndef PLAIN_H
#define PLAIN_H

#include "kernels.h"

void plain_multiply(const struct product *product);
void plain_convolve(const struct convolution *convolution);
void plain_run_chain(const struct chain *chain);
void plain_recur(const struct recurrence *recurrence);

#endif
