"""PopEF files of a session, in PopART's layout.

Handles are `h2d_ID` and `anchor_d2h_ID`; the load program is 0 and the main program 5. Shapes are
those of one micro-batch; with several replicas these are in front. `deviceIterations` is the number
of batches of a step. Source: graphcore/popart, willow/src/popx/popefserializerimpl.cpp.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from poprt.compile import LOAD_PROGRAM, MAIN_PROGRAM, Executable
from simipu import CompileError, Direction, Program, ProgramKind, SimulatedExecutable

import popef
from popart.devices import DeviceInfo
from popart.errors import popart_exception
from popart.options.session_options import SessionOptions
from popart.session.compilation import changed_texts
from popart.session.ir import Ir
from popart.session.weights import HostWeights
from popef._tools.arrays import Array
from popef._tools.staging import Staging

_BLOB: Final = "popart"
"""Name of the opaque blob with facts about the session."""
_EXECUTABLE_FILE, _VARIABLES_FILE = "executable.popef", "variables.popef"
PROGRAMS: Final = {
    0: "WeightsFromHost",
    1: "OptimizerFromHost",
    2: "RandomSeedFromHost",
    3: "RandomSeedToHost",
    4: "RngStateFromHost",
    5: "Program",
    6: "RngStateToHost",
    7: "WeightsToHost",
    8: "CycleCountTensorToHost",
    9: "CustomProgramsStart",
}
"""PopART's programs by number."""
SAVE_PROGRAM: Final = 7


@dataclass(frozen=True, slots=True)
class Exported:
    """A session, as far as a file holds it."""

    executable: Executable
    options: SessionOptions
    device: DeviceInfo
    batches_per_step: int
    replicas: int
    weights: Mapping[str, Array]
    """Values of the streamed weights."""

    @classmethod
    def of(cls, ir: Ir, weights: HostWeights) -> Exported:
        """Return what a file holds of a model with the host's weights."""
        executable = ir.get_confirmed_executable()
        values = weights.device_values(executable.weights)
        return cls(executable, ir.options, ir.device, ir.batches, ir.replicas, values)


def check_can_save(ir: Ir) -> None:
    """Check that a file can hold a session.

    Args:
        ir: The session's model.

    Raises:
        popart_exception: If the device's executables cannot be saved, runs update weights, or
            replicas depend on each other.
    """
    _check_replicas(ir)
    updated = ir.updated_weight
    if updated:
        raise popart_exception(
            f"Weight '{updated}' is updated by runs (CopyVarUpdate), which a file cannot say; "
            "such sessions cannot be saved"
        )
    if not ir.device.canCompileOffline:
        raise popart_exception(f"Executables for device type {ir.device.type} cannot be saved")


def _check_replicas(ir: Ir) -> None:
    if ir.joined is not None:
        raise popart_exception(
            "The replicas depend on each other, by a collective or by weights of their own. A "
            "PopEF file here holds the program of one replica, so such sessions are neither saved "
            "nor loaded"
        )


def save_executable(
    exported: Exported, path: str | os.PathLike[str], with_facts: bool, with_weights: bool
) -> None:
    """Write the executable, and its streamed weights.

    Args:
        exported: The session.
        path: Path of the file, or of a folder.
        with_facts: Whether to write the blob with facts about the session.
        with_weights: Whether to write streamed weights.

    Raises:
        popart_exception: If the file cannot be written.
    """
    executable = _make_executable(exported, with_facts, with_weights)
    _write(executable, _find_file(path, _EXECUTABLE_FILE))


def save_variables(exported: Exported, path: str | os.PathLike[str]) -> None:
    """Write the streamed weights only.

    Args:
        exported: The session.
        path: Path of the file, or of a folder.

    Raises:
        popart_exception: If the file cannot be written.
    """
    executable = _make_executable(exported, with_facts=False, with_weights=True)
    file = _find_file(path, _VARIABLES_FILE)
    try:
        with Staging() as staging, popef.Writer(staging.open(file)) as writer:
            executable.write_weights(writer)
    except OSError as error:
        raise _not_written(file, error) from error


def load_executable(path: str | os.PathLike[str], ir: Ir) -> None:
    """Let a session use the executable of a file.

    Args:
        path: Path of a file that a session wrote.
        ir: The session's model, whose executable is replaced.

    Raises:
        popart_exception: If the file cannot be read, or its streams are not those of the model.
    """
    _check_replicas(ir)
    if not Path(path).is_file():
        raise popart_exception(f"Could not open file {os.fspath(path)}")
    try:
        executable = Executable(Path(path))
    except CompileError as error:
        raise popart_exception(str(error)) from error
    streams = {stream.tensor for stream in executable.executable.program(MAIN_PROGRAM).streams}
    anchors = ir.flow.anchors()
    expected = [*(value.name for value in ir.lowered.model.graph.input), *anchors]
    if not set(anchors) <= streams or not streams <= set(expected):
        raise popart_exception(
            f"{os.fspath(path)} holds the executable of another model: its tensors are "
            f"{', '.join(sorted(streams))}; expected {', '.join(expected)}"
        )
    ir.compiled = dataclasses.replace(ir.compiled, executable=executable, out_of_memory=None)
    ir.is_loaded = True


