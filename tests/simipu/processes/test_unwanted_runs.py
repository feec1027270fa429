"""Tests of runs that are ended because nobody waits for them: the next run is as if there had been
none before."""

import threading

import hostile_graphs as hostile
import numpy as np
import pytest
from simipu import Device, Engine, GraphOptions, SimulatedExecutable
from simipu.errors import RunCancelledError, RunUnwantedError
from waiting import PATIENCE_SECONDS

ONES = [np.ones(4, np.float32)]
LONG = [np.full(4, 2.0**31 - 1, np.float32)]


@pytest.fixture
def open_engine():
    engines = []

    def build(isolated=False):
        executable = hostile.make_executable(hostile.counted_loop())
        executable = SimulatedExecutable.deserialize(executable.serialize())
        options = GraphOptions(1, limit_seconds=PATIENCE_SECONDS)
        engine = Engine(
            executable, Device(executable.target), graph_options=options, isolated=isolated
        )
        engine.load(5)
        engines.append(engine)
        return engine

    yield build
    for engine in engines:
        engine.cancel()
        engine.unload()


@pytest.mark.parametrize(
    "isolated", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["here", "isolated"]
)
def test_an_unwanted_run_ends_and_the_next_is_computed(open_engine, isolated):
    engine = open_engine(isolated)
    for _ in range(2):
        began, errors = threading.Event(), []

        def run(began=began, errors=errors):
            began.set()
            try:
                engine.compute(5, LONG)
            except RunUnwantedError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        began.wait(PATIENCE_SECONDS)
        while thread.is_alive():  # the run may not have begun yet
            engine.end_run(lambda: True)
            thread.join(0.1)
        assert len(errors) == 1
        np.testing.assert_array_equal(engine.compute(5, ONES)[0], 2 * ONES[0])


def test_a_run_that_somebody_waits_for_goes_on(open_engine):
    engine, asked = open_engine(), threading.Event()

    def run():
        with pytest.raises(RunCancelledError):
            engine.compute(5, LONG)

    thread = threading.Thread(target=run)
    thread.start()
    engine.end_run(lambda: asked.set() or False)
    assert asked.wait(PATIENCE_SECONDS)
    assert thread.is_alive()
    engine.cancel()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
