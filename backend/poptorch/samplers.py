"""Parts of a data set, in order or at random, and batches of batches: what a DataLoader draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from poptorch import arguments


class DistributedSampler:
    """Sampler of one process's part of a data set.

    All processes must have the same seed. With `shuffle`, each epoch has another order of the
    whole data set. What one epoch leaves over because the parts are equal, the next one uses.

    Args:
        length: Number of elements of the data set.
        step: Elements of a combined batch, of which each process gets the same number.
        process: Number of this process.
        processes: Number of processes.
        seed: Seed of the order, or None for the data set's order.
    """

    def __init__(
        self, length: int, step: int, process: int, processes: int, seed: int | None
    ) -> None:
        self._length = length
        self._size = step * (length // (step * processes))
        self._process = process
        self._used = self._size * processes
        self._seed = seed
        self._epoch = 0
        self._left_over: list[int] = []

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        order = list(range(self._length)) if self._seed is None else self._shuffle(self._seed)
        first = self._process * self._size
        yield from order[first : first + self._size]

    def _shuffle(self, seed: int) -> list[int]:
        """Return the order of the next epoch: what the last one left over is used in it."""
        generator = torch.Generator().manual_seed(seed + self._epoch)
        self._epoch += 1
        order = torch.randperm(self._length, generator=generator).tolist()
        late = set(self._left_over)
        order = [*self._left_over, *(index for index in order if index not in late)]
        self._left_over = order[self._used :]
        mixed = torch.randperm(self._used, generator=generator).tolist()
        return [order[index] for index in mixed]


class CombinedBatchSampler:
    """Sampler of several batches of another sampler at once.

    Args:
        batch_sampler: The sampler of batches.
        count: Number of batches to combine.
        drop_last: Whether fewer batches at the end are left out.
    """

    def __init__(self, batch_sampler: Any, count: int, drop_last: bool) -> None:
        self._batch_sampler = batch_sampler
        self._count = count
        self._drop_last = drop_last

    def __len__(self) -> int:
        length = len(self._batch_sampler)
        return length // self._count if self._drop_last else -(-length // self._count)

    def __iter__(self) -> Iterator[list[Any]]:
        batches: list[Any] = []
        for batch in self._batch_sampler:
            batches.append(batch)
            if len(batches) == self._count:
                yield batches
                batches = []
        if batches and not self._drop_last:
            yield batches


class BatchedDataset(torch.utils.data.Dataset):  # type: ignore[misc] # torch may be absent
    """Data set whose indices are lists of those of another."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, indices: Sequence[Any]) -> list[Any]:
        return [self._dataset[index] for index in indices]


class CombinedCollate:
    """Collation of the batches that a CombinedBatchSampler draws: one batch of all rows."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, batches: Sequence[Any]) -> Any:
        return concatenate([self._collate(batch) for batch in batches])


def concatenate(batches: Sequence[Any]) -> Any:
    """Return the rows of several batches as one batch of the same structure."""
    if len(batches) == 1:
        return batches[0]
    tensors = [[tensor for _, tensor in arguments.iter_tensors(batch)] for batch in batches]
    return arguments.rebuild(
        batches[0], iter([torch.cat(parts) for parts in zip(*tensors, strict=True)])
    )


def count_rows(batch: Any) -> int:
    """Return the number of rows of a batch: the first dimension of its first tensor."""
    return next((len(tensor) for _, tensor in arguments.iter_tensors(batch)), 0)


def take_rows(batch: Any, first: int, last: int) -> Any:
    """Return some rows of a batch."""
    tensors = [tensor[first:last] for _, tensor in arguments.iter_tensors(batch)]
    return arguments.rebuild(batch, iter(tensors))
