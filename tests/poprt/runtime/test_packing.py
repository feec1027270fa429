"""Tests of packing: samples of different lengths share runs, and the answers stay the same."""

import gc
import json
import threading

import numpy as np
import poprt
import pytest
from model_runtime import DataDesc, ModelRuntimeError
from onnx import TensorProto
from packable_models import (
    MAX_SAMPLES,
    PLACES,
    ROWS,
    row_sums_model,
    table_model,
    unpacked_sums_model,
)
from poprt import Compiler, runtime
from poprt.runtime import PackAlgorithm, PackRunnerConfig
from poprt.runtime.pack_algorithms import NO_PLACE, EndToEnd, FirstFit, NextFit
from poprt.runtime.pack_layout import PackLayout
from simipu import RunError
from waiting import PATIENCE_SECONDS

import popef

IN_ROW = [PackAlgorithm.next_fit, PackAlgorithm.first_fit]
MANY = 10_000


@pytest.fixture(scope="module")
def row_sums():
    return Compiler.compile(row_sums_model())


@pytest.fixture(scope="module")
def unpacked_sums():
    return Compiler.compile(unpacked_sums_model())


def single_row(algorithm=PackAlgorithm.next_fit, timeout_us=2_000, **further):
    config = PackRunnerConfig(timeout_microseconds=timeout_us, dynamic_input_name="ids", **further)
    config.algorithm = algorithm
    config.enable_input_single_row_mode("mask")
    return config


def sample(length, seed=0):
    ids = np.random.default_rng(seed).integers(1, 100, length, np.int32)
    return {"ids": ids, "mask": np.ones(length, np.int32)}


def describe(name, shape, dtype=popef.DataType.S32):
    return DataDesc(name, 4 * int(np.prod(shape)), tuple(shape), dtype)


def fill(places, lengths):
    """Place samples in order and return how many of them a run takes."""
    for count, length in enumerate(lengths):
        start = places.find(length)
        if start == NO_PLACE:
            return count
        places.take(start, length)
    return len(lengths)


@pytest.mark.parametrize("delimiter", [0, 1, 3])
@pytest.mark.parametrize("packing", [EndToEnd, FirstFit, NextFit])
def test_samples_lie_apart_and_within_the_run(packing, delimiter):
    rng = np.random.default_rng(delimiter)
    for _ in range(300):
        rows, room = int(rng.integers(1, 6)), int(rng.integers(1, 20))
        places, taken = packing(rows, room, delimiter), np.zeros(rows * room, int)
        for number, length in enumerate(rng.integers(1, room + 1, 40), 1):
            start = places.find(length)
            if start == NO_PLACE:
                continue
            places.take(start, length)
            assert not taken[start : start + length].any()
            taken[start : start + length] = number
            if packing is not EndToEnd:
                assert start // room == (start + length - 1) // room
                assert not start % room or not taken[start - delimiter : start].any()
    assert taken.any()


@pytest.mark.parametrize("delimiter", [0, 1])
def test_first_fit_takes_at_least_as_many_samples_as_next_fit_and_never_more_runs(delimiter):
    rng = np.random.default_rng(5)
    better = 0
    for _ in range(200):
        rows, room = int(rng.integers(1, 8)), int(rng.integers(4, 30))
        lengths = list(rng.integers(1, room + 1, 200))
        runs = {}
        for packing in (FirstFit, NextFit):
            left, runs[packing] = lengths, []
            while left:
                runs[packing].append(fill(packing(rows, room, delimiter), left))
                left = left[runs[packing][-1] :]
        assert runs[FirstFit][0] >= runs[NextFit][0]
        assert len(runs[FirstFit]) <= len(runs[NextFit])
        better += len(runs[FirstFit]) < len(runs[NextFit])
    assert better


def add_up(arrays):
    """Emulate a device that sums the ids of each number of the mask in a row."""
    ids, mask = arrays["ids"], arrays["mask"]
    keys = mask + np.arange(len(mask))[:, None] * (mask.max() + 1)
    sums = np.bincount(keys.ravel(), ids.ravel())
    return {"sums": np.where(mask > 0, sums[keys], 0).astype(np.int32)}


def add_up_unpacked(arrays):
    ids, lengths = arrays["ids"].ravel(), arrays["unpack_info"][:, 0]
    sums = np.append(np.cumsum(ids) - ids, ids.sum())
    ends = np.cumsum(lengths)
    return {"sums": (sums[ends] - sums[ends - lengths]).astype(np.int32)[:, None]}


