"""Configuration: IPUConfig, TF_POPLAR_FLAGS, and the devices that they make.

The table of attributes and that of flags are read without TensorFlow.
"""

from popef._tools.lazy import make_lazy

__getattr__, __dir__ = make_lazy(__name__)
