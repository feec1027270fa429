"""DataLoader and AsynchronousDataAccessor: batches of the size that a call of a model takes.

The real module's accessor has a worker process and a ring of shared memory. This one has a thread
and a queue: order, length and errors are the same. A data set's own worker processes are started
by the thread that iterates, not by that one.
"""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import traceback
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from poptorch import profiling, samplers
from poptorch._logging import logger
from poptorch.enums import DataLoaderMode, SharingStrategy
from poptorch.errors import Error
from poptorch.options.model_options import Options

_POLL_SECONDS: Final = 0.05
"""Interval at which a full queue's thread looks whether it must stop."""
_END: Final = object()
"""Marker of the end of a data set."""


class _Failure:
    """An exception on its way to the thread that iterates."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Prefetcher:
    """Thread that loads the elements of an iterator ahead of their use.

    Args:
        elements: The iterator.
        size: Most elements to load ahead.
    """

    def __init__(self, elements: Iterator[Any], size: int) -> None:
        self._elements = elements
        self._queue: queue.Queue[Any] = queue.Queue(size)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._load, name="AsynchronousDataAccessor", daemon=True
        )
        self._thread.start()

    def get(self) -> Any:
        """Return the next element, _END or a _Failure; wait until it is loaded."""
        while not self._stop.is_set():
            try:
                return self._queue.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
        return _END

    def stop(self) -> None:
        """Stop loading, and wait for an element that is being loaded."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _load(self) -> None:
        try:
            for element in self._elements:
                if not self._put(element):
                    return
            self._put(_END)
        except Exception as error:  # noqa: BLE001 # a data set may raise anything
            self._put(_Failure(error))

    def _put(self, element: Any) -> bool:
        """Add an element; return False if the thread must stop."""
        while not self._stop.is_set():
            try:
                self._queue.put(element, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False


class AsynchronousDataAccessor:
    """Loads the elements of a data set ahead, on another thread.

    Args:
        dataset: Iterable, as a DataLoader.
        buffer_size: Most elements to load ahead.
        miss_sleep_time_in_ms: Accepted without effect.
        load_indefinitely: Accepted without effect; each iteration starts anew.
        early_preload: Whether loading starts at once; by default with the first iteration.
        sharing_strategy: Accepted without effect.
        rebatched_size: Number of rows of the batches made from those of the data set.

    Raises:
        Error: If the first element cannot be loaded, or there is none.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,  # noqa: ARG002 # the real module's name
        load_indefinitely: bool = True,  # noqa: ARG002 # the real module's name
        early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.ForkServer,  # noqa: ARG002
        rebatched_size: int | None = None,
    ) -> None:
        self._dataset = dataset
        self._buffer_size = max(buffer_size, 1)
        self._rebatched_size = rebatched_size
        self._prefetcher: _Prefetcher | None = None
        self._fresh: Iterator[Any] | None = self._start()
        """Iterator of which nothing is used yet."""
        if early_preload:
            self._prefetch()
        self._finalizer = weakref.ref(self)
        atexit.register(_terminate, self._finalizer)

    def terminate(self) -> None:
        """Stop loading."""
        prefetcher, self._prefetcher = self._prefetcher, None
        self._fresh = None
        if prefetcher is not None:
            prefetcher.stop()

    def __del__(self) -> None:
        self.terminate()

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type] # its TypeError names the data set

    def __iter__(self) -> AsynchronousDataAccessor:
        if self._fresh is None:
            self.terminate()
            self._fresh = self._iterate()
        if self._prefetcher is None:
            self._prefetch()
        self._fresh = None
        return self

    def __next__(self) -> Any:
        if self._prefetcher is None:
            raise StopIteration
        element = self._prefetcher.get()
        if element is _END:
            self.terminate()
            raise StopIteration
        if isinstance(element, _Failure):
            self.terminate()
            raise element.error
        return element

    def _prefetch(self) -> None:
        assert self._fresh is not None
        self._prefetcher = _Prefetcher(self._fresh, self._buffer_size)

    def _start(self) -> Iterator[Any]:
        """Return the first iterator; errors of the data set are found before it is used."""
        try:
            elements = self._iterate()
            first = next(elements, _END)
        except Exception as error:  # a data set may raise anything
            traceback.print_exc()
            raise Error(
                "AsynchronousDataAccessor worker thread failed to start (Check above for details)"
            ) from error
        if first is _END:
            raise Error("The Dataset is empty")
        return itertools.chain([first], elements)

    def _iterate(self) -> Iterator[Any]:
        elements = iter(self._dataset)
        if self._rebatched_size is None:
            return elements
        drop_last = getattr(self._dataset, "rebatched_drop_last", True)
        return _rebatch(elements, self._rebatched_size, drop_last)


def _terminate(accessor: weakref.ref[AsynchronousDataAccessor]) -> None:
    """Stop an accessor that is still there when the interpreter exits."""
    accessor_object = accessor()
    if accessor_object is not None:
        accessor_object.terminate()


def _rebatch(batches: Iterator[Any], size: int, drop_last: bool) -> Iterator[Any]:
    """Yield batches of `size` rows from batches of any number of rows."""
    parts: list[Any] = []
    rows = 0
    for batch in batches:
        parts.append(batch)
        rows += samplers.count_rows(batch)
        while rows >= size:
            joined = samplers.concatenate(parts)
            yield samplers.take_rows(joined, 0, size)
            parts = [samplers.take_rows(joined, size, rows)] if rows > size else []
            rows -= size
    if parts and not drop_last:
        yield samplers.concatenate(parts)


class _Epochs:
    """The batches of a DataLoader, as its accessor iterates over them."""

    def __init__(self, loader: DataLoader, drop_last: bool) -> None:
        self._loader = weakref.proxy(loader)
        self.rebatched_drop_last = drop_last

    def __iter__(self) -> Iterator[Any]:
        return self._loader.iterate()  # type: ignore[no-any-return] # of a proxy

    def __len__(self) -> int:
        return len(self._loader)


class DataLoader(torch.utils.data.DataLoader):  # type: ignore[misc] # torch may be absent
    """A torch DataLoader whose batches have the size that a call of the model takes.

    That is the batch size times the device iterations, the replicas' groups and the gradient
    accumulation. In a run of several processes each loads its part of the data set.

    Args:
        options: Options of the model; they are frozen.
        dataset: The data set.
        batch_size: Size for which the model is compiled; None for no batching.
        shuffle: Whether the order is random; by default it is not.
        num_workers: Number of worker processes.
        drop_last: Whether an incomplete batch at the end is left out.
        persistent_workers: Whether worker processes are kept between epochs; by default they are.
        auto_distributed_partitioning: Whether each process loads its part only.
        mode: Sync, or Async or AsyncRebatched to load ahead.
        async_options: Arguments of the AsynchronousDataAccessor.
        rebatched_worker_size: Batch size of worker processes for AsyncRebatched.
        batch_sampler: Sampler of batches, instead of batch_size and shuffle.
        **kwargs: Further arguments of torch's DataLoader.
    """

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Any = None,
        **kwargs: Any,
    ) -> None:
        assert isinstance(options, Options), f"options must be poptorch.Options: {options!r}"
        options.freeze()
        self._options = options
        self._accessor: AsynchronousDataAccessor | None = None
        self._drops_last = drop_last
        self._rebatched = mode is DataLoaderMode.AsyncRebatched and batch_sampler is None
        factor = count_batches(options)
        self._combined_batch_size = (
            None if batch_size is None or batch_sampler is not None else batch_size * factor
        )
        if persistent_workers is None:
            persistent_workers = num_workers > 0
        kwargs.update(num_workers=num_workers, persistent_workers=persistent_workers)
        if isinstance(dataset, torch.utils.data.IterableDataset):
            self._check_iterable(num_workers, auto_distributed_partitioning, kwargs)
        if batch_sampler is not None:
            assert batch_size in (None, 1), "batch_sampler excludes batch_size"
            assert not shuffle, "batch_sampler excludes shuffle"
            dataset = self._combine(dataset, batch_sampler, factor, kwargs)
        else:
            self._batch(dataset, bool(shuffle), auto_distributed_partitioning, kwargs)
            if self._rebatched:
                self._set_worker_size(rebatched_worker_size, kwargs)
        super().__init__(dataset, **kwargs)
        if mode is not DataLoaderMode.Sync:
            self._accessor = AsynchronousDataAccessor(
                _Epochs(self, drop_last),
                rebatched_size=self._combined_batch_size if self._rebatched else None,
                **(async_options or {}),
            )

    def _check_iterable(self, num_workers: int, partition: bool, kwargs: dict[str, Any]) -> None:
        assert not partition or self._options.Distributed.numProcesses == 1, (
            "auto_distributed_partitioning is not supported for IterableDatasets: set it to False "
            "and let the data set yield the elements of its process"
        )
        if num_workers > 1 and kwargs.get("worker_init_fn") is None:
            logger.warning(
                "IterableDataset used with num_workers=%d but no worker_init_fn specified: as a "
                "result the DataLoader will return %d times each element in the dataset (See "
                "torch.utils.data.IterableDataset's documentation for more information)",
                num_workers,
                num_workers,
            )

    def _combine(
        self, dataset: Any, batch_sampler: Any, factor: int, kwargs: dict[str, Any]
    ) -> Any:
        """Set the arguments that combine the batches of a sampler; return the data set for them."""
        collate = kwargs.get("collate_fn") or torch.utils.data.default_collate
        kwargs["collate_fn"] = samplers.CombinedCollate(collate)
        kwargs["batch_sampler"] = samplers.CombinedBatchSampler(
            batch_sampler, factor, self._drops_last
        )
        return samplers.BatchedDataset(dataset)

    def _batch(self, dataset: Any, shuffle: bool, partition: bool, kwargs: dict[str, Any]) -> None:
        """Set the arguments of batches of the combined size."""
        size = self._combined_batch_size
        drops_last = self._drops_last and size is not None
        kwargs.update(batch_size=size, drop_last=drops_last)
        if isinstance(dataset, torch.utils.data.IterableDataset):
            return
        distributed = self._options.Distributed
        if partition and distributed.numProcesses > 1:
            assert size is not None, "batch_size=None not allowed for distributed execution."
            assert not shuffle or self._options.exists("random_seed"), (
                "When using distributed execution you must set poptorch.Options.randomSeed()"
            )
            kwargs["sampler"] = samplers.DistributedSampler(
                len(dataset),
                size,
                distributed.processId,
                distributed.numProcesses,
                self._options.random_seed if shuffle else None,
            )
        else:
            kwargs["shuffle"] = shuffle
        if size is not None and not self._drops_last and len(dataset) % size:
            logger.warning(
                "The number of elements in the dataset (%d) is not divisible by the number of "
                "elements processed per step (%d) and drop_last=False. The last batch has another "
                "size, for which the model is not compiled. Switch to drop_last=True.",
                len(dataset),
                size,
            )

    def _set_worker_size(self, size: int | None, kwargs: dict[str, Any]) -> None:
        """Let worker processes load smaller batches, of which the accessor makes combined ones."""
        combined = self._combined_batch_size
        assert combined is not None, "DataLoaderMode.AsyncRebatched needs a batch_size"
        size = size or 1
        assert 0 < size <= combined, (
            f"rebatched_worker_size must be between 1 and the combined batch size {combined}, "
            f"found {size}"
        )
        kwargs.update(batch_size=size, drop_last=False)

    @property
    def combinedBatchSize(self) -> int | None:
        """Number of elements that one call of the model takes; None if there are no batches."""
        return self._combined_batch_size

    @property
    def options(self) -> Options:
        """Options that the loader was made with."""
        return self._options

    def terminate(self) -> None:
        """Stop loading ahead."""
        if self._accessor is not None:
            self._accessor.terminate()

    def __len__(self) -> int:
        if not self._rebatched:
            return int(super().__len__())
        size = self._combined_batch_size or 1
        sampler = self.sampler if hasattr(self.sampler, "__len__") else self.dataset
        length = len(sampler)
        return length // size if self._drops_last else -(-length // size)

    def iterate(self) -> Iterator[Any]:
        """Return the batches of one epoch, loaded when they are asked for."""
        channel = profiling.Channel("poptorch.DataLoader")
        return iter(channel.instrument(super().__iter__(), "__next__"))

    def __iter__(self) -> Iterator[Any]:
        return self.iterate() if self._accessor is None else iter(self._accessor)


def count_batches(options: Options) -> int:
    """Return the number of batches that one call of a model takes."""
    groups = options.replication_factor // options.input_group_size
    return int(options.device_iterations * groups * options.Training.gradient_accumulation)
