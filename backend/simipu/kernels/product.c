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

/* Rows up to which halves are widened anew for each tile, beside the multiplications: packing them first
   would take longer. Codes, which take more, for one row only. */
enum { FEW_ROWS = 4 * TILE_ROWS };

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
    if (rows <= FEW_ROWS && right->element == HALF && columns % LANES == 0)
        return (struct panel){(const uint16_t *)right->data + start, product->right_channel, LYING_HALVES, 1};
    if (rows == 1 && (right->element == F143 || right->element == F152) && columns % LANES == 0) {
        enum lying lying = right->element == F143 ? LYING_F143 : LYING_F152;
        return (struct panel){(const uint8_t *)right->data + start, product->right_channel, lying,
                              right->unit};
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
        .program = &product->program,
        .values = product->values,
        .result = product->result,
        .supply = supply_product,
        .owner = product,
    };
    run_job(&job, product->depth, machine);
    return DONE;
}
