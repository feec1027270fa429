/* Everything that computes, for one set of instructions: compiled once with the flags of each. */

#include "product.c"

#include "convolution.c"

#include "chain.c"

#include "cells.c"
