"""Shape inference and shape functions, under the real tool's names."""

from poprt.passes.shapes.inference import ShapeFunc, infer_shapes, register_shape_func

__all__ = [
    "ShapeFunc",
    "infer_shapes",
    "register_shape_func",
]
