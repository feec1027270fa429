"""Tests of blocks and strategies: which IPU and stage they give, and that modules keep working."""

import copy
import io

import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402
from poptorch.operators.placement import Placement, count_ipus, record  # noqa: E402


def run_blocks(strategy, *blocks):
    """Return the recorder of a run in which each block has one operator."""
    with record(strategy) as recorder:
        for user_id, ipu_id in blocks:
            with poptorch.Block(user_id, ipu_id):
                recorder.note_operator()
    return recorder


def test_a_model_without_blocks_is_on_one_ipu():
    with record(poptorch.PipelinedExecution()) as recorder:
        recorder.note_operator()
    assert (recorder.num_ipus, recorder.num_stages) == (1, 1)


def test_by_default_the_stage_is_the_ipu():
    recorder = run_blocks(poptorch.PipelinedExecution(), ("a", 0), ("b", 1), ("a", 0))
    assert recorder.used == [Placement(0, -1, 0), Placement(1, -1, 1), Placement(0, -1, 0)]
    assert (recorder.num_ipus, recorder.num_stages) == (2, 3)


def test_auto_increment_numbers_the_stages_of_new_blocks():
    strategy = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
    recorder = run_blocks(strategy, (None, 0), (None, 1), (None, 0))
    assert [(place.stage, place.ipu) for place in recorder.used] == [(1, 0), (2, 1), (3, 0)]


def test_explicit_stages_give_blocks_their_ipus():
    strategy = poptorch.PipelinedExecution(poptorch.Stage("a", "b").ipu(3), "c")
    recorder = run_blocks(strategy, ("a", None), ("c", None), ("b", None))
    assert [(place.stage, place.ipu) for place in recorder.used] == [(0, 3), (1, 1), (0, 3)]
    assert recorder.num_ipus == 4


def test_phases_give_blocks_their_phases():
    strategy = poptorch.ParallelPhasedExecution(
        poptorch.Phase(poptorch.Stage("a").ipu(0)), poptorch.Phase("b", "c")
    )
    strategy.phase(1).ipus(1)
    recorder = run_blocks(strategy, ("a", None), ("c", None))
    assert [(place.phase, place.ipu) for place in recorder.used] == [(0, 0), (1, 1)]


def test_a_block_that_no_stage_has_is_rejected():
    with pytest.raises(AssertionError, match=r"Unknown Block 'd' list of expected Blocks: \['c'\]"):
        run_blocks(poptorch.ShardedExecution("c"), ("d", 0))
    with pytest.raises(AssertionError, match="no IPU was specified for block a"):
        run_blocks(poptorch.ShardedExecution(), ("a", None))
    with pytest.raises(AssertionError, match="c associated with more than one stage"):
        poptorch.ShardedExecution("c", "c")


def test_an_operator_between_blocks_is_rejected():
    recorder = run_blocks(poptorch.PipelinedExecution(), ("a", 0))
    with pytest.raises(poptorch.Error, match="No active Block"):
        recorder.note_operator()


def test_a_module_begins_its_block_at_each_call_and_others_follow_it():
    module = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU(), torch.nn.ReLU())
    assert poptorch.BeginBlock(module[1], ipu_id=1) is module[1]
    with record(poptorch.PipelinedExecution()) as recorder:
        seen = []
        for each in module:
            each(torch.ones(1))
            seen.append(recorder.current.ipu)
    assert seen == [0, 1, 1]


def test_a_module_has_one_block_until_it_is_removed():
    module = torch.nn.Linear(2, 2)
    poptorch.BeginBlock(module, "a", 1)
    with pytest.raises(poptorch.Error, match="module has already been assigned to a block"):
        poptorch.BeginBlock(module, "b", 1)
    poptorch.removeBlocks(module)
    poptorch.BeginBlock(module, "b", 1)
    assert "BeginBlock(user_id=b, ipu_id=1)" in poptorch.module_repr(module)


def test_blocks_change_no_results_and_survive_copies_and_files():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    data = torch.ones(1, 2)
    expected = module(data)
    poptorch.BeginBlock(module[0], ipu_id=1)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for each in (module, copy.deepcopy(module), torch.load(file, weights_only=False)):
        assert torch.equal(each(data), expected)
        assert "(0): BeginBlock(user_id=None, ipu_id=1) Linear(" in poptorch.module_repr(each)


def test_a_text_without_blocks_is_that_of_torch():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU()))
    assert poptorch.module_repr(module) == repr(module)


def test_functions_may_be_blocks():
    @poptorch.BlockFunction(ipu_id=1)
    def double(value):
        return 2 * value

    assert double(3) == 6
    assert poptorch.BeginBlock(lambda value: value + 1, 1, 2)(3) == 4
    with pytest.raises(poptorch.Error, match=r"not an instance of torch.nn.Module or function"):
        poptorch.BeginBlock(3)


def test_devices_have_a_power_of_two_of_ipus():
    assert count_ipus(2, 4, False) == 8
    assert count_ipus(3, 1, True) == 4
    with pytest.raises(poptorch.Error, match=r"specifies the use of 3 IPUs.* a minimum of 4"):
        count_ipus(3, 1, False)
    with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(128\)"):
        count_ipus(64, 2, True)
