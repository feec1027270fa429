"""DataFlow: how many batches a step has, and which tensors it returns in which iterations.

InputShapeInfo is here too: shapes of inputs that the model leaves open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from popart.enums import AnchorReturnTypeId, ExchangeStrategy, TileSet
from popart.errors import popart_exception
from popart.tensorinfo import TensorInfo

_IDS = {each.name.lower(): each for each in AnchorReturnTypeId}
_NO_PERIOD = "A return period should not be supplied for this anchor return type"


class AnchorReturnType:
    """Iterations of a step whose values an anchor returns.

    Example:
        >>> AnchorReturnType("EveryN", 2).rp()
        2
    """

    __slots__ = ("_exchange", "_id", "_period", "_tile_set")

    def __init__(
        self,
        anchorReturnTypeString: str = "All",
        returnPeriod: int | TileSet | None = None,
        tileSet: TileSet | ExchangeStrategy = TileSet.Compute,
        exchangeStrategy: ExchangeStrategy = ExchangeStrategy.JustInTime,
    ) -> None:
        """Choose the iterations.

        Args:
            anchorReturnTypeString: All, Final, EveryN or Sum, in any case.
            returnPeriod: Every how many iterations EveryN returns a value; the real class also
                takes `tileSet` in this place.
            tileSet: Accepted without effect.
            exchangeStrategy: Accepted without effect.

        Raises:
            popart_exception: For an unknown type, or a period that does not go with the type.
        """
        if isinstance(returnPeriod, TileSet):
            if isinstance(tileSet, ExchangeStrategy):
                exchangeStrategy = tileSet
            tileSet, returnPeriod = returnPeriod, None
        type_id = _IDS.get(anchorReturnTypeString.lower())
        if type_id is None:
            raise popart_exception(
                f"Invalid anchor return type ID supplied: {anchorReturnTypeString}"
            )
        if type_id is not AnchorReturnTypeId.EveryN and returnPeriod is not None:
            raise popart_exception(_NO_PERIOD)
        if type_id is AnchorReturnTypeId.EveryN and returnPeriod is None:
            raise popart_exception("Must specify return period with option 'EVERYN'")
        if returnPeriod is not None and returnPeriod <= 0:
            raise popart_exception("Anchor return period must be greater than zero")
        self._id, self._period = type_id, returnPeriod
        self._tile_set, self._exchange = tileSet, exchangeStrategy

    def id(self) -> AnchorReturnTypeId:
        """Return the type."""
        return self._id

    def rp(self) -> int:
        """Return the period of EveryN.

        Returns:
            The period.

        Raises:
            popart_exception: For another type.
        """
        if self._period is None:
            raise popart_exception(_NO_PERIOD)
        return self._period

    def tileSet(self) -> Any:
        """Return the tile set."""
        return self._tile_set

    def exchangeStrategy(self) -> ExchangeStrategy:
        """Return the exchange strategy."""
        return self._exchange

    def __repr__(self) -> str:
        period = f", {self._period}" if self._period is not None else ""
        return f"AnchorReturnType({self._id.name!r}{period})"

    def count(self, batches: int) -> int | None:
        """Return the number of iterations of `batches` that are returned; None for one value."""
        if self._id is AnchorReturnTypeId.All:
            return batches
        return batches // self.rp() if self._id is AnchorReturnTypeId.EveryN else None

    def find_row(self, iteration: int, batches: int) -> int | None:
        """Return the row of the anchor's array to which an iteration's value goes, if any."""
        if self._id is AnchorReturnTypeId.All:
            return iteration
        if self._id is AnchorReturnTypeId.EveryN:
            return iteration // self.rp() if (iteration + 1) % self.rp() == 0 else None
        if self._id is AnchorReturnTypeId.Final and iteration + 1 < batches:
            return None
        return 0


class DataFlow:
    """Number of batches of a step, and the anchors: tensors that it returns.

    Example:
        >>> flow = DataFlow(4, {"y": AnchorReturnType("Final")})
        >>> flow.anchors(), flow.batchesPerStep()
        (['y'], 4)
    """

    def __init__(
        self,
        batchesPerStep: int = 0,
        anchorTensors: Mapping[str, AnchorReturnType] | Sequence[str] | None = None,
        anchorReturnType: AnchorReturnType | None = None,
        *,
        anchorIds: Sequence[str] | None = None,
    ) -> None:
        """Choose the anchors.

        Args:
            batchesPerStep: Number of batches that a step runs.
            anchorTensors: Return types by tensor id, or a list of ids.
            anchorReturnType: Return type of the listed ids; All by default.
            anchorIds: The list of ids under its other name.

        Raises:
            popart_exception: If there is no batch, or a period does not divide their number.
        """
        anchors = anchorIds if anchorTensors is None else anchorTensors
        if anchors is not None and batchesPerStep <= 0:
            raise popart_exception("'Batches per step' must be greater than zero")
        if not isinstance(anchors, Mapping):
            anchors = dict.fromkeys(anchors or (), anchorReturnType or AnchorReturnType("All"))
        self._batches = int(batchesPerStep)
        self._anchors = {name: anchors[name] for name in sorted(anchors)}
        for kind in self._anchors.values():
            self._check_period(kind)

    def _check_period(self, kind: AnchorReturnType) -> None:
        if kind.id() is not AnchorReturnTypeId.EveryN:
            return
        if kind.rp() > self._batches:
            raise popart_exception("Return period must be <= to the number of batches per step")
        if self._batches % kind.rp():
            raise popart_exception(
                "Return period must be a factor of the number of batches per step"
            )

    def isAnchored(self, id: str) -> bool:
        """Return whether a tensor is an anchor."""
        return id in self._anchors

    def nAnchors(self) -> int:
        """Return the number of anchors."""
        return len(self._anchors)

    def batchesPerStep(self) -> int:
        """Return the number of batches of a step."""
        return self._batches

    def setBatchesPerStep(self, batchesPerStep: int) -> None:
        """Set the number of batches of a step; a session keeps the one it was made with."""
        self._batches = int(batchesPerStep)

    def anchors(self) -> list[str]:
        """Return the ids of the anchors, sorted."""
        return list(self._anchors)

    def art(self, id: str) -> AnchorReturnType:
        """Return the return type of an anchor.

        Args:
            id: Id of the tensor.

        Returns:
            The return type.

        Raises:
            popart_exception: If the tensor is not an anchor.
        """
        if id not in self._anchors:
            raise popart_exception(f"Tensor {id} is not an anchor")
        return self._anchors[id]

    def iter_anchors(self) -> Iterator[tuple[str, AnchorReturnType]]:
        """Yield the anchors with their return types."""
        yield from self._anchors.items()

    def __repr__(self) -> str:
        return f"DataFlow({self._batches}, {self._anchors})"


def anchor_shape(
    info: TensorInfo, kind: AnchorReturnType, batches: int, replicas: int
) -> list[int]:
    """Return the shape of an anchor's array: leading dimensions of 1 are left out."""
    rows = kind.count(batches) or 1
    return [*(size for size in (rows, replicas) if size != 1), *info.shape()]


