"""Read and write PopEF, the files in which compiled IPU models travel; FORMAT.md describes every byte.

The names are those of the real `popef` package, so programs written for it run against this one.
"""

from .anchors import batch_size, replica_shape, user_anchors
from .dtypes import numpyDTypeToPopefType, popefTypeToNumpyDType
from .enums import BlobType, DataType, TensorType
from .errors import FormatError, LimitError, Limits, PopefError, UnsupportedError
from .model import Model, ModelBuilder
from .reader import ExecutableReader, FeedReader, OpaqueReader, Reader, TensorReader
from .scan import Blob
from .types import Anchor, FeedDataInfo, Metadata, Option, ProgramFlow, TensorDataInfo, TensorInfo
from .writer import BlobWriter, FileWriter, Writer

__all__ = [
    "Anchor",
    "Blob",
    "BlobType",
    "BlobWriter",
    "DataType",
    "ExecutableReader",
    "FeedDataInfo",
    "FeedReader",
    "FileWriter",
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
    "batch_size",
    "numpyDTypeToPopefType",
    "popefTypeToNumpyDType",
    "replica_shape",
    "user_anchors",
]
