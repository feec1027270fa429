"""Triton model folders of compiled models: configuration, versions and locks."""

from poprt.triton.config import ModelConfig, encode_config, new_config, read_config
from poprt.triton.model_folder import make_scratch_folder

__all__ = [
    "ModelConfig",
    "encode_config",
    "make_scratch_folder",
    "new_config",
    "read_config",
]
