"""PopEF metadata of an executable: its anchors, programs and target."""

from __future__ import annotations

from typing import Any

import numpy as np
import simipu
from simipu import Direction

import popef
from poprt.compile.programs import LOAD_PROGRAM, MAIN_PROGRAM
from poprt.options import CompilerOptions


def make_metadata(
    executable: simipu.SimulatedExecutable, options: CompilerOptions
) -> popef.Metadata:
    """Return the metadata of an executable of one replica with a LOAD and a MAIN program."""
    anchors = [
        popef.Anchor(
            name=stream.tensor,
            handle=stream.handle,
            tensorInfo=tensor_info(stream.shape, stream.dtype),
            type=popef.TensorType.INPUT
            if stream.direction is Direction.HOST_TO_DEVICE
            else popef.TensorType.OUTPUT,
            isPerReplica=False,
            programs=[program.index],
        )
        for program in executable.programs
        for stream in program.streams
    ]
    return popef.Metadata(
        replicationFactor=1,
        numIpus=executable.target.num_ipus,
        seedHandle="",
        anchors=anchors,
        executable=executable.name,
        numProcesses=1,
        ipuVersion=executable.target.ipu_version,
        isPOD=False,
        isInference=True,
        engineOptions=[
            popef.Option(name=name, value=value)
            for name, value in sorted(options.engine_options.items())
        ],
        deviceOptions=[],
        programFlow=popef.ProgramFlow(load=[LOAD_PROGRAM], main=[MAIN_PROGRAM], save=[]),
        programsMap={program.index: program.name for program in executable.programs},
        deviceIterations=options.batches_per_step,
    )


def tensor_info(shape: tuple[int, ...], dtype: np.dtype[Any]) -> popef.TensorInfo:
    """Return PopEF's description of an array."""
    return popef.TensorInfo(shape=shape, dataType=popef.numpyDTypeToPopefType(dtype))