def _make_executable(exported: Exported, with_facts: bool, with_weights: bool) -> Executable:
    """Return the executable with PopART's metadata and programs."""
    compiled = exported.executable
    blobs = dict(compiled.opaque_blobs)
    if with_facts:
        blobs[_BLOB] = json.dumps(
            {
                "batchesPerStep": exported.batches_per_step,
                "replicatedGraphCount": exported.replicas,
                "options": changed_texts(exported.options),
            },
            sort_keys=True,
        ).encode()
    weights = {name: value for name, value in exported.weights.items() if name in compiled.weights}
    executable = Executable.of(
        _add_save_program(compiled.executable),
        _make_metadata(exported),
        {**compiled.weights, **weights} if with_weights else {},
        blobs,
        compiled.findings,
    )
    executable.loads = compiled.loads
    return executable


def _add_save_program(executable: SimulatedExecutable) -> SimulatedExecutable:
    """Return the executable with the program that copies the streamed weights to the host."""
    streams = tuple(
        dataclasses.replace(stream, handle=_d2h(stream.tensor), direction=Direction.DEVICE_TO_HOST)
        for stream in executable.program(LOAD_PROGRAM).streams
    )
    if not streams or any(program.index == SAVE_PROGRAM for program in executable.programs):
        return executable
    save = Program(SAVE_PROGRAM, PROGRAMS[SAVE_PROGRAM], ProgramKind.SAVE, streams)
    return dataclasses.replace(executable, programs=(*executable.programs, save))


def _d2h(weight: str) -> str:
    return f"weight_d2h_{weight}"


def _make_metadata(exported: Exported) -> popef.Metadata:
    metadata = exported.executable.metadata
    replicas = exported.replicas
    return popef.Metadata(
        replicationFactor=replicas,
        numIpus=metadata.numIpus() * replicas,
        seedHandle=metadata.seedHandle(),
        anchors=[
            *(_place(anchor, replicas) for anchor in metadata.anchors()),
            *(_save(anchor) for anchor in metadata.anchors() if LOAD_PROGRAM in anchor.programs()),
        ],
        executable=metadata.executable(),
        numProcesses=1,
        ipuVersion=metadata.ipuVersion(),
        isPOD=False,
        isInference=True,
        engineOptions=metadata.engineOptions(),
        deviceOptions=[
            popef.Option(name=name, value=value)
            for name, value in sorted(exported.device.options.items())
        ],
        programFlow=metadata.programFlow(),
        programsMap=PROGRAMS,
        deviceIterations=exported.batches_per_step,
    )


def _place(anchor: popef.Anchor, replicas: int) -> popef.Anchor:
    """Return a user's anchor with the replicas in front; weights are the same on all of them."""
    per_replica = replicas > 1 and MAIN_PROGRAM in anchor.programs()
    info = anchor.tensorInfo()
    shape = [replicas, *info.shape()] if per_replica else list(info.shape())
    return popef.Anchor(
        name=anchor.name(),
        handle=anchor.handle(),
        tensorInfo=popef.TensorInfo(shape=shape, dataType=info.dataType()),
        type=anchor.type(),
        isPerReplica=per_replica,
        programs=list(anchor.programs()),
    )


def _save(anchor: popef.Anchor) -> popef.Anchor:
    """Return the anchor that a weight is copied to the host by."""
    return popef.Anchor(
        name=anchor.name(),
        handle=_d2h(anchor.name()),
        tensorInfo=anchor.tensorInfo(),
        type=popef.TensorType.OUTPUT,
        isPerReplica=False,
        programs=[SAVE_PROGRAM],
    )


def _find_file(path: str | os.PathLike[str], name: str) -> Path:
    """Return the file to write; its folders are made."""
    file = Path(path).expanduser()
    file = file / name if file.is_dir() else file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(file, error) from error
    return file


def _write(made: Executable, file: Path) -> None:
    try:
        with Staging() as staging:
            made.export(staging.open(file))
    except OSError as error:
        raise _not_written(file, error) from error


def _not_written(file: Path, error: OSError) -> popart_exception:
    return popart_exception(f"Unable to write to {file}: {error.strerror}")
