"""Tests of poprt's runners in other processes: what a fork inherits, and what a pickle contains."""

import os
import pickle

import numpy as np
import pytest
from forked import ask_fork
from poprt import Compiler, CompilerOptions, Converter, runtime
from sample_models import linear_model

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def executable():
    return Compiler.compile(Converter(batch_size=2).convert(linear_model()))


def compute(runner):
    outputs = {e.name: np.zeros(e.shape, e.numpy_data_type()) for e in runner.get_execute_outputs()}
    runner.execute({"x": X}, outputs)
    return outputs


def double(runner):
    """Return the linear model's output z, which is twice x."""
    return compute(runner)["z"]


@pytest.mark.parametrize("make", [runtime.Runner, runtime.LightRunner, runtime.HostConcatRunner])
def test_a_runner_answers_in_a_fork_and_from_a_pickle(executable, make):
    runner = make(executable)
    np.testing.assert_array_equal(double(runner), 2 * X)
    np.testing.assert_array_equal(ask_fork(lambda: double(runner)), 2 * X)
    other = pickle.loads(pickle.dumps(runner))
    assert type(other) is make
    for each in (runner, other):
        np.testing.assert_array_equal(double(each), 2 * X)
        each.close()


def test_a_runner_that_packs_answers_in_a_fork_and_afterwards_in_its_parent(executable):
    config = runtime.PackRunnerConfig(1_000, dynamic_input_name="x", compile_batch_size=1)
    runner = runtime.PackRunner(executable, config)

    def ask():
        z = [np.zeros((1, 4), np.float32) for _ in X]
        waiting = [
            runner.execute_async({"x": row[None]}, {"z": each})
            for row, each in zip(X, z, strict=True)
        ]
        for each in waiting:
            each.wait()
        return np.concatenate(z)

    for answer in (ask(), ask_fork(ask), ask_fork(ask), ask()):
        np.testing.assert_array_equal(answer, 2 * X)
    ask_fork(runner.close)
    np.testing.assert_array_equal(ask(), 2 * X)
    runner.close()


def test_a_pickle_has_the_path_unless_the_weights_were_changed(tmp_path, monkeypatch):
    options = CompilerOptions(constant_weights=False)
    Compiler.compile(Converter(batch_size=2).convert(linear_model()), None, options).export(
        tmp_path / "m.popef"
    )
    monkeypatch.chdir(tmp_path)
    runner = runtime.LightRunner("m.popef")
    assert os.fsencode(tmp_path / "m.popef") in pickle.dumps(runner)
    for weight in runner.get_model_inputs():
        if weight.popef_contains_tensor_data:
            runner.set_input_anchor(weight.name, np.zeros(weight.shape, weight.numpy_data_type()))
    runner.update_weights()
    other = pickle.loads(pickle.dumps(runner))
    for each in (runner, other):
        np.testing.assert_array_equal(compute(each)["y"], np.zeros((2, 3), np.float32))
        each.close()
