"""The public names of `popef`; the package imports the module of a name on its first use."""

from .anchors import INDEX as INDEX
from .anchors import FusedModel as FusedModel
from .anchors import fused_models as fused_models
from .anchors import member_name as member_name
from .anchors import replica_shape as replica_shape
from .anchors import user_anchors as user_anchors
from .enums import BlobType as BlobType
from .enums import DataType as DataType
from .enums import TensorType as TensorType
from .enums import numpyDTypeToPopefType as numpyDTypeToPopefType
from .enums import popefTypeToNumpyDType as popefTypeToNumpyDType
from .errors import FormatError as FormatError
from .errors import LimitError as LimitError
from .errors import Limits as Limits
from .errors import PopefError as PopefError
from .errors import Rule as Rule
from .errors import Severity as Severity
from .errors import UnsupportedError as UnsupportedError
from .model import ROWS_BLOB as ROWS_BLOB
from .model import Model as Model
from .model import ModelBuilder as ModelBuilder
from .model import RowFacts as RowFacts
from .model import batch_size as batch_size
from .model import read_rows as read_rows
from .reader import ExecutableReader as ExecutableReader
from .reader import FeedReader as FeedReader
from .reader import OpaqueReader as OpaqueReader
from .reader import Reader as Reader
from .reader import TensorReader as TensorReader
from .scan import Blob as Blob
from .types import Anchor as Anchor
from .types import BlobHeader as BlobHeader
from .types import FeedDataInfo as FeedDataInfo
from .types import Metadata as Metadata
from .types import Option as Option
from .types import ProgramFlow as ProgramFlow
from .types import TensorDataInfo as TensorDataInfo
from .types import TensorInfo as TensorInfo
from .writer import BlobWriter as BlobWriter
from .writer import FileWriter as FileWriter
from .writer import MultiFeedWriter as MultiFeedWriter
from .writer import Writer as Writer

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
