"""The real tool's quantizer: computes the model on the user's samples, searches or adjusts,
converts, and writes quantize.log.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import (
    find_inputs,
    graph_values,
    has_data,
    hold,
    infer_shapes,
    iter_nodes,
    read_array,
)
from simipu import CompileError

from popef._tools.arrays import Array
from poprt._names import QUANTISED_PRECISIONS
from poprt.comparing.divergence import iter_chunks, iter_groups
from poprt.comparing.reading import Data, iter_batches, read_samples
from poprt.comparing.sides import FAILURES, Side
from poprt.comparing.statistics import HalfCounts, Moments
from poprt.passes import PassManager, get_pass
from poprt.passes.precision.eight_bits import Fp8Params, NarrowProduct, find_products
from poprt.quantizer.gptq import Adjusted, Hessian, WeightLayout, adjust
from poprt.quantizer.search import CANDIDATES, LOSSES, Choice, ScaledFormat, Values, search
from poprt.terminal import show_progress

_PARAMS, _SKIP = "poprt.fp8_params", "poprt.fp8_skip_op_names"
_NAMES = {"fp8_params": _PARAMS, "fp8_skip_op_names": _SKIP}


@dataclass(frozen=True, slots=True)
class Notes:
    """The options fp8_params and fp8_skip_op_names; None if they were not given."""

    given_params: Fp8Params | None = None
    given_skip_op_names: frozenset[str] | None = None

    @property
    def params(self) -> Fp8Params:
        """The given fp8_params, or the defaults."""
        return self.given_params or Fp8Params()

    @property
    def skip_op_names(self) -> frozenset[str]:
        """The given fp8_skip_op_names, or the default."""
        return self.given_skip_op_names or frozenset()

    @staticmethod
    def of_options(options: Mapping[str, Any]) -> Notes:
        """Return the notes of these options. Raises CompileError for an unknown option."""
        unknown = sorted(set(options) - _NAMES.keys())
        if unknown:
            raise CompileError(f"options: expected {' or '.join(_NAMES)}, found {unknown[0]!r}")
        params, names = options.get("fp8_params"), options.get("fp8_skip_op_names")
        split = names.split(",") if isinstance(names, str) else names
        return Notes(
            Fp8Params.parse(params) if params else None,
            frozenset(filter(None, (str(name).strip() for name in split))) if split else None,
        )

    def over(self, others: Notes) -> Notes:
        """Return these notes, with missing values taken from `others`."""
        return Notes(
            self.given_params or others.given_params,
            self.given_skip_op_names or others.given_skip_op_names,
        )

    @staticmethod
    def leave(model: onnx.ModelProto, params: Fp8Params, skip_op_names: Collection[str]) -> None:
        """Write the options into a model."""
        Notes.take(model)
        formats = f"{params.input_format.name},{params.weight_format.name}"
        texts = {_PARAMS: f"{formats},{params.input_scale},{params.weight_scale}"}
        if skip_op_names:
            texts[_SKIP] = "\n".join(sorted(skip_op_names))
        model.metadata_props.extend(
            onnx.StringStringEntryProto(key=key, value=texts[key]) for key in texts
        )

    @staticmethod
    def take(model: onnx.ModelProto) -> Notes:
        """Remove the notes from a model and return them. Raises CompileError for damaged ones."""
        entries = {entry.key: entry.value for entry in model.metadata_props}
        others = [entry for entry in model.metadata_props if entry.key not in _NAMES.values()]
        del model.metadata_props[:]
        model.metadata_props.extend(others)
        names = entries.get(_SKIP)
        return Notes(
            Fp8Params.parse(entries[_PARAMS]) if _PARAMS in entries else None,
            frozenset(names.split("\n")) if names else None,
        )


def iter_activations(
    model: onnx.ModelProto, samples: Mapping[str, Array], names: Iterable[str]
) -> Iterator[tuple[str, Array]]:
    """Yield the named tensors of the main graph for all samples, as the model computes them in
    float.

    The tensors are computed in groups that fit into memory together, each batch by batch. Raises
    CompileError for a model that cannot be computed on the samples.
    """
    side = Side.of(model, None)
    light = side.model
    inputs = {value.name for value in find_inputs(light.graph)}
    tensor_names = list(dict.fromkeys(names))
    input_names = [name for name in tensor_names if name in inputs]
    for feeds in iter_batches(light, samples) if input_names else ():
        yield from ((name, np.asarray(feeds[name])) for name in input_names)
    values = graph_values(infer_shapes(light).graph)
    result_names = [name for name in tensor_names if name not in inputs]
    try:
        for chunk in iter_chunks(result_names, values):
            for tensors in side.run(iter_batches(light, samples), chunk, enough_seconds=math.inf):
                yield from zip(chunk, tensors, strict=True)
    except FAILURES as error:
        raise CompileError(f"the model cannot be computed on data_preprocess: {error}") from error


LOG_NAME = "quantize.log"
LOSS_TYPES = (*LOSSES, "gptq")
"""Names of the losses: mse, mae, snr, cos_dist, kld, and gptq, which adjusts weights."""
_HESSIAN_BYTES = 1 << 30
"""Maximum number of bytes of the Hessians that are collected together; the samples are computed
once for each group."""

_log = logging.getLogger("poprt")


def quantize(
    onnx_model: onnx.ModelProto,
    input_model: str | Path | None,
    output_dir: str | Path,
    data_preprocess: Data | None = None,
    precision: str = "fp8",
    quantize_loss_type: str = "kld",
    num_of_layers_keep_fp16: int = 0,
    options: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """Quantize a model from `Converter(precision=..., quantize=True)` to 8 bits.

    The operands of every product with a weight get the format and scale of least loss.

    Args:
        onnx_model: the converted model, which is not changed.
        input_model: the source model; it is not needed, and not read.
        output_dir: folder for quantize.log.
        data_preprocess: samples by input name, along the first axis: a pickled dict, an .npz file,
            a folder of .npy files, or a mapping. fp8_weight needs them for gptq only.
        precision: fp8 or fp8_weight, as for the converter.
        quantize_loss_type: see `FP8Quantizer`.
        num_of_layers_keep_fp16: see `FP8Quantizer`.
        options: see `FP8Quantizer`.

    Returns:
        The 8-bit model.

    Raises:
        CompileError: naming what does not fit.
    """
    del input_model  # the converted model computes the same
    quantizer = FP8Quantizer(
        output_dir, quantize_loss_type, data_preprocess, precision, num_of_layers_keep_fp16, options
    )
    return quantizer.quantize(onnx_model)


@dataclass(slots=True)
class _QuantizedLayer:
    """A product, and what was found for its operands."""

    product: NarrowProduct
    weight: Choice | None = None
    activation: Choice | None = None
    adjusted: Adjusted | None = None

    @property
    def name(self) -> str:
        return str(self.product.node.name)

    @property
    def loss(self) -> float:
        """Loss by which the layers that stay in fp16 are chosen: that of its operands together, or
        of its answers."""
        if self.adjusted is not None:
            return self.adjusted.loss
        return sum(choice.loss for choice in (self.weight, self.activation) if choice is not None)


class FP8Quantizer:
    """Finds formats and scales, converts a model with them, and writes output_dir/quantize.log.

    Activations inside the bodies of If, Loop and Scan are not examined: they use `fp8_params`.

    Args:
        output_dir: folder of the log.
        loss_type: mse, mae, snr (noise over signal), kld or cos_dist, the measure between an
            operand's values and their 8-bit approximation. Or gptq, for fp8_weight: formats and
            scales are those of `fp8_params`, and weights are adjusted so that the products' answers
            change least.
        data_preprocess: samples by input name, see `quantize`.
        precision: fp8 or fp8_weight.
        num_of_layers_keep_fp16: number of products of largest loss that stay in half; our loss is
            the sum over the operands.
        options: `fp8_params` and `fp8_skip_op_names` as `Converter` takes them; they override those
            that the converter was given.
    """

    def __init__(
        self,
        output_dir: str | Path,
        loss_type: str = "kld",
        data_preprocess: Data | None = None,
        precision: str = "fp8",
        num_of_layers_keep_fp16: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if loss_type not in LOSS_TYPES:
            raise CompileError(
                f"quantize_loss_type: expected {', '.join(LOSS_TYPES)}, found {loss_type!r}"
            )
        if precision not in QUANTISED_PRECISIONS:
            raise CompileError(
                f"precision: expected {' or '.join(QUANTISED_PRECISIONS)}, found {precision!r}"
            )
        if loss_type == "gptq" and precision != "fp8_weight":
            raise CompileError(
                f"quantize_loss_type gptq: expected precision fp8_weight, found {precision!r}"
            )
        if data_preprocess is None and (precision == "fp8" or loss_type == "gptq"):
            raise CompileError(
                "data_preprocess: expected samples by input name, which the calibration of "
                "activations requires; found none"
            )
        if not isinstance(num_of_layers_keep_fp16, int) or num_of_layers_keep_fp16 < 0:
            raise CompileError(
                f"num_of_layers_keep_fp16: expected 0 or more, found {num_of_layers_keep_fp16!r}"
            )
        self._folder, self._loss_type, self._precision = Path(output_dir), loss_type, precision
        self._keep, self._data = num_of_layers_keep_fp16, data_preprocess
        self._given = Notes.of_options(options or {})

    def quantize(self, onnx_model: onnx.ModelProto) -> onnx.ModelProto:
        """Quantize a model to 8 bits.

        Args:
            onnx_model: the model in half, which is not changed.

        Returns:
            The 8-bit model.

        Raises:
            CompileError: for a model that is not in half or has no weights, and for samples that do
                not fit.
        """
        model = deepcopy(onnx_model)
        notes = self._given.over(Notes.take(model))
        model = get_pass("unique_name_for_nodes")(model)
        layers = [
            _QuantizedLayer(product)
            for product in find_products(model.graph)
            if product.node.name not in notes.skip_op_names
        ]
        self._check(model, layers)
        if self._loss_type == "gptq":
            self._adjust(model, layers, notes.params)
        else:
            self._search(model, layers)
        ranked = sorted(layers, key=lambda layer: layer.loss, reverse=True)
        skipped = [layer.name for layer in ranked[: self._keep]]
        self._write_log(layers, skipped)
        for layer in layers:
            if layer.adjusted is not None and layer.name not in skipped:
                values = layer.adjusted.values.astype(np.float16)
                hold(layer.product.weight, values, TensorProto.FLOAT16)
        convert = get_pass(
            "float_to_fp8",
            notes.params,
            {*notes.skip_op_names, *skipped},
            self._precision,
            {layer.name: _pair(layer.activation) for layer in layers if layer.activation},
            {layer.name: _pair(layer.weight) for layer in layers if layer.weight},
        )
        return PassManager([convert, "final_check"]).run(model)

    def _check(self, model: onnx.ModelProto, layers: Sequence[_QuantizedLayer]) -> None:
        if not layers and all(
            tensor.data_type != TensorProto.FLOAT16 for tensor in model.graph.initializer
        ):
            raise CompileError(
                "the model has no products with weights in half to quantise; convert it with "
                f"Converter(precision={self._precision!r}, quantize=True) first"
            )
        for tensor in (layer.product.weight for layer in layers):
            if not has_data(tensor):
                raise CompileError(
                    f"weight {tensor.name!r}: expected values, found none; load the weights first"
                )

    def _search(self, model: onnx.ModelProto, layers: Sequence[_QuantizedLayer]) -> None:
        calibrated = [
            layer for layer in layers if self._precision == "fp8" and layer.product.is_outside
        ]
        counts: dict[str, HalfCounts] = {
            layer.product.activation: HalfCounts() for layer in calibrated
        }
        samples = read_samples(self._data) if calibrated and self._data is not None else {}
        for name, values in iter_activations(model, samples, counts) if calibrated else ():
            counts[name].add(values)
        choices: dict[str, Choice] = {}
        with show_progress("FP8 calibration", len(layers)) as show:
            for layer in layers:
                show(layer.name)
                weight, activation = layer.product.weight, layer.product.activation
                if weight.name not in choices:
                    of_weight = HalfCounts()
                    of_weight.add(read_array(weight))
                    choices[weight.name] = self._find(f"weight {weight.name!r}", of_weight)
                layer.weight = choices[weight.name]
                if activation in counts and activation not in choices:
                    choices[activation] = self._find(
                        f"activation {activation!r}", counts[activation]
                    )
                layer.activation = choices.get(activation) if layer in calibrated else None

    def _find(self, what: str, counts: HalfCounts) -> Choice:
        if counts.lost:
            _log.warning(
                "%s: %d values that are not finite were left out of calibration", what, counts.lost
            )
        values = Values.of(counts)
        choice = search(values, self._loss_type)
        if self._loss_type == "kld":
            return choice
        return replace(choice, remarks=_describe(values, choice.best))

    def _adjust(
        self, model: onnx.ModelProto, layers: Sequence[_QuantizedLayer], params: Fp8Params
    ) -> None:
        assert self._data is not None
        samples = read_samples(self._data)
        candidate = ScaledFormat(params.weight_format, params.weight_scale)
        users = Counter(name for node in iter_nodes(model.graph) for name in node.input)
        # A weight that several nodes read would have to suit them all: it is rounded instead.
        layouts = {
            layer.name: layout
            for layer in layers
            if layer.product.is_outside
            and users[layer.product.weight.name] == 1
            and (layout := _layout(layer.product))
        }
        adjusted = [layer for layer in layers if layer.name in layouts]
        # Hessians of a group fit into memory together.
        for group in iter_groups(
            adjusted, lambda layer: Hessian.size_bytes(layouts[layer.name]), _HESSIAN_BYTES
        ):
            hessians = {layer.name: Hessian(layouts[layer.name]) for layer in group}
            readers: dict[str, list[str]] = {}
            for layer in group:
                readers.setdefault(layer.product.activation, []).append(layer.name)
            for name, values in iter_activations(model, samples, readers):
                for reader in readers[name]:
                    hessians[reader].add(values)
            for layer in group:
                weight, hessian = read_array(layer.product.weight), hessians.pop(layer.name)
                layer.adjusted = adjust(weight, layouts[layer.name], candidate, hessian)

    def _write_log(self, layers: Sequence[_QuantizedLayer], kept: Sequence[str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / LOG_NAME).open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in self._iter_log(layers, kept))

    def _iter_log(self, layers: Sequence[_QuantizedLayer], kept: Sequence[str]) -> Iterator[str]:
        yield f"precision {self._precision}, loss {self._loss_type}, {len(layers)} products"
        for layer in layers:
            yield f"{layer.product.node.op_type} {layer.name!r}"
            if layer.adjusted is not None:
                weight, adjusted = layer.product.weight.name, layer.adjusted
                losses = f"loss {adjusted.loss:.6g}, rounded {adjusted.rounded_loss:.6g}"
                yield f"  weight {weight!r}: {losses}"
            for what, name, choice in (
                ("weight", layer.product.weight.name, layer.weight),
                ("activation", layer.product.activation, layer.activation),
            ):
                if choice is not None:
                    yield f"  {what} {name!r}: {choice.best}, loss {choice.loss:.6g}"
                    yield from _iter_losses(choice)
                    yield from choice.remarks
        if kept:
            yield f"kept in fp16, of largest loss: {', '.join(map(repr, kept))}"


def _layout(product: NarrowProduct) -> WeightLayout | None:
    return WeightLayout.of(product.node, product.place, tuple(product.weight.dims))


def _pair(choice: Choice) -> tuple[str, int]:
    return choice.best.quarter.name, choice.best.scale


def _describe(values: Values, best: ScaledFormat) -> tuple[str, ...]:
    """Return lines with the moments of the values, their 8-bit approximation, and the noise."""
    quantised = values.quantise(best)
    pairs = {"original": values.values, "quantised": quantised, "noise": quantised - values.values}
    return tuple(
        f"    {name}: {Moments.of(sample, values.counts).describe()}"
        for name, sample in pairs.items()
    )


def _iter_losses(choice: Choice) -> Iterator[str]:
    """Yield the losses of all candidates, a line for each format."""
    for name in dict.fromkeys(candidate.quarter.name for candidate in CANDIDATES):
        losses = {c.scale: loss for c, loss in choice.losses.items() if c.quarter.name == name}
        yield f"    {name}: " + ", ".join(
            f"{scale}: {losses[scale]:.4g}" for scale in sorted(losses)
        )
