"""Life of a thread that serves requests. What it does in a real fork is in test_forks.py."""

import threading

import pytest
from model_runtime import StoppedError, shutdown
from model_runtime.shutdown import ServingThread
from waiting import PATIENCE_SECONDS


class Session:
    def stop(self):
        pass

    def cancel(self):
        pass


def test_it_runs_until_what_it_serves_ends():
    thread, end, names = ServingThread(), threading.Event(), []

    def serve():
        names.append(threading.current_thread().name)
        end.wait(PATIENCE_SECONDS)
        thread.join()  # not from itself, which would never end

    assert not thread.has_ended
    thread.join()
    thread.start(serve, "m", Session())
    assert not thread.has_ended
    end.set()
    thread.join(PATIENCE_SECONDS)
    assert (thread.has_ended, names) == (True, ["m"])


def test_a_fork_loses_it_and_starts_it_again_under_its_name():
    thread, names = ServingThread(), []

    def serve():
        names.append(threading.current_thread().name)

    session = Session()
    thread.forget_parent()
    assert not thread.is_lost, "it was never started"
    thread.start(serve, "m", session)
    thread.join(PATIENCE_SECONDS)
    thread.forget_parent()
    thread.forget_parent()
    assert (thread.is_lost, thread.has_ended) == (True, False)
    thread.restart(serve, session)
    thread.join(PATIENCE_SECONDS)
    assert (thread.is_lost, names) == (False, ["m", "m"])


def test_it_does_not_start_while_the_interpreter_exits(monkeypatch):
    monkeypatch.setattr(shutdown, "is_exiting", lambda: True)
    thread = ServingThread()
    with pytest.raises(StoppedError, match="interpreter is exiting"):
        thread.start(lambda: None, "m", Session())
    assert not thread.has_ended
