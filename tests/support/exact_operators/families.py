"""The families of cases by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from exact_operators import empty, integers, quantized, whole_numbers, windows
from exact_operators.forms import Case

FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    "binary": integers.draw_binary,
    "remainders": integers.draw_remainders,
    "unary": integers.draw_unary,
    "reductions": integers.draw_reductions,
    "running": integers.draw_running,
    "products": integers.draw_products,
    "others": whole_numbers.draw_others,
    "casts": whole_numbers.draw_casts,
    "codes": quantized.draw_products,
    "convolutions": quantized.draw_convolutions,
    "steps": quantized.draw_steps,
    "dynamic": quantized.draw_dynamic,
    "empty": empty.draw_suite,
    "recurrent": empty.draw_recurrent,
    "norms": empty.draw_norms,
    "moved": empty.draw_moved,
    "resized": empty.draw_resized,
    "pools": windows.draw_pools,
    "windows": windows.draw_convolutions,
    "slices": windows.draw_slices,
}
