"""Blocks: the place of a model's parts on IPUs.

They change no results. While `forward` is captured, a Recorder notes which stage, phase and
IPU each begun block has; from it come the number of IPUs and of pipeline stages. Outside a capture
blocks do nothing.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import torch
import torch.fx.traceback

from poptorch._logging import logger
from poptorch.errors import Error
from poptorch.operators import scopes
from poptorch.options.strategies import ExecutionStrategy, Stage

MARK: Final = "poptorch_place"
"""Key of an operator's place among the notes of torch.export."""
MAX_IPUS: Final = 64
"""IPUs of the simulated machine: a Pod64."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Place of what runs within a block."""

    stage: int
    phase: int
    ipu: int


START: Final = Placement(0, 0, 0)
"""Place of what runs before any block."""


class BlockRecorder:
    """Places of the blocks that one run of `forward` begins, in order."""

    def __init__(self, strategy: ExecutionStrategy) -> None:
        self._strategy = strategy
        self.clear()

    def clear(self) -> None:
        """Begin again, with no blocks."""
        self._begun: dict[str, Stage] = {}
        self._auto_ids = 0
        self.current: Placement | None = START
        """Place of the operators that run now; None between two blocks."""
        self.used: list[Placement] = []
        """Places at which operators ran, in order; repeated ones only if another is between."""

    def reset_auto_id(self) -> None:
        """Number blocks without an id from 0 again."""
        self._auto_ids = 0

    def begin(self, user_id: str | int | None, ipu_id: int | None) -> None:
        """Begin a block."""
        if user_id is None:
            user_id = str(self._auto_ids)
            self._auto_ids += 1
        stage = self._strategy.find_stage(str(user_id), ipu_id, self._begun)
        ipu = stage.ipu_id if stage.ipu_id is not None else ipu_id
        if ipu is None:
            logger.debug(
                "No IPU specified for block %s: default to stage_id %d", user_id, stage.stage_id
            )
            ipu = max(stage.stage_id, 0)
        logger.debug(
            "Starting block id=%s stage=%d phase=%d ipu=%d",
            user_id,
            stage.stage_id,
            stage.phase_id,
            ipu,
        )
        self.current = Placement(stage.stage_id, stage.phase_id, ipu)

    def end(self) -> None:
        """End the block that began last."""
        self.current = None

    def note_operator(self) -> None:
        """Note that an operator ran.

        Raises:
            Error: If blocks are used and none is active.
        """
        if self.current is None:
            raise Error("No active Block, all the ops must belong to a Block")
        if not self.used or self.used[-1] != self.current:
            self.used.append(self.current)

    @property
    def mode(self) -> str:
        """Name of the strategy in log lines, as "Pipelined"."""
        return type(self._strategy).__name__.removesuffix("Execution")

    @property
    def num_ipus(self) -> int:
        """Number of IPUs that one replica uses."""
        return max((place.ipu for place in self.used), default=0) + 1

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages: the changes of IPU along the forward pass, and 1."""
        ipus = [place.ipu for place in self.used]
        return 1 + sum(first != second for first, second in itertools.pairwise(ipus))


_recorder: BlockRecorder | None = None


@contextmanager
def record(strategy: ExecutionStrategy) -> Iterator[BlockRecorder]:
    """Record the blocks that begin within.

    Args:
        strategy: Strategy that gives blocks their stages.

    Yields:
        The recorder.
    """
    global _recorder
    outer, _recorder = _recorder, BlockRecorder(strategy)
    try:
        yield _recorder
    finally:
        _recorder = outer


def note_operator() -> None:
    """Note that an operator ran, if blocks are being recorded; raise Error if none is active."""
    if _recorder is not None:
        _recorder.note_operator()


def mark_operator() -> AbstractContextManager[Any]:
    """Return a context in which torch.export marks operators with the active place and scope."""
    mark: dict[str, Any] = {scopes.MARK: scopes.current()}
    if _recorder is not None and _recorder.current is not None:
        place = _recorder.current
        mark[MARK] = (place.stage, place.phase, place.ipu)
    return torch.fx.traceback.annotate(mark)  # type: ignore[no-any-return] # torch may be absent


def log_tensor(name: str, place: Placement) -> None:
    """Log the place of the operator that makes a tensor."""
    if _recorder is not None:
        mode = _recorder.mode
        logger.debug(
            "tensor %s mode(%s), ipu(%d), stage(%d)", name, mode, place.ipu, max(place.stage, 0)
        )


def restart() -> None:
    """Forget what an earlier run of `forward` in the same capture has recorded."""
    if _recorder is not None:
        _recorder.clear()


def count_ipus(ipus_per_replica: int, replicas: int, round_up: bool) -> int:
    """Return the number of IPUs of a device for a model.

    Args:
        ipus_per_replica: IPUs that one replica uses.
        replicas: Number of replicas.
        round_up: Whether to reserve more IPUs where a device has no such number.

    Returns:
        A power of two, at most MAX_IPUS.

    Raises:
        Error: If no device has so many IPUs.
    """
    num_ipus = ipus_per_replica * replicas
    if num_ipus > MAX_IPUS:
        raise Error(f"Too many IPUs requested ({num_ipus}). The machine has {MAX_IPUS} IPUs.")
    reserved = 1 << (num_ipus - 1).bit_length()
    if reserved != num_ipus and not round_up:
        raise Error(
            f"The model specifies the use of {num_ipus} IPUs, however PopTorch must reserve a "
            f"minimum of {reserved} in order to allow the model to run, because PopTorch must "
            "reserve a power of 2 or maximum of 64 IPUs per process. Please reconfigure your "
            "model to use a different number of IPUs or set "
            "poptorch.Options().autoRoundNumIPUs(True)."
        )
    return reserved


class Block:
    """Context manager: what runs within belongs to the block.

    Args:
        user_id: Id by which a strategy names the block; by default a number.
        ipu_id: IPU that runs the block.
    """

    def __init__(self, user_id: str | int | None = None, ipu_id: int | None = None) -> None:
        self._user_id = user_id
        self._ipu_id = ipu_id

    @staticmethod
    def useAutoId() -> None:
        """Number the blocks without an id from 0 again."""
        if _recorder is not None:
            _recorder.reset_auto_id()

    @staticmethod
    def start(user_id: str | int | None = None, ipu_id: int | None = None) -> None:
        """Begin a block that lasts until another begins."""
        if _recorder is not None:
            _recorder.begin(user_id, ipu_id)

    def __enter__(self) -> Block:
        self.start(self._user_id, self._ipu_id)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if _recorder is not None:
            _recorder.end()


class BlockHook:
    """Hook of a module's forward that begins a block."""

    def __init__(self, user_id: str | int | None, ipu_id: int | None) -> None:
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __call__(self, *_: Any) -> None:
        Block.start(self._user_id, self._ipu_id)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


