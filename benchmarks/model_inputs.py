"""Inputs for real models, different in every request and in the range that the model expects: the
kinds of `models.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from inputs import Row
from model_table import Input, Model
from PIL import Image, ImageDraw, ImageFont
from tritonclient.grpc.model_config_pb2 import ModelConfig

Array = npt.NDArray[np.float64]
Maker = Callable[..., Array]
"""Makes values of a shape from a generator and the numbers that stand behind the kind's name."""
LETTERS = list("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .,")


def make_inputs(inputs: Mapping[str, Input], rows: int, seed: tuple[int, ...]) -> dict[str, Array]:
    """Return values for every input with `rows` rows; the same for the same `seed`."""
    generator = np.random.default_rng(seed)
    return {
        name: make_array(spec.kind, spec.sizes(rows), generator) for name, spec in inputs.items()
    }


def make_row(model: Model, config: ModelConfig, number: int) -> Row:
    """Return a request for the compiled model with this configuration, in its order.

    It has one row if rows are independent, otherwise the compiled shape.
    """
    is_whole = not config.max_batch_size and not any(-1 in tensor.dims for tensor in config.input)
    input_arrays = make_inputs(model.inputs, model.batch if is_whole else 1, (number,))
    arrays = [input_arrays[tensor.name] for tensor in config.input]
    return tuple(array[0] if config.max_batch_size else np.atleast_1d(array) for array in arrays)


def make_array(kind: str, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Return values of that kind, as doubles, including whole numbers and truth values."""
    name, *numbers = kind.split()
    return KINDS[name](generator, shape, *map(float, numbers))


def _normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.standard_normal(shape)


def _range(
    generator: np.random.Generator, shape: tuple[int, ...], least: float, greatest: float
) -> Array:
    return generator.uniform(least, greatest, shape)


def _integers(
    generator: np.random.Generator, shape: tuple[int, ...], least: float, end: float
) -> Array:
    return generator.integers(int(least), int(end), shape).astype(np.float64)


def _constant(_generator: np.random.Generator, shape: tuple[int, ...], value: float) -> Array:
    return np.full(shape, value)


def _onehot(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    rows: Array = np.eye(shape[-1])[generator.integers(0, shape[-1], shape[:-1])]
    return rows


def _audio(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return tones in noise, loud or soft: rows of samples from -1 to 1."""
    samples = np.arange(np.prod(shape[1:])).reshape(shape[1:])
    rows = (shape[0], *[1] * (len(shape) - 1))
    tone = np.sin(samples * generator.uniform(0.01, 0.5, rows))
    sound = tone + 0.3 * generator.standard_normal(shape)
    clipped: Array = np.clip(sound * generator.uniform(0.02, 0.9, rows), -1, 1)
    return clipped


def _page(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return dark letters on light paper, -1 to 1, as [..., height, width]; all channels are
    equal."""
    height, width = shape[-2:]
    pages = []
    for _ in range(shape[0]):
        page = Image.new("L", (width, height), int(generator.integers(180, 256)))
        draw = ImageDraw.Draw(page)
        size = int(generator.integers(min(height, 60) // 3, min(height, 60) // 2 + 1))
        for top in range(int(generator.integers(0, 8)), height - size, 2 * size):
            text = "".join(generator.choice(LETTERS, max(3, width // size)))
            draw.text(
                (int(generator.integers(0, 8)), top),
                text,
                int(generator.integers(0, 80)),
                ImageFont.load_default(size),
            )
        pages.append(np.asarray(page, np.float64) / 127.5 - 1)
    grey = np.stack(pages).reshape(shape[0], *[1] * (len(shape) - 3), height, width)
    return np.broadcast_to(grey, shape)


def _mask(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return ones for a sentence of any length but 0, and zeros after it."""
    lengths = generator.integers(1, shape[-1] + 1, (*shape[:-1], 1))
    return (np.arange(shape[-1]) < lengths).astype(np.float64)


def _padding(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return true where a mask is false."""
    return 1 - _mask(generator, shape)


KINDS: dict[str, Maker] = {
    "normal": _normal,
    "range": _range,
    "unit": lambda generator, shape: _range(generator, shape, 0, 1),
    "signed": lambda generator, shape: _range(generator, shape, -1, 1),
    "bits": lambda generator, shape: _integers(generator, shape, 0, 2),
    "zeros": lambda generator, shape: _constant(generator, shape, 0),
    "integers": _integers,
    "constant": _constant,
    "onehot": _onehot,
    "audio": _audio,
    "page": _page,
    "mask": _mask,
    "padding": _padding,
}
"""Makers by name; `range LEAST GREATEST`, `integers LEAST END` and `constant VALUE` have
numbers."""
