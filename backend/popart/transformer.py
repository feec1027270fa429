"""`popart.GraphTransformer`: changes types of a model's tensors, and weights into constants."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxgraph
from onnx import TensorProto, helper, numpy_helper

from popart.errors import popart_exception
from popart.models import (
    check_model,
    read_model,
    save_initializers_externally,
    serialize_model,
)
from popart.tensorinfo import from_onnx_type, is_fixed_point

_BATCH_NORMALIZATION_OUTPUTS = 5
_numbers = count()
_TYPED_FIELDS: Mapping[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.INT32: "int32_data",
}
_DATA_FIELDS = (
    "raw_data",
    "float_data",
    "double_data",
    "int32_data",
    "int64_data",
    "uint64_data",
    "string_data",
)
"""Fields of a tensor that hold its values."""
Array = npt.NDArray[Any]
Convert = Callable[[Array], Array]


class GraphTransformer:
    """Changes of an ONNX model.

    Args:
        modelProtoOrFilename: Bytes of a ModelProto, or a path.

    Example:
        >>> import popart
        >>> transformer = popart.GraphTransformer("model.onnx")
        >>> transformer.convertFloatsToHalfs()
        >>> model = transformer.getModelProto()
    """

    def __init__(self, modelProtoOrFilename: bytes | str | os.PathLike[str]) -> None:
        self._model = read_model(modelProtoOrFilename)
        check_model(self._model)

    def getModelProto(self) -> bytes:
        """Return the bytes of the ModelProto."""
        return serialize_model(self._model)

    def convertFloatsToHalfs(self) -> None:
        """Convert all float tensors to half."""
        self._convert(TensorProto.FLOAT, TensorProto.FLOAT16)

    def convertDoublesToFloats(self) -> None:
        """Convert all double tensors to float."""
        self._convert(TensorProto.DOUBLE, TensorProto.FLOAT)

    def convertDoublesToHalfs(self) -> None:
        """Convert all double tensors to half."""
        self._convert(TensorProto.DOUBLE, TensorProto.FLOAT16)

    def convertBFloats16ToFloat32(self) -> None:
        """Convert all bfloat16 tensors to float."""
        self._convert(TensorProto.BFLOAT16, TensorProto.FLOAT)

    def convertUINT8ToINT32(self) -> None:
        """Convert all UINT8 tensors to INT32."""
        self._convert(TensorProto.UINT8, TensorProto.INT32)

    def convertUINT16ToINT32(self) -> None:
        """Convert all UINT16 tensors to INT32."""
        self._convert(TensorProto.UINT16, TensorProto.INT32)

    def convertINT8ToINT32(self) -> None:
        """Convert all INT8 tensors to INT32."""
        self._convert(TensorProto.INT8, TensorProto.INT32)

    def convertINT16ToINT32(self) -> None:
        """Convert all INT16 tensors to INT32."""
        self._convert(TensorProto.INT16, TensorProto.INT32)

    def convertINT64ToINT32(self, clip: bool = False) -> None:
        """Convert all INT64 tensors to INT32.

        Args:
            clip: Whether to clip values that INT32 does not have.

        Raises:
            popart_exception: If there are such values and `clip` is False.
        """
        limits = np.iinfo(np.int32)

        def prepare(values: Array) -> Array:
            inside: Array = np.clip(values, limits.min, limits.max)
            if not clip and not np.array_equal(inside, values):
                raise popart_exception(
                    "In convertINT64TensorToINT32, cannot cast int64 to int32: number is too "
                    "large. If you are sure you want still want to convert your tensor data, you "
                    "can set 'clip' to 'true'."
                )
            return inside

        self._convert(TensorProto.INT64, TensorProto.INT32, prepare)

    def removeUnusedInputs(self) -> None:
        """Remove inputs, and their weights, that no node reads."""
        graph = self._model.graph
        read = {name for node in graph.node for name in onnxgraph.iter_reads(node)}
        onnxgraph.replace_inputs(graph, [value for value in graph.input if value.name in read])
        onnxgraph.drop_weights(graph, read)

    def prepareNodesForTraining(self) -> None:
        """Give each BatchNormalization its five outputs."""
        for node in self._model.graph.node:
            if node.op_type == "BatchNormalization":
                for index in range(len(node.output), _BATCH_NORMALIZATION_OUTPUTS):
                    node.output.append(f"{node.op_type}_{node.name}_oi{index}_{next(_numbers)}")

    def convertInitializersToConstants(self, ids: Collection[str]) -> None:
        """Turn initializers into Constant nodes; they are inputs no longer.

        Args:
            ids: Ids of initializers.

        Raises:
            popart_exception: If one is none.
        """
        graph = self._model.graph
        initializers = {tensor.name: tensor for tensor in graph.initializer}
        for name in ids:
            if name not in initializers:
                raise popart_exception(f"TensorId {name} not in the model initalizers")
        nodes = [
            helper.make_node("Constant", [], [name], name, value=initializers[name]) for name in ids
        ]
        nodes += graph.node
        onnxgraph.replace_nodes(graph, nodes)
        gone = set(ids)
        onnxgraph.replace_inputs(graph, [value for value in graph.input if value.name not in gone])
        onnxgraph.drop_initializers(graph, gone)

    def convertAllFixedPointInitializersToConstants(self) -> None:
        """Turn all initializers of ints and booleans into Constant nodes."""
        self.convertInitializersToConstants(
            [
                tensor.name
                for tensor in self._model.graph.initializer
                if is_fixed_point(from_onnx_type(tensor.data_type))
            ]
        )

    def saveInitializersExternally(
        self, ids: Sequence[str], filename: str | os.PathLike[str]
    ) -> None:
        """Write initializers to a file that the model then refers to.

        Args:
            ids: Ids of initializers.
            filename: The file.

        Raises:
            popart_exception: If the folder does not exist, or an id is no initializer with data.
        """
        save_initializers_externally(self._model, ids, filename)

    def _convert(self, given: int, wanted: int, prepare: Convert | None = None) -> None:
        """Change the type of all tensors of one type: constants, weights, and declared values."""
        graph = self._model.graph
        for tensor in (*graph.initializer, *_iter_attribute_tensors(graph)):
            if tensor.data_type == given:
                _convert_tensor(tensor, wanted, prepare)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == given:
                value.type.tensor_type.elem_type = wanted


def _iter_attribute_tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs:
                raise popart_exception(
                    f"Attributes of type GRAPH and GRAPHS are not converted: node {node.name!r} "
                    f"({node.op_type}) has the subgraph {attribute.name!r}. Convert the tensors "
                    "before the subgraph is made"
                )
            if attribute.HasField("t"):
                yield attribute.t


def _convert_tensor(tensor: TensorProto, wanted: int, prepare: Convert | None) -> None:
    if tensor.data_location == TensorProto.EXTERNAL:
        raise popart_exception(
            f"Tensor '{tensor.name}' has its data in a file, and cannot be converted. Convert the "
            "tensors before they are saved externally"
        )
    values = numpy_helper.to_array(tensor)
    values = values if prepare is None else prepare(values)
    dtype = helper.tensor_dtype_to_np_dtype(wanted)
    with np.errstate(over="ignore"):  # infinite, as on the chip
        values = values.astype(dtype)
    for field in _DATA_FIELDS:
        tensor.ClearField(field)
    tensor.data_type = wanted
    # PopART keeps half as bytes, and the other types in the fields that the standard names.
    if wanted == TensorProto.FLOAT16:
        tensor.raw_data = values.tobytes()
    else:
        getattr(tensor, _TYPED_FIELDS[wanted]).extend(values.ravel().tolist())