class BlockCallable:
    """A function whose call begins a block."""

    def __init__(self, function: Any, user_id: str | int | None, ipu_id: int | None) -> None:
        self._function = function
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        Block.start(self._user_id, self._ipu_id)
        return self._function(*args, **kwargs)


def _find_hooks(module: Any) -> list[tuple[int, BlockHook]]:
    hooks = module._forward_pre_hooks.items()  # noqa: SLF001 # torch has no other way
    return [(key, hook) for key, hook in hooks if isinstance(hook, BlockHook)]


def BeginBlock(
    layer_to_call: Any, user_id: str | int | None = None, ipu_id: int | None = None
) -> Any:
    """Let a module begin a block each time it is called.

    Args:
        layer_to_call: The module, or a function.
        user_id: Id by which a strategy names the block; by default a number.
        ipu_id: IPU that runs the block.

    Returns:
        The module itself; for a function, another one that begins the block and calls it.

    Raises:
        Error: If the module has a block already, or is not callable.
    """
    if not isinstance(layer_to_call, torch.nn.Module):
        if callable(layer_to_call):
            return BlockCallable(layer_to_call, user_id, ipu_id)
        raise Error("module is not an instance of torch.nn.Module or function.")
    if _find_hooks(layer_to_call):
        raise Error("module has already been assigned to a block. removeBlocks() removes it.")
    layer_to_call.register_forward_pre_hook(BlockHook(user_id, ipu_id))
    return layer_to_call


def BlockFunction(
    user_id: str | int | None = None, ipu_id: int | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: calls of the function run within a block."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run_in_block(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return run_in_block

    return decorate


def removeBlocks(module: Any) -> None:
    """Remove the blocks of a module and of those within it."""
    for inner in module.modules():
        for key, _ in _find_hooks(inner):
            del inner._forward_pre_hooks[key]  # noqa: SLF001 # torch has no other way


def module_repr(module: Any) -> str:
    """Return the text of a module, with a line for each block.

    Args:
        module: The module.

    Returns:
        Lines as torch's, where `BeginBlock(user_id=..., ipu_id=...)` stands before a module that
        begins a block.
    """
    lines = [f"{hook!r}" for _, hook in _find_hooks(module)]
    extra = module.extra_repr()
    children = [
        f"({name}): {module_repr(child).replace(chr(10), chr(10) + '  ')}"
        for name, child in module.named_children()
    ]
    inside = [*extra.split("\n"), *children] if extra else children
    name = module._get_name()  # noqa: SLF001 # torch has no other way
    if children or len(inside) > 1:
        body = f"{name}(\n  " + "\n  ".join(inside) + "\n)"
    else:
        body = f"{name}({extra})"
    return " ".join([*lines, body])
