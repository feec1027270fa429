"""Public names of `simipu`, which the package imports when one of them is first used.

Rooms import devices, executables, graphs and errors from `simipu`, and the rest from the faces
`simipu.operators`, `simipu.rows`, `simipu.cost`, `simipu.numerics` and `simipu.kernels`. Modules
that must not import ONNX Runtime use `simipu.accelerators`, `errors`, `target`, `placement`,
`forks` and `version`.
"""

from typing import TYPE_CHECKING

from simipu.accelerators import ACCELERATORS as ACCELERATORS
from simipu.accelerators import ChosenAccelerator as ChosenAccelerator
from simipu.accelerators import choose_accelerator as choose_accelerator
from simipu.accelerators import describe_engines as describe_engines
from simipu.chip.target import DEFAULT_CHIP as DEFAULT_CHIP
from simipu.chip.target import MAX_IPUS as MAX_IPUS
from simipu.chip.target import MAX_TILES_PER_IPU as MAX_TILES_PER_IPU
from simipu.chip.target import TARGETS as TARGETS
from simipu.chip.target import Target as Target
from simipu.chip.target import find_target as find_target
from simipu.chip.target import known_chips as known_chips
from simipu.demand import count_all_operations as count_all_operations
from simipu.demand import measure as measure
from simipu.engine import Engine as Engine
from simipu.engine import ReadCallback as ReadCallback
from simipu.engine import WriteCallback as WriteCallback
from simipu.engine import iteration_timing as iteration_timing
from simipu.engine import latency_of_call as latency_of_call
from simipu.engines.admission import find_fault as find_fault
from simipu.engines.computed import ORT_ERRORS as ORT_ERRORS
from simipu.engines.computed import OWN_BYTES as OWN_BYTES
from simipu.engines.computed import GraphOptions as GraphOptions
from simipu.engines.computed import Lowered as Lowered
from simipu.engines.computed import inline_weights as inline_weights
from simipu.engines.computed import make_graph as make_graph
from simipu.engines.isolation import Trial as Trial
from simipu.engines.isolation import try_in_child as try_in_child
from simipu.engines.libraries import OperatorLibrary as OperatorLibrary
from simipu.engines.libraries import is_library_domain as is_library_domain
from simipu.engines.libraries import registered_libraries as registered_libraries
from simipu.engines.library_operators import register_library as register_library
from simipu.engines.opening import open_graph as open_graph
from simipu.engines.opening import open_lowered as open_lowered
from simipu.engines.program_graphs import lower_model as lower_model
from simipu.engines.program_graphs import lower_program as lower_program
from simipu.engines.program_graphs import read_graph as read_graph
from simipu.engines.program_graphs import read_static as read_static
from simipu.errors import AcceleratorError as AcceleratorError
from simipu.errors import CompileError as CompileError
from simipu.errors import CompileMemoryError as CompileMemoryError
from simipu.errors import CompileTimeoutError as CompileTimeoutError
from simipu.errors import DeviceLostError as DeviceLostError
from simipu.errors import ForeignExecutableError as ForeignExecutableError
from simipu.errors import LoadError as LoadError
from simipu.errors import LoadLostError as LoadLostError
from simipu.errors import LoadMemoryError as LoadMemoryError
from simipu.errors import LoadTimeoutError as LoadTimeoutError
from simipu.errors import OutOfMemoryError as OutOfMemoryError
from simipu.errors import RunCancelledError as RunCancelledError
from simipu.errors import RunError as RunError
from simipu.errors import RunMemoryError as RunMemoryError
from simipu.errors import RunTimeoutError as RunTimeoutError
from simipu.errors import SimIpuError as SimIpuError
from simipu.executable import Constant as Constant
from simipu.executable import Device as Device
from simipu.executable import Program as Program
from simipu.executable import ProgramKind as ProgramKind
from simipu.executable import SimulatedExecutable as SimulatedExecutable
from simipu.fixing import fix_inputs as fix_inputs
from simipu.known_files import KNOWN_FILES as KNOWN_FILES
from simipu.known_files import FileLoad as FileLoad
from simipu.known_files import LoadedFiles as LoadedFiles
from simipu.known_files import LoadLimits as LoadLimits
from simipu.numerics.indices import needs_guards as needs_guards
from simipu.numerics.options import Numerics as Numerics
from simipu.processes.forks import FORKS as FORKS
from simipu.processes.watchdog import WATCHDOG as WATCHDOG
from simipu.streams import Direction as Direction
from simipu.streams import Stream as Stream
from simipu.version import package_hash as package_hash

if not TYPE_CHECKING:
    __all__ = [name for name in dir() if not name.startswith("_") and name != "TYPE_CHECKING"]
