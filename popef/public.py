"""The public names of `popef`, imported on first use of one of them."""

from .anchors import INDEX, FusedModel, fused_models, member_name, replica_shape, user_anchors
from .enums import BlobType, DataType, TensorType, numpyDTypeToPopefType, popefTypeToNumpyDType
from .errors import FormatError, LimitError, Limits, PopefError, Rule, Severity, UnsupportedError
from .model import ROWS_BLOB, Model, ModelBuilder, RowFacts, batch_size, read_rows
from .reader import ExecutableReader, FeedReader, OpaqueReader, Reader, TensorReader
from .scan import Blob
from .types import (
    Anchor,
    BlobHeader,
    FeedDataInfo,
    Metadata,
    Option,
    ProgramFlow,
    TensorDataInfo,
    TensorInfo,
)
from .writer import BlobWriter, FileWriter, MultiFeedWriter, Writer

__all__ = [
    "INDEX",
    "ROWS_BLOB",
    "Anchor",
    "Blob",
    "BlobHeader",
    "BlobType",
    "BlobWriter",
    "DataType",
    "ExecutableReader",
    "FeedDataInfo",
    "FeedReader",
    "FileWriter",
    "FormatError",
    "FusedModel",
    "LimitError",
    "Limits",
    "Metadata",
    "Model",
    "ModelBuilder",
    "MultiFeedWriter",
    "OpaqueReader",
    "Option",
    "PopefError",
    "ProgramFlow",
    "Reader",
    "RowFacts",
    "Rule",
    "Severity",
    "TensorDataInfo",
    "TensorInfo",
    "TensorReader",
    "TensorType",
    "UnsupportedError",
    "Writer",
    "batch_size",
    "fused_models",
    "member_name",
    "numpyDTypeToPopefType",
    "popefTypeToNumpyDType",
    "read_rows",
    "replica_shape",
    "user_anchors",
]