@pytest.mark.parametrize("algorithm", list(PackAlgorithm))
def test_many_requests_get_the_answers_that_they_would_get_alone(algorithm):
    """Requests keep their order, runs keep their limits, and sums are over one sample alone."""
    rows, room, most = 8, 64, 20
    inputs = [describe("ids", (rows, room)), describe("mask", (rows, room))]
    config = PackRunnerConfig(max_valid_num=most, dynamic_input_name="ids", algorithm=algorithm)
    crosses = algorithm is PackAlgorithm.end_to_end
    if crosses:
        inputs.append(describe("unpack_info", (most, 1)))
    else:
        config.enable_input_single_row_mode("mask")
    outputs = [describe("sums", (most, 1) if crosses else (rows, room))]
    layout = PackLayout(inputs, outputs, config)
    rng = np.random.default_rng(int(algorithm))
    lengths = np.clip(rng.normal(20, 20, MANY), 1, room).astype(int)
    ids, ones = rng.integers(1, 1000, room + MANY, np.int32), np.ones(room, np.int32)
    expected = np.cumsum(ids)
    group, answers, fills = layout.open(), [], []

    def run():
        layout.seal(group)
        assert len(group.samples) <= most
        found = (add_up_unpacked if crosses else add_up)(group.arrays)
        for each in group.samples:
            layout.give(each, found)
            answers.append(each.outputs["sums"])
        fills.append(sum(each.lengths[0] for each in group.samples))

    for index, length in enumerate(lengths):
        given = {"ids": ids[index : index + length], "mask": ones[:length]}
        taken = layout.read(given, {"sums": np.zeros(1 if crosses else length, np.int32)})
        if not layout.put(group, taken):
            run()
            group = layout.open()
            assert layout.put(group, taken)
    run()
    assert len(answers) == MANY
    assert max(fills) <= rows * room
    ends = np.arange(MANY) + lengths - 1
    wanted = expected[ends] - np.append(0, expected)[:MANY]
    assert [len(each) for each in answers] == ([1] * MANY if crosses else list(lengths))
    np.testing.assert_array_equal(np.array([each[0] for each in answers]), wanted)
    np.testing.assert_array_equal(np.array([each[-1] for each in answers]), wanted)


@pytest.mark.parametrize("algorithm", IN_ROW)
def test_samples_of_a_row_are_numbered_in_the_mask(algorithm, row_sums):
    runner = runtime.Runner(row_sums, single_row(algorithm))
    waiting = []
    for index, length in enumerate([5, 2, 8, 1, 3, 7, 4, 4, 6, 1, 1, 1]):
        given = sample(length, index)
        places = {
            "sums": np.full(PLACES, -1, np.float32),
            "doubled": np.zeros((1, length), np.int32),
        }
        waiting.append((given, places, runner.execute_async(given, places)))
    for given, places, future in waiting:
        future.wait()
        length = len(given["ids"])
        np.testing.assert_array_equal(places["sums"][:length], np.full(length, given["ids"].sum()))
        np.testing.assert_array_equal(places["sums"][length:], -1)
        np.testing.assert_array_equal(places["doubled"][0], 2 * given["ids"])


def test_rows_are_crossed_where_the_model_takes_samples_apart(unpacked_sums):
    runner = runtime.Runner(unpacked_sums, PackRunnerConfig(timeout_microseconds=2_000))
    waiting = []
    for index, length in enumerate([5, 7, 8, 3, 1, 8, 8, 8, 2]):
        given = {
            "ids": sample(length, index)["ids"],
            "unpack_info": np.zeros(MAX_SAMPLES, np.int32),
        }
        places = {"sums": np.zeros(1, np.float32)}
        waiting.append((given, places, runner.executeAsync(given, places)))
    for given, places, future in waiting:
        future.wait()
        assert places["sums"][0] == given["ids"].sum()


def test_in_single_row_mode_unpack_info_says_where_the_next_sample_begins():
    inputs = [describe("ids", (2, 8)), describe("mask", (2, 8)), describe("unpack_info", (6, 1))]
    config = PackRunnerConfig(dynamic_input_name="ids", algorithm=PackAlgorithm.first_fit)
    config.enable_input_single_row_mode("mask", "unpack_info", 1)
    layout = PackLayout(inputs, [describe("logits", (6, 2))], config)
    group = layout.open()
    samples = [
        layout.read(sample(length), {"logits": np.zeros(2, np.int32)}) for length in (3, 6, 2)
    ]
    assert all(layout.put(group, each) for each in samples)
    layout.seal(group)
    assert [each.number for each in samples] == [0, 2, 1]
    assert list(group.arrays["unpack_info"][:, 0]) == [4, 4, 8, 0, 0, 0]
    assert group.arrays["mask"].tolist() == [[1, 1, 1, 0, 2, 2, 0, 0], [1, 1, 1, 1, 1, 1, 0, 0]]


