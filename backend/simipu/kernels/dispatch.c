/* Which of the sets of instructions computes: the best that the machine has, or the one that is asked for. */

#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#define DECLARE(set)                                                                                         \
    enum outcome simipu_multiply_##set(const struct product *, const struct machine *);                      \
    enum outcome simipu_convolve_##set(const struct convolution *, const struct machine *);                  \
    enum outcome simipu_run_chain_##set(const struct chain *, const struct machine *);                       \
    enum outcome simipu_recur_##set(const struct recurrence *, const struct machine *);
#define SET(set)                                                                                             \
    {#set, simipu_multiply_##set, simipu_convolve_##set, simipu_run_chain_##set, simipu_recur_##set}

struct set {
    const char *name;
    enum outcome (*multiply)(const struct product *, const struct machine *);
    enum outcome (*convolve)(const struct convolution *, const struct machine *);
    enum outcome (*run_chain)(const struct chain *, const struct machine *);
    enum outcome (*recur)(const struct recurrence *, const struct machine *);
};

DECLARE(portable)
#if defined(__x86_64__)
DECLARE(avx2)
DECLARE(avx512)
#elif defined(__aarch64__)
DECLARE(neon)
#endif

/* The best first. */
static const struct set SETS[] = {
#if defined(__x86_64__)
    SET(avx512),
    SET(avx2),
#elif defined(__aarch64__)
    SET(neon),
#endif
    SET(portable),
};
enum { NUM_SETS = sizeof SETS / sizeof *SETS };

static int is_there(const char *name) {
#if defined(__x86_64__)
    int avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (!strcmp(name, "avx512"))
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (!strcmp(name, "avx2")) return avx2;
#elif defined(__aarch64__)
    if (!strcmp(name, "neon")) return 1; /* every such processor has it */
#endif
    return !strcmp(name, "portable");
}

/* Asked once: calls that meet here at first find the same. */
static const struct set *find_set(void) {
    static const struct set *found;
    const struct set *set = __atomic_load_n(&found, __ATOMIC_ACQUIRE);
    if (set) return set;
    const char *wanted = getenv("SIMIPU_KERNELS");
    for (int i = NUM_SETS - 1; i >= 0; i--)
        if (is_there(SETS[i].name)) set = SETS + i;
    for (int i = 0; wanted && i < NUM_SETS; i++)
        if (!strcmp(SETS[i].name, wanted) && is_there(wanted)) set = SETS + i;
    __atomic_store_n(&found, set, __ATOMIC_RELEASE);
    return set;
}

enum outcome simipu_multiply(const struct product *product, const struct machine *machine) {
    return find_set()->multiply(product, machine);
}

enum outcome simipu_convolve(const struct convolution *convolution, const struct machine *machine) {
    return find_set()->convolve(convolution, machine);
}

enum outcome simipu_run_chain(const struct chain *chain, const struct machine *machine) {
    return find_set()->run_chain(chain, machine);
}

enum outcome simipu_recur(const struct recurrence *recurrence, const struct machine *machine) {
    return find_set()->recur(recurrence, machine);
}

__attribute__((visibility("default"))) const char *simipu_instructions(void) { return find_set()->name; }
