"""Converter of models, under the real tool's names."""

from poprt.compile.converter import Converter
from poprt.compile.model_fusion import MFConverter
from poprt.passes.lowering.placed import Sharder

__all__ = ["Converter", "MFConverter", "Sharder"]
