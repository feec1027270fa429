"""Tests of DataLoader: sizes of batches, order, parts of processes, and loading ahead."""

import threading

import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402

ASYNC = [poptorch.DataLoaderMode.Async, poptorch.DataLoaderMode.AsyncRebatched]


class Numbers(torch.utils.data.Dataset):
    """Data set of the numbers below a length, each a tensor."""

    def __init__(self, length, broken_at=None):
        self.length = length
        self.broken_at = broken_at

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == self.broken_at:
            raise ValueError("broken element")
        return torch.tensor([float(index)])


class Stream(torch.utils.data.IterableDataset):
    """The same, as a stream."""

    def __iter__(self):
        return iter([torch.tensor([float(index)]) for index in range(10)])


def read(loader):
    return [int(value) for batch in loader for value in batch.flatten()]


def options(iterations=1, replicas=1):
    return poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)


@pytest.mark.parametrize("mode", poptorch.DataLoaderMode)
def test_a_batch_has_the_rows_of_all_iterations_and_replicas(mode):
    loader = poptorch.DataLoader(options(2, 3), Numbers(40), batch_size=2, mode=mode)
    assert loader.combinedBatchSize == 12
    assert len(loader) == 3
    assert [batch.shape[0] for batch in loader] == [12, 12, 12]
    assert read(loader) == list(range(36))


def test_replicas_that_share_inputs_get_one_part():
    grouped = options(2, 4).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    assert poptorch.DataLoader(grouped, Numbers(40), batch_size=3).combinedBatchSize == 12


@pytest.mark.parametrize("mode", poptorch.DataLoaderMode)
def test_an_incomplete_batch_is_the_last_one_if_it_is_not_dropped(mode):
    loader = poptorch.DataLoader(options(), Numbers(10), batch_size=4, drop_last=False, mode=mode)
    assert [batch.shape[0] for batch in loader] == [4, 4, 2]
    assert len(loader) == 3


def test_an_incomplete_batch_is_reported(capsys):
    poptorch.DataLoader(options(), Numbers(10), batch_size=4, drop_last=False)
    assert "elements in the dataset (10) is not divisible" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ASYNC)
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_is_broken_off_is_followed_by_a_whole_one(mode, workers):
    loader = poptorch.DataLoader(
        options(), Numbers(12), batch_size=2, mode=mode, num_workers=workers
    )
    for index, _ in enumerate(loader):
        if index == 2:
            break
    assert read(loader) == list(range(12))
    assert read(loader) == list(range(12))
    loader.terminate()
    assert "AsynchronousDataAccessor" not in [each.name for each in threading.enumerate()]


def test_the_size_of_workers_batches_does_not_change_the_order():
    for size in (1, 3, 8):
        loader = poptorch.DataLoader(
            options(2),
            Numbers(35),
            batch_size=4,
            mode=poptorch.DataLoaderMode.AsyncRebatched,
            rebatched_worker_size=size,
        )
        assert read(loader) == list(range(32))


def test_a_broken_first_element_is_an_error_of_the_accessor():
    with pytest.raises(poptorch.Error, match="worker thread failed to start"):
        poptorch.AsynchronousDataAccessor(poptorch.DataLoader(options(), Numbers(4, broken_at=0)))
    with pytest.raises(poptorch.Error, match="The Dataset is empty"):
        poptorch.AsynchronousDataAccessor([])


def test_a_broken_element_reaches_who_iterates():
    accessor = poptorch.AsynchronousDataAccessor(
        poptorch.DataLoader(options(), Numbers(4, broken_at=2))
    )
    found = []
    with pytest.raises(ValueError, match="broken element"):  # noqa: PT012 # in the loop
        for batch in accessor:
            found.append(int(batch))
    assert found == [0, 1]


def test_loading_ahead_is_bounded():
    asked = []

    class Watched(Numbers):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    loader = poptorch.DataLoader(
        options(),
        Watched(100),
        mode=poptorch.DataLoaderMode.Async,
        async_options={"buffer_size": 2},
    )
    for index, _ in enumerate(loader):
        assert len(asked) <= index + 1 + 2 + 1  # taken, in the queue, and waiting for room
        if index == 5:
            break
    loader.terminate()


@pytest.mark.parametrize("shuffle", [False, True])
def test_processes_have_disjoint_parts_of_equal_size(shuffle):
    parts = []
    for process in range(3):
        chosen = options(2).randomSeed(1)
        chosen.Distributed.configureProcessId(process, 3)
        loader = poptorch.DataLoader(chosen, Numbers(50), batch_size=2, shuffle=shuffle)
        parts.append((read(loader), read(loader)))
    for epoch in zip(*parts, strict=True):
        assert [len(part) for part in epoch] == [16, 16, 16]
        assert len({value for part in epoch for value in part}) == 48
    everything = {value for part in parts for epoch in part for value in epoch}
    assert len(everything) == (50 if shuffle else 48)
    assert (parts[0][0] != parts[0][1]) is shuffle


def test_a_shuffled_part_needs_a_seed_that_all_processes_have():
    chosen = options()
    chosen.Distributed.configureProcessId(0, 2)
    with pytest.raises(AssertionError, match=r"you must set poptorch.Options.randomSeed"):
        poptorch.DataLoader(chosen, Numbers(50), shuffle=True)


def test_a_stream_is_not_divided_among_processes():
    chosen = options()
    chosen.Distributed.configureProcessId(0, 2)
    with pytest.raises(AssertionError, match="not supported for IterableDatasets"):
        poptorch.DataLoader(chosen, Stream())
    loader = poptorch.DataLoader(
        chosen, Stream(), batch_size=5, auto_distributed_partitioning=False
    )
    assert read(loader) == list(range(10))


@pytest.mark.parametrize("mode", poptorch.DataLoaderMode)
def test_batches_of_a_sampler_are_joined(mode):
    sampler = torch.utils.data.BatchSampler(range(11), batch_size=2, drop_last=True)
    loader = poptorch.DataLoader(options(2), Numbers(11), batch_sampler=sampler, mode=mode)
    assert [batch.flatten().tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(loader) == 2
    assert loader.combinedBatchSize is None


def test_options_are_frozen():
    chosen = options()
    loader = poptorch.DataLoader(chosen, Numbers(4))
    assert loader.options is chosen
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        chosen.deviceIterations(2)
