"""ModelInstanceState: one instance of a model: its session, its queues, and the way of requests through them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from model_runtime import ModelRuntimeError, QueueManager, Session, SessionConfig, TensorMemory
from simipu import SimIpuError

from triton_poplar.errors import RequestError
from triton_poplar.model_state import ModelState
from triton_poplar.request import Array, Request

_log = logging.getLogger("triton_poplar")


class ModelInstanceState:
    """Answers requests of one model, several at a time joined into compiled batches. One thread calls `execute`.

    Execution is synchronous: while `execute` blocks, nothing else can be enqueued, so an incomplete batch is run as soon
    as the queues hold no more rows.
    """

    def __init__(self, model_state: ModelState, name: str) -> None:
        self.model_state = model_state
        self.name = name
        config = SessionConfig(
            check_package_hash=model_state.parameters.check_package_hash, num_threads=model_state.num_threads
        )
        self.session = Session(model_state.load_model(), config)
        self.session.runLoadPrograms()
        self.queues: QueueManager = self.session.createQueueManager()

    def enqueue_request(self, inputs: Mapping[str, Array], batch_size: int, callback: Callable[[], None] | None = None) -> None:
        """Put a request's rows into the input queues, by anchor. Call with `queues.lock` held, then
        `set_request_outputs` once. `callback` is called when its first row is read."""
        for index, (anchor, array) in enumerate(inputs.items()):
            assert len(array) == batch_size
            self.queues.inputQueue(anchor).enqueue(array, None if index else callback)

    def set_request_outputs(
        self,
        outputs: Mapping[str, Array | TensorMemory | None],
        batch_size: int,
        callback: Callable[[], None] | None = None,
    ) -> None:
        """Say where the rows of the last enqueued request go, by anchor; None drops an output. `callback` is called
        after the last row of the last output is written."""
        last = len(outputs) - 1
        for index, (anchor, place) in enumerate(outputs.items()):
            self.queues.outputQueue(anchor).enqueue(place, batch_size, callback if index == last else None)

    def execute(self, requests: Sequence[Request]) -> None:
        """Compute all requests that have no error yet; afterwards each has its outputs or an error.

        When a joined batch fails, its requests are run again one by one, so that only those fail that must.
        """
        waiting = [request for request in requests if request.error is None]
        error = self._run(waiting)
        if error is None:
            return
        for request in waiting:
            request.renew()
            error = self._run([request]) if len(waiting) > 1 else error
            if error is not None:
                request.fail(
                    RequestError(f"model {self.model_state.name!r} could not compute the request: {error}", "INTERNAL")
                )

    def _run(self, requests: Sequence[Request]) -> Exception | None:
        """Run the main program until the queues are empty; the error that stopped it, with the queues emptied."""
        with self.queues.lock:
            for request in requests:
                self.enqueue_request(request.inputs, request.batch_size)
                self.set_request_outputs(request.memories, request.batch_size)
        try:
            while self.queues.readAvailable():
                self.session.runMainPrograms()
        except (SimIpuError, ModelRuntimeError, MemoryError) as error:
            self.queues.disconnectAll()
            _log.warning("%s: a batch of %d requests failed: %s", self.name, len(requests), error)
            return error
        return None
