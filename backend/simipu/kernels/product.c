/* Matrix products. The right side is packed, the left is read where it is if it is floats, row by row. */

#include "tasks.h"

struct product_supply {
    struct supply supply;
    const struct product *product;
    int64_t left_start, right_start;
};

static int cut_product(struct supply *supply, int64_t first, struct part *part) {
    const struct product *product = ((struct product_supply *)supply)->product;
    int64_t left = product->depth - first;
    if (left <= 0) return 0;
    /* A part ends where a block ends: the sums of a block stay in registers. */
    int most = product->block ? MAX_CHANNELS / product->block * product->block : MAX_CHANNELS;
    int block = product->block ? product->block : MAX_CHANNELS;
    part->channels = left < most ? (int)left : most;
    part->blocks = 0;
    for (int end = 0; end < part->channels; part->ends[part->blocks++] = end)
        end = end + block < part->channels ? end + block : part->channels;
    for (int i = 0; i < part->channels; i++) part->offsets[i] = i;
    return 1;
}

/* Rows up to which elements are widened anew for each tile, beside the multiplications: packing them first
   would take longer, except where conversions take as long as products, or rounding needs their units. */
#if defined(__AVX512F__)
enum { FEW_ROWS = 4 * TILE_ROWS, FEW_ROUNDED_ROWS = TILE_ROWS };
#elif defined(SIMIPU_NEON)
enum { FEW_ROWS = 4 * TILE_ROWS, FEW_ROUNDED_ROWS = FEW_ROWS };
#else
enum { FEW_ROWS = TILE_ROWS, FEW_ROUNDED_ROWS = FEW_ROWS };
#endif
enum { FEW_ROWS_OF_CODES = 1 };

/* Of tasks of up to so many rows the right side is read where it lies, if it is of whole registers. */
static int count_lying_rows(const struct product *product) {
    if (product->right_column != 1 || product->right.element == FLOAT) return 0;
    if (product->right.element != HALF) return FEW_ROWS_OF_CODES;
    return product->block ? FEW_ROUNDED_ROWS : FEW_ROWS;
}

/* The columns where they lie; of whole registers. */
static struct panel find_lying(const struct operand *right, int64_t start, int64_t between) {
    if (right->element == HALF)
        return (struct panel){(const uint16_t *)right->data + start, between, LYING_HALVES, 1};
    int is_f152 = right->element == F152;
    return (struct panel){(const uint8_t *)right->data + start, between, is_f152 ? LYING_F152 : LYING_F143,
                          unit_of_halves(right->unit, is_f152)};
}

INLINE void widen_registers(const struct panel *from, enum lying lying, int vectors, int channels,
                            float *panel) {
    ptrdiff_t between = bytes_between(from, lying);
    const char *right = from->data;
    V unit = v_all(from->unit);
    for (int k = 0; k < channels; k++, panel += PANEL, right += between) {
        prefetch(right, between);
        for (int j = 0; j < vectors; j++)
            v_store(panel + j * LANES, take_columns(right, j * LANES, lying, unit));
    }
}

INLINE void widen_lying(const struct panel *from, enum lying lying, int vectors, int channels, float *panel) {
    if (vectors == TILE_VECTORS)
        widen_registers(from, lying, TILE_VECTORS, channels, panel);
    else
        widen_registers(from, lying, vectors, channels, panel);
}

static struct panel pack_product(struct supply *supply, const struct part *part, int64_t first,
                                 int64_t column, int columns, int rows, float *held) {
    const struct product_supply *from = (struct product_supply *)supply;
    const struct product *product = from->product;
    int64_t start = from->right_start + first * product->right_channel + column * product->right_column;
    struct panel packed = {held, PANEL, PACKED, 1};
    const struct operand *right = &product->right;
    /* Channels lie together, as in a transposed matrix: turned while it is packed. */
    if (product->right_column != 1) {
        pack_turned(right, start, product->right_column, part->channels, part->offsets, columns, held);
        return packed;
    }
    if (right->element != FLOAT && columns % LANES == 0) {
        struct panel lying = find_lying(right, start, product->right_channel);
        if (rows <= count_lying_rows(product)) return lying;
        switch (lying.lying) {
        case LYING_HALVES: widen_lying(&lying, LYING_HALVES, columns / LANES, part->channels, held); break;
        case LYING_F143: widen_lying(&lying, LYING_F143, columns / LANES, part->channels, held); break;
        default: widen_lying(&lying, LYING_F152, columns / LANES, part->channels, held);
        }
        return packed;
    }
    float *panel = held;
    for (int k = 0; k < part->channels; k++, panel += PANEL, start += product->right_channel) {
        widen(right, start, columns, panel);
        for (int j = columns; j % LANES; j++) panel[j] = 0; /* a register more is read, and is dropped */
    }
    return packed;
}

static void take_product(struct supply *supply, const struct part *part, int64_t first, int64_t row, int rows,
                         float *held, const float **lefts) {
    const struct product_supply *from = (struct product_supply *)supply;
    const struct product *product = from->product;
    int64_t start = from->left_start + row * product->left_row + first * product->left_channel;
    for (int i = 0; i < rows; i++, start += product->left_row, held += HELD_CHANNELS) {
        lefts[i] = held;
        if (product->left_channel != 1)
            for (int k = 0; k < part->channels; k++)
                widen(&product->left, start + k * product->left_channel, 1, held + k);
        else if (product->left.element == FLOAT)
            lefts[i] = (const float *)product->left.data + start;
        else
            widen(&product->left, start, part->channels, held);
    }
}

static struct supply *supply_product(const void *owner, int64_t batch, int64_t group, void *held) {
    (void)group;
    const struct product *product = owner;
    struct product_supply *made = held;
    made->supply = (struct supply){cut_product, pack_product, take_product};
    made->product = product;
    made->left_start = product->left_starts ? product->left_starts[batch] : 0;
    made->right_start = product->right_starts ? product->right_starts[batch] : 0;
    return &made->supply;
}

enum outcome OF_SET(simipu_multiply)(const struct product *product, const struct machine *machine) {
    struct job job = {
        .batches = product->batches,
        .groups = 1,
        .rows = product->rows,
        .columns = product->columns,
        .rule = product->nan_on_overflow ? NO_OVERFLOW : BOUNDED,
        .is_rounded = product->block > 0,
        .lying_rows = product->columns % LANES ? 0 : count_lying_rows(product),
        .program = &product->program,
        .values = product->values,
        .result = product->result,
        .supply = supply_product,
        .owner = product,
    };
    run_job(&job, product->depth, machine);
    return DONE;
}
