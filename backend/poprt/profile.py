"""FLOPs of models and nodes, under the real tool's name: see `poprt.performance.flops`."""

from poprt.performance.flops import Profiler, get_model_flops

__all__ = ["Profiler", "get_model_flops"]
