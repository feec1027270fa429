"""PopEF, Graphcore's exchange format for compiled models: reader, writer, model. Standard library and numpy only."""

from popef.dtypes import numpyDTypeToPopefType, popefTypeToNumpyDType
from popef.enums import BlobType, DataType, TensorType
from popef.errors import FormatError, LimitError, Limits, PopefError, UnsupportedError
from popef.model import Model, ModelBuilder
from popef.reader import ExecutableReader, FeedReader, OpaqueReader, Reader, TensorReader
from popef.types import (
    Anchor,
    FeedDataInfo,
    Metadata,
    Option,
    ProgramFlow,
    TensorDataInfo,
    TensorInfo,
)
from popef.writer import BlobWriter, Writer

__all__ = [
    "Anchor",
    "BlobType",
    "BlobWriter",
    "DataType",
    "ExecutableReader",
    "FeedDataInfo",
    "FeedReader",
    "FormatError",
    "LimitError",
    "Limits",
    "Metadata",
    "Model",
    "ModelBuilder",
    "OpaqueReader",
    "Option",
    "PopefError",
    "ProgramFlow",
    "Reader",
    "TensorDataInfo",
    "TensorInfo",
    "TensorReader",
    "TensorType",
    "UnsupportedError",
    "Writer",
    "numpyDTypeToPopefType",
    "popefTypeToNumpyDType",
]