def test_several_segments_have_lengths_of_their_own():
    inputs = [describe("query", (2, 4)), describe("text", (2, 10)), describe("unpack_info", (5, 2))]
    config = PackRunnerConfig(dynamic_group=[["query"], ["text"]])
    layout = PackLayout(inputs, [describe("score", (5, 1))], config)
    group = layout.open()
    for query, text in ((3, 7), (4, 9)):
        given = {"query": np.full(query, query, np.int32), "text": np.full(text, text, np.int32)}
        assert layout.put(group, layout.read(given, {"score": np.zeros(1, np.int32)}))
    given = {"query": np.ones(1, np.int32), "text": np.ones(5, np.int32)}
    assert not layout.put(group, layout.read(given, {}))
    layout.seal(group)
    assert group.arrays["unpack_info"].tolist() == [[3, 7], [4, 9], [0, 0], [0, 0], [0, 0]]
    assert group.arrays["query"].tolist() == [[3, 3, 3, 4], [4, 4, 4, 0]]


@pytest.mark.parametrize("mask", [[1, 1, 1, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0, 0, 1]])
def test_padding_is_removed_by_the_mask(mask, row_sums):
    config = single_row(timeout_us=0)
    config.enable_padding_remove_mode("mask", ["ids"])
    runner = runtime.Runner(row_sums, config)
    mask = np.array([mask], np.int32)
    ids = np.arange(1, 9, dtype=np.int32)[None]
    places = {"sums": np.zeros((ROWS, PLACES), np.float32), "doubled": np.zeros(PLACES, np.int32)}
    runner.execute({"ids": ids, "mask": mask}, places)
    kept = ids[mask != 0]
    np.testing.assert_array_equal(places["sums"].ravel()[:3], np.full(3, kept.sum()))
    np.testing.assert_array_equal(places["doubled"], [*2 * kept, 0, 0, 0, 0, 0])


def test_a_run_is_sent_when_it_has_as_many_samples_as_it_may_have(row_sums):
    config = single_row(timeout_us=10**12, max_valid_num=2)
    runner = runtime.Runner(row_sums, config)
    futures = [runner.execute_async(sample(1), {}) for _ in range(3)]
    for future in futures[:2]:
        future.wait(PATIENCE_SECONDS)
    assert not futures[2].done()
    runner.close()
    with pytest.raises(ModelRuntimeError, match="closed before"):
        futures[2].wait(PATIENCE_SECONDS)
    with pytest.raises(ModelRuntimeError, match="closed"):
        runner.execute({**sample(1)}, {})


def test_a_refused_value_fails_its_own_request_only():
    config = single_row()
    config.index_check = "error"
    runner = runtime.Runner(Compiler.compile(table_model()), config)
    futures = []
    for index in (3, 77, 4):
        ids, places = np.array([index], np.int32), {"found": np.zeros(1, np.float32)}
        futures.append(
            (runner.execute_async({"ids": ids, "mask": np.ones(1, np.int32)}, places), places)
        )
    futures[0][0].wait(PATIENCE_SECONDS)
    with pytest.raises(RunError):
        futures[1][0].wait(PATIENCE_SECONDS)
    futures[2][0].wait(PATIENCE_SECONDS)
    assert [places["found"][0] for _, places in futures] == [103, 0, 104]


def test_many_threads_share_runs(row_sums):
    runner, wrong = (
        runtime.Runner(row_sums, single_row(PackAlgorithm.first_fit, timeout_us=500)),
        [],
    )

    def ask(seed):
        for index in range(50):
            given = sample(1 + (seed + index) % PLACES, 50 * seed + index)
            places = {"sums": np.zeros(PLACES, np.float32)}
            runner.execute(given, places)
            if places["sums"][0] != given["ids"].sum():
                wrong.append(given)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_input_that_is_left_out_is_zeros_and_warned_of_once(caplog):
    inputs = [describe(name, (2, 4)) for name in ("ids", "mask", "position_ids")]
    layout = PackLayout(inputs, [describe("y", (2, 4))], single_row())
    for _ in range(2):
        layout.read(sample(3), {})
    assert [record.getMessage() for record in caplog.records] == [
        "input 'position_ids' is not given: its samples are zeros"
    ]


