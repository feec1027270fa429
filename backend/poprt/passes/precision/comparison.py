"""Passes that compare a converted model with its original through ONNX Runtime, as a whole and
layer by layer.

Halves and 8-bit floats are emulated as the chip rounds them (`simipu.numerics`). Operators of the
chip's own are computed by their entries in the operator table.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnxgraph import find_inputs, graph_values, has_data, infer_shapes
from simipu import CompileError
from simipu.numerics import Numerics
from simipu.operators import find_operator

from popef._tools.arrays import Array
from poprt.passes.interface.surgery import RemoveInitializerFromInput
from poprt.passes.shapes.inputs import FixInputs
from poprt.rewrite.base import ImmutablePass, Stage, register

if TYPE_CHECKING:  # few conversions compare anything
    from poprt.comparing.reading import Data
    from poprt.comparing.sides import Feeds, Side

LOG_NAME = "precision_compare.log"
"""File with the comparison of layers; the real tool's name."""


@register("check_with_fake_data", stage=Stage.CHIP, option="check", takes="origin_model fix_inputs")
class CheckWithFakeData(ImmutablePass):
    """Compute the model on made-up data, and beside it the one that it comes from, if it is given,
    and say how far their outputs part.

    `fix_inputs` has the inputs that became constants on the way.
    """

    def __init__(
        self,
        origin_model: onnx.ModelProto | None = None,
        fix_inputs: Mapping[str, Any] | None = None,
    ) -> None:
        self._origin, self._fixed = origin_model, fix_inputs or {}

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Compare the models. Raise CompileError if either cannot be computed. Outputs that differ
        too much cause a warning, as in the calibration run of the compiler."""
        from poprt.comparing.inputs import describe_ranges
        from poprt.comparing.outputs import Comparer, find_classes
        from poprt.comparing.reading import make_up

        feeds = make_up(model)
        ours = _compute("converted", _open("converted", model, Numerics()), feeds)
        if self._origin is None:
            return model
        origin = FixInputs(self._fixed).run(copy.deepcopy(self._origin))
        names = [value.name for value in model.graph.output]
        theirs = _compute("original", _open("original", origin, None), feeds, names)
        comparer = Comparer(names, find_classes(origin))
        comparer.add(list(ours.values()), list(theirs.values()))
        comparison = comparer.result(describe_ranges([feeds]))
        log = self.logger.warning if comparison.is_bad else self.logger.info
        log("check: %s", comparison.describe().replace("beside float", "beside the original model"))
        return model


@register("layer_precision_compare", stage=Stage.CHECKS)
class LayerPrecisionCompare(ImmutablePass):
    """Compute a converted model and the one that it comes from on one batch, of the data given or
    random, and write how far each Conv, Gemm and MatMul has parted into
    output_dir/precision_compare.log: mean, std, min, max, skewness, kurtosis and a histogram of 32
    bins of its results in both and of the difference; mse, mae, snr (noise over signal) and cosine
    distance.

    `options` are the CompilerOptions that say how the chip rounds.
    """

    def __init__(
        self,
        origin_model: onnx.ModelProto | None = None,
        data_preprocess: Data | None = None,
        options: Any = None,
        output_dir: str | Path = "./",
    ) -> None:
        self._origin, self._data, self._folder = origin_model, data_preprocess, Path(output_dir)
        self._numerics = options.numerics().quiet() if options is not None else Numerics()

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Compare the layers. Raise CompileError without an original model, for data that do not
        fit, and for a model that cannot be computed."""
        if self._origin is None:
            raise CompileError("layer_precision_compare compares with origin_model; give it one")
        from poprt.comparing.divergence import iter_chunks
        from poprt.comparing.reading import iter_batches, make_up, read_samples
        from poprt.comparing.statistics import cos_dist, iter_comparison

        layers = _find_layers(self._origin, model)
        feeds = (
            make_up(model)
            if self._data is None
            else next(iter_batches(model, read_samples(self._data)))
        )
        values = graph_values(infer_shapes(model).graph)
        converted = _open("converted", copy.deepcopy(model), self._numerics)
        original = _open("original", copy.deepcopy(self._origin), None)
        lines: list[str] = []
        for names in iter_chunks(layers, values):
            ours = _compute("converted", converted, feeds, names)
            theirs = _compute("original", original, feeds, names)
            for name in names:
                title = f"{layers[name]} output {name!r}"
                distance = cos_dist(
                    *(np.asarray(results[name], np.float64).ravel() for results in (theirs, ours))
                )
                self.logger.info("%s: cosine distance %.3e", title, distance)
                lines += [title, *iter_comparison(theirs[name], ours[name])]
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / LOG_NAME).write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return model


def layer_precision_compare(
    origin_model_path: str | Path | onnx.ModelProto,
    converted_model: str | Path | onnx.ModelProto,
    data_preprocess: Data | None = None,
    output_dir: str | Path = "./",
) -> None:
    """Run the pass of that name, as scripts call it. It writes the differences of each layer to
    `output_dir`/precision_compare.log."""
    origin, converted = map(_load, (origin_model_path, converted_model))
    LayerPrecisionCompare(origin, data_preprocess, None, output_dir).run(converted)


def _load(model: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    if isinstance(model, onnx.ModelProto):
        return model
    from poprt.frontend.frontends import OnnxFrontend

    return OnnxFrontend(model).open_model()


def _find_layers(origin: onnx.ModelProto, converted: onnx.ModelProto) -> dict[str, str]:
    """Return the products of the original model whose results the converted one also has: their
    descriptions, by result."""
    results = {name for node in converted.graph.node for name in node.output}
    return {
        node.output[0]: f"{node.op_type} {node.name!r}"
        for node in origin.graph.node
        if find_operator(node.op_type).is_product and node.output[0] in results
    }


def _open(which: str, model: onnx.ModelProto, numerics: Numerics | None) -> Side:
    """Return a side with the model. Raise CompileError if it lacks the values of a weight."""
    from poprt.comparing.sides import Side

    empty = next((tensor.name for tensor in model.graph.initializer if not has_data(tensor)), None)
    if empty is not None:
        raise CompileError(f"the {which} model cannot be computed: weight {empty!r} has no data")
    return Side.of(RemoveInitializerFromInput().run(model), numerics)


def _compute(
    which: str, side: Side, feeds: Feeds, names: Sequence[str] | None = None
) -> dict[str, Array]:
    """Return tensors of a model (default: the outputs). Raise CompileError if the data lack an
    input."""
    from poprt.comparing.sides import FAILURES

    missing = next(
        (value.name for value in find_inputs(side.model.graph) if value.name not in feeds), None
    )
    if missing is not None:
        raise CompileError(
            f"the {which} model has an input {missing!r}, which the converted one has not"
        )
    try:
        return side.answer(feeds, names)
    except FAILURES as error:
        raise CompileError(f"the {which} model cannot be computed: {error}") from error
