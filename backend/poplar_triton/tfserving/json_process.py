"""Conversion of JSON requests and responses. Large ones are read and written in a process of their
own, because millions of values block other threads for seconds."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TypeAlias

from popef._tools.arrays import Array
from poplar_triton.tfserving.json_answers import write_predictions
from poplar_triton.tfserving.json_tensors import Format, parse_predict
from poplar_triton.tfserving.models import Call, Signature
from poplar_triton.tfserving.work_process import WorkProcess, check_wanted

LARGE_BYTES = 1 << 18
"""Minimum size of a body that is read in the process. A smaller one blocks other threads for at
most some 30 ms, at 250 ns for a value of two bytes."""
LARGE_VALUES = 1 << 15
"""Minimum number of values of a response that is written in the process. A smaller one takes at
most some 30 ms, at 1 us for a value."""

Parsed: TypeAlias = "tuple[Format, str, dict[str, Array]]"
"""See parse_predict."""


class JsonProcess:
    """Reads bodies and writes responses: one small body at a time, and one large body or response
    at a time. The values take many times the size of the body. Threads may share it."""

    def __init__(self) -> None:
        self._reading_small = threading.Lock()
        self._process = WorkProcess("process of large JSON")

    def read(self, body: bytearray, signature: Signature, call: Call) -> Parsed:
        """See parse_predict. Also raises ServingError for a call that is given up meanwhile."""
        if len(body) > LARGE_BYTES:
            parsed: Parsed = self._process.run(call, parse_predict, body, signature)
            return parsed
        with self._reading_small:
            check_wanted(call)
            return parse_predict(body, signature)

    def write(self, outputs: Mapping[str, Array], format: Format, call: Call) -> bytes:
        """See write_predictions. Also raises ServingError for a call that is given up meanwhile."""
        if _is_large(outputs):
            answer: bytes = self._process.run(call, write_predictions, dict(outputs), format)
            return answer
        return write_predictions(outputs, format)

    def close(self) -> None:
        """End the process. Its work is lost, and waiting requests are refused."""
        self._process.close()


def _is_large(outputs: Mapping[str, Array]) -> bool:
    """Return whether the JSON of outputs takes long to write, because they have many values or long
    strings."""
    if sum(array.size for array in outputs.values()) > LARGE_VALUES:
        return True
    texts = (array for array in outputs.values() if array.dtype.hasobject)
    return sum(len(text) for array in texts for text in array.flat) > LARGE_BYTES