@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        ({"q": np.ones(1)}, {}, "input 'q': expected one of ids, mask"),
        ({"ids": np.ones(3, np.int32)}, {}, "input 'mask' is not given; a sample has ids, mask"),
        (sample(9), {}, "input 'ids': expected a sample of length 1 to 8, found 9"),
        (sample(0), {}, "expected a sample of length 1 to 8, found 0"),
        (
            {**sample(3), "mask": np.ones(4, np.int32)},
            {},
            "input 'mask' has length 4, those before it 3",
        ),
        ({**sample(3), "ids": np.ones(3)}, {}, r"expected int32 of one sample, shape \(length\)"),
        ({**sample(3), "ids": np.ones((2, 3), np.int32)}, {}, r"found int32 of \(2, 3\)"),
        (sample(3), {"q": np.ones(3)}, "output 'q': expected one of sums, doubled"),
        (
            sample(3),
            {"sums": np.ones(2, np.float32)},
            "output 'sums': expected float32, writable, with room",
        ),
        (sample(3), {"sums": np.broadcast_to(np.float32(1), 8)}, "read-only"),
    ],
)
def test_arrays_that_do_not_fit_are_named(inputs, outputs, reason, row_sums):
    runner = runtime.Runner(row_sums, single_row(timeout_us=0))
    with pytest.raises(ModelRuntimeError, match=reason):
        runner.execute_async(inputs, outputs)
    good = {"sums": np.zeros(2, np.float32)}
    runner.execute(sample(2), good)
    assert good["sums"][0] == sample(2)["ids"].sum()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"timeout_microseconds": -1}, "timeout_microseconds: expected 0 or more, found -1"),
        ({"algorithm": PackAlgorithm.end_to_end}, "crosses rows, which single-row mode forbids"),
        ({"algorithm": 7}, "expected one of next_fit, first_fit, end_to_end, found 7"),
        ({"mask_name": "q"}, "mask 'q': expected one of ids, mask"),
        ({"mask_name": ""}, "need mask_name"),
        ({"dynamic_input_name": "q"}, "dynamic input 'q': expected one of ids, mask"),
        ({"unpack_info_input_name": "mask"}, "neither rows and places|8 segments"),
        ({"unpack_info_input_name": "q"}, "unpack_info 'q': expected one of"),
    ],
)
def test_a_configuration_that_does_not_fit_the_model_is_named(change, reason, row_sums):
    config = single_row()
    for name, value in change.items():
        setattr(config, name, value)
    with pytest.raises(ModelRuntimeError, match=reason):
        runtime.Runner(row_sums, config)


def test_more_samples_than_unpack_info_has_room_for_are_refused(unpacked_sums):
    with pytest.raises(
        ModelRuntimeError, match="max_valid_num 7: input 'unpack_info' was compiled for 6"
    ):
        runtime.Runner(unpacked_sums, PackRunnerConfig(max_valid_num=7))


def test_a_model_that_pools_a_row_cannot_be_packed():
    with pytest.raises(ModelRuntimeError, match="results of the samples cannot be told apart"):
        PackLayout([describe("ids", (2, 4))], [describe("pooled", (2, 3))], PackRunnerConfig())


def test_a_mask_of_truths_cannot_number_samples():
    model = [describe("ids", (2, 4)), describe("mask", (2, 4), popef.DataType.BOOL)]
    with pytest.raises(ModelRuntimeError, match="mask 'mask' is bool, which cannot number"):
        PackLayout(model, [describe("y", (2, 4))], single_row())


def test_the_configuration_has_the_real_fields_and_is_open():
    config = PackRunnerConfig()
    config.algorithom = "accepted, and without effect"
    shown = json.loads(repr(config))
    assert shown["runnerType"] == 1
    assert shown["timeoutMicroseconds"] == shown["maxValidNum"] == shown["delimiterNum"] == 0
    assert config.compile_batch_size == -1
    assert config.algorithm is PackAlgorithm.next_fit
    assert isinstance(
        runtime.PackRunner(Compiler.compile(row_sums_model(TensorProto.FLOAT))), runtime.Runner
    )


def test_a_backend_packs_where_its_options_say_so():
    backend = poprt.Backend(row_sums_model(), runtime_options=single_row(timeout_us=0))
    (sums,) = backend.run(["sums"], sample(5))
    np.testing.assert_array_equal(sums, np.full(5, sample(5)["ids"].sum()))


def test_a_runner_that_is_dropped_leaves_no_thread(row_sums):
    before = set(threading.enumerate())
    runner = runtime.Runner(row_sums, single_row(timeout_us=10**12))
    future = runner.execute_async(sample(2), {})
    del runner
    gc.collect()
    assert any("packing" in thread.name for thread in set(threading.enumerate()) - before)
    del future
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if "poprt" in thread.name or "session" in thread.name:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
