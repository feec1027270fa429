"""Tests of the queue policy in config.pbtxt: a timeout set by each client, or one for all
requests."""

import onnx
import pytest
from onnx import TensorProto, helper
from poprt import Compiler, Converter, cli
from poprt.triton.config import read_config
from poprt.triton.model_folder import ModelFolder
from sample_models import linear_model, make_model
from simipu import CompileError


@pytest.fixture(scope="module")
def compiled():
    return Compiler.compile(Converter(batch_size=4).convert(linear_model()))


def write(compiled, folder, **options):
    with ModelFolder(folder, **options) as held:
        held.write(compiled)
    return read_config(folder / "config.pbtxt").dynamic_batching.default_queue_policy


def sum_model() -> onnx.ModelProto:
    """Return the model y = x + the sum of the whole batch."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Add", ["x", "total"], ["y"]),
    ]
    rows = (TensorProto.FLOAT, ["n", 4])
    return make_model(nodes, {"x": rows}, {"y": rows}, {})


def read_policy(policy):
    return policy.timeout_action, policy.default_timeout_microseconds, policy.allow_timeout_override


def test_no_policy_is_written_by_default(compiled, tmp_path):
    """Any queue policy of Triton costs throughput."""
    write(compiled, tmp_path / "m")
    batching = read_config(tmp_path / "m" / "config.pbtxt").dynamic_batching
    assert not batching.HasField("default_queue_policy")


def test_a_bound_is_written_and_the_same_command_again_keeps_it(compiled, tmp_path):
    for _ in range(2):
        assert read_policy(write(compiled, tmp_path / "m", queue_timeout_ms=500)) == (
            0,
            500_000,
            True,
        )


def test_another_bound_than_that_of_a_kept_configuration_is_an_error(compiled, tmp_path):
    write(compiled, tmp_path / "m", queue_timeout_ms=500)
    message = (
        r"--queue_timeout_ms 700 asks for default_timeout_microseconds 700000 in its "
        r"dynamic_batching\.default_queue_policy, which has 500000; .*--overwrite_config"
    )
    with pytest.raises(CompileError, match=message):
        write(compiled, tmp_path / "m", queue_timeout_ms=700)
    policy = write(compiled, tmp_path / "m", queue_timeout_ms=700, overwrite_config=True)
    assert read_policy(policy) == (0, 700_000, True)


def test_a_model_whose_requests_are_not_batched_has_no_queue_to_bound(tmp_path):
    dependent = Compiler.compile(Converter(batch_size=4).convert(sum_model()))
    with pytest.raises(
        CompileError, match="--queue_timeout_ms needs a model whose requests Triton batches"
    ):
        write(dependent, tmp_path / "m", queue_timeout_ms=500)


def test_the_command_takes_the_bound_and_needs_a_folder_to_write_it_into(tmp_path, capsys):
    onnx.save(linear_model(), tmp_path / "m.onnx")
    words = ["-i", str(tmp_path / "m.onnx"), "--batch_size", "4", "--queue_timeout_ms", "250"]
    assert cli.main([*words, "--triton_model_dir", str(tmp_path / "m")]) == 0
    assert "default_timeout_microseconds: 250000 " in (tmp_path / "m" / "config.pbtxt").read_text()
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert "--queue_timeout_ms requires --triton_model_dir" in capsys.readouterr().err
