"""Facts about the rows of a compiled batch, stored in an opaque blob beside the executable.

poprt finds these facts. A server needs them, without reading the executable, to decide if it may
join the rows of different requests. The blob is ours; files of other tools have none, and then
nothing is known about their rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .errors import PopefError
from .model import Model
from .wire import WORD_BYTES

ROWS_BLOB = "simipu.rows"
"""Name of the opaque blob."""
_MAX_BYTES = 1 << 20
_FROZEN = "the files contain data of inputs, which can differ from row to row"
_UNKNOWN = "the file does not say that they are independent"


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Facts about the rows of one model.

    Args:
        dependence: why the rows of a batch are not proven to be independent, with the node's name;
            None if they are.
        batch_axes: the batch axis by anchor, for anchors whose batch axis is not the first.
    """

    dependence: str | None = _UNKNOWN
    batch_axes: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the payload of the blob, padded with blanks to whole words.

        The padding keeps the next blob of the file at a place where it can be mapped.
        """
        payload = json.dumps(
            {"dependence": self.dependence, "batch_axes": dict(self.batch_axes)}, sort_keys=True
        ).encode()
        return payload + b" " * (-len(payload) % WORD_BYTES)

    def with_frozen(self, shapes: Iterable[tuple[int, ...]]) -> RowFacts:
        """Return the facts of a model whose files hold the data of some inputs.

        `shapes` are those of the remaining inputs. Rows lie along the first axis if all shapes
        share its size. The effect of the data on the rows is found when the model is loaded.
        """
        return RowFacts(_FROZEN, {} if batch_size(shapes) else self.batch_axes)

    def axis(self, anchor: str) -> int:
        """Return the batch axis of an anchor's tensor."""
        return self.batch_axes.get(anchor, 0)


def read_rows(model: Model) -> RowFacts:
    """Return the facts that the files of a model give about its rows.

    Args:
        model: the model, whose reader must be open.

    Returns:
        The facts; "not known to be independent" if the files have none.

    Raises:
        PopefError: for a blob that does not have the form of `RowFacts.encode`.
    """  # noqa: DOC501  the ValueError is caught below
    blobs = [blob for blob in model.opaqueBlobs if blob.name == ROWS_BLOB]
    if not blobs:
        return RowFacts()
    blob = blobs[0]
    ranks = {anchor.name(): len(anchor.tensorInfo().shape()) for anchor in model.metadata.anchors()}
    try:
        if len(blobs) > 1 or blob.getAvailableReadSize() > _MAX_BYTES:
            raise ValueError(
                f"{len(blobs)} blobs, the first of {blob.getAvailableReadSize()} bytes"
            )
        return _decode(json.loads(bytes(blob.data())), ranks)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise PopefError(
            f"{blob.blob.label}: expected one JSON object of at most {_MAX_BYTES} bytes with "
            f"dependence (text or null) and batch_axes (axes by anchor), found {str(error)[:200]}; "
            "compile the model again with poprt"
        ) from error


def batch_size(shapes: Iterable[tuple[int, ...]], axes: Iterable[int] | None = None) -> int:
    """Return the compiled batch size: the size of all shapes along their batch axes.

    Args:
        shapes: the shapes of the tensors.
        axes: the batch axis of each shape; None means the first of each.

    Returns:
        The common size, or 0 if the sizes differ.

    Raises:
        ValueError: if there are not as many axes as shapes.

    Example:
        >>> import popef
        >>> popef.batch_size([(8, 3), (8, 1)]), popef.batch_size([(8, 3), (4, 1)])
        (8, 0)
    """
    placed = (
        [(shape, 0) for shape in shapes] if axes is None else list(zip(shapes, axes, strict=True))
    )
    sizes = {shape[axis] if shape else 0 for shape, axis in placed}
    return sizes.pop() if len(sizes) == 1 else 0


def _decode(found: dict[str, object], ranks: Mapping[str, int]) -> RowFacts:
    dependence, axes = found["dependence"], found["batch_axes"]
    if not isinstance(dependence, (str, type(None))) or not isinstance(axes, dict):
        raise TypeError(f"dependence {dependence!r}, batch_axes {axes!r}")
    for name, axis in axes.items():
        if type(axis) is not int or not 0 <= axis < ranks[name]:
            raise ValueError(f"axis {axis!r} for anchor {name!r}")
    return RowFacts(dependence, axes)
