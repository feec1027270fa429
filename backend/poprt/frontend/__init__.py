"""Front ends: they open source models and check them."""

from poprt.frontend.frontends import Frontend, Model, OnnxFrontend, get_frontend, read_model
from poprt.frontend.tensorflow_frontend import TensorflowFrontend

__all__ = [
    "Frontend",
    "Model",
    "OnnxFrontend",
    "TensorflowFrontend",
    "get_frontend",
    "read_model",
]