def count_elements(info: TensorInfo, kind: AnchorReturnType, batches: int, replicas: int) -> int:
    """Return the number of elements of an anchor's array."""
    return prod(anchor_shape(info, kind, batches, replicas))


class InputShapeInfo:
    """Types and shapes of inputs that the model leaves open.

    Example:
        >>> shapes = InputShapeInfo()
        >>> shapes.add("input", TensorInfo("FLOAT", [2, 3]))
        >>> shapes.has("input"), shapes.get("input").shape()
        (True, [2, 3])
    """

    def __init__(self) -> None:
        self._infos: dict[str, TensorInfo] = {}

    def add(self, id: str, info: TensorInfo) -> None:
        """Set the type and shape of an input."""
        self._infos[id] = info

    def get(self, id: str) -> TensorInfo:
        """Return the type and shape of an input.

        Args:
            id: Id of the input.

        Returns:
            Its type and shape.

        Raises:
            popart_exception: If none were added.
        """
        if id not in self._infos:
            raise popart_exception(f"No entry for tensor {id} in InputShapeInfo")
        return self._infos[id]

    def has(self, id: str) -> bool:
        """Return whether the type and shape of an input were added."""
        return id in self._infos

    def getAllTensorIds(self) -> list[str]:
        """Return the ids that were added."""
        return list(self._infos)

    def all(self) -> dict[str, TensorInfo]:
        """Return types and shapes by id."""
        return dict(self._infos)
