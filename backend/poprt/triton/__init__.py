"""Triton model folders of compiled models: configuration, versions and locks."""

from poprt.triton.config import read_config
from poprt.triton.model_folder import make_scratch_folder

__all__ = [
    "make_scratch_folder",
    "read_config",
]
