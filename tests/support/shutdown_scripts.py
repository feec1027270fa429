"""Scripts that leave the interpreter in every state that runners, sessions and queues can be in,
and how each must end.

`run_scripts` runs each as `python -c` does. As a program this has imported everything and runs
scripts as forks of its own: JSON on stdin has the scripts, their files and how many run at a time,
JSON on stdout how they ended. A fork leaves by the end of the interpreter, not by os._exit.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import IO

from waiting import PATIENCE_SECONDS

IMPORTS = """
import atexit
at_last = []
atexit.register(lambda: [each() for each in at_last])  # before ours is registered: called after it
import gc, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from model_runtime import *
"""

BEGINNING = """
LINEAR, LOOP = sys.argv[1:]
four, one = {"x": np.ones((4, 4), np.float32)}, {"x": np.ones((1, 4), np.float32)}
endless = {"turns": np.array(10**9, np.int64)}
patient = ModelRunnerConfig(batching_dim=0, timeout_ns=0)
sample = {"x": np.ones((2, 4), np.float32)}

def open_packing(timeout_us=10**12):  # samples of a length, in one row of four places
    from poprt.runtime import PackRunnerConfig, Runner
    return Runner(LINEAR, PackRunnerConfig(timeout_us, dynamic_input_name="x", compile_batch_size=1))

def open_session(file, **config):
    session = Session(file, SessionConfig(**config))
    session.runLoadPrograms()
    return session

def serve(session):
    while session.runMainPrograms():
        pass

def start(target, *arguments, daemon=False):
    threading.Thread(target=target, args=arguments, daemon=daemon).start()

def endless_request(session):
    pipeline = RequestFlow(session, timeout_ns=None)
    pipeline.start()
    with pipeline.queues.lock:
        pipeline.enqueue_request({"turns": np.array([10**9], np.int64)}, 1)
        pipeline.set_request_outputs({"sum": None}, 1, lambda error: None)
    time.sleep(0.2)
    return pipeline
"""


@dataclass(frozen=True, slots=True)
class Script:
    """Code after the imports, and its expected end: its status, its whole output, and the last line
    on stderr, the only one that may follow a traceback."""

    source: str
    status: int = 0
    stdout: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a script: the status as subprocess returns it."""

    status: int
    seconds: float
    stdout: str
    stderr: str

    def find_fault(self, script: Script) -> str | None:
        """Return how the result differs from what the script expects; None if it does not."""
        if self.status == -signal.SIGKILL:
            return f"hung, and was killed after {self.seconds:.1f} s; stderr: {self.stderr}"
        last = self.stderr.strip().splitlines()[-1:] or [""]
        if (self.status, self.stdout.strip(), last[0]) != (
            script.status,
            script.stdout,
            script.error,
        ):
            return f"ended with {self.status}, stdout {self.stdout!r}, stderr: {self.stderr}"
        if self.stderr.count("Traceback") != bool(script.error) or (
            self.stderr and not script.error
        ):
            return f"wrote more to stderr than it should: {self.stderr}"
        return None


SCRIPTS = {
    "runner alive": Script("runner = ModelRunner(LINEAR); runner.execute(four)"),
    "runner alive, never used": Script("runner = ModelRunner(LINEAR)"),
    "runner dropped": Script("ModelRunner(LINEAR).execute(four)"),
    "runner dropped, never used": Script("ModelRunner(LINEAR)"),
    "runner dropped a while before": Script(
        "runner = ModelRunner(LINEAR); runner.execute(four); del runner; time.sleep(0.05)"
    ),
    "runner in a cycle": Script(
        "runner = ModelRunner(LINEAR); runner.itself = runner; runner.execute(four); del runner"
    ),
    "runner in a cycle, collected": Script(
        "runner = ModelRunner(LINEAR); runner.itself = runner; runner.execute(four); del runner; "
        "gc.collect()"
    ),
    "runner closed": Script(
        "runner = ModelRunner(LINEAR); runner.execute(four); runner.close(); runner.close()"
    ),
    "runner closed by with": Script("with ModelRunner(LINEAR) as runner: runner.execute(four)"),
    "result of a runner that is dropped": Script(
        "print(ModelRunner(LINEAR).executeAsync(four).wait()['z'][0, 0])", stdout="2.0"
    ),
    "several runners": Script(
        "runners = [ModelRunner(LINEAR) for _ in range(4)]\nfor each in runners: "
        "each.execute(four)\n"
        "del runners[::2], each\nruns = [each.executeAsync(four) for each in runners]"
    ),
    "several runs": Script(
        "runner = ModelRunner(LINEAR)\nfor _ in range(50): runner.execute(four)"
    ),
    "exception": Script(
        "runner = ModelRunner(LINEAR); runner.execute(four); raise ValueError('expected')",
        1,
        error="ValueError: expected",
    ),
    "exception holds the runner": Script(
        "def fail():\n    runner = ModelRunner(LINEAR); runner.execute(four); raise "
        "ValueError('expected')\nfail()",
        1,
        error="ValueError: expected",
    ),
    "exception in with": Script(
        "with ModelRunner(LINEAR) as runner: raise ValueError('expected')",
        1,
        error="ValueError: expected",
    ),
    "sys.exit": Script("runner = ModelRunner(LINEAR); runner.execute(four); sys.exit(3)", 3),
    "run in flight": Script(
        "runner = ModelRunner(LOOP); run = runner.executeAsync(endless); time.sleep(0.2)"
    ),
    "run just begun": Script("runner = ModelRunner(LOOP); run = runner.executeAsync(endless)"),
    "run in flight, runner dropped": Script(
        "runner = ModelRunner(LOOP); runner.executeAsync(endless); time.sleep(0.2); del runner"
    ),
    "run in flight, exception": Script(
        "runner = ModelRunner(LOOP); run = runner.executeAsync(endless); time.sleep(0.2); raise "
        "ValueError('expected')",
        1,
        error="ValueError: expected",
    ),
    "run in flight, Ctrl-C": Script(
        "start(lambda: time.sleep(0.3) or signal.pthread_kill(threading.main_thread().ident, "
        "signal.SIGINT))\nrunner = ModelRunner(LOOP); runner.execute(endless)",
        -signal.SIGINT,
        error="KeyboardInterrupt",
    ),
    "run in flight, another waits": Script(
        "runner = ModelRunner(LOOP); runs = [runner.executeAsync(endless) for _ in range(3)]; "
        "time.sleep(0.2)"
    ),
    "request waits for ever": Script(
        "runner = ModelRunner(LINEAR, patient); wait = runner.executeAsync(one)"
    ),
    "request waits for ever, runner dropped": Script(
        "ModelRunner(LINEAR, patient).executeAsync(one)"
    ),
    "request waits for ever, after runs": Script(
        "runner = ModelRunner(LINEAR, patient); runner.execute(four); wait = "
        "runner.executeAsync(one)"
    ),
    "thread waits for a request for ever": Script(
        "runner = ModelRunner(LINEAR, patient)\ndef wait():\n    try: runner.execute(one)\n    "
        "except StoppedError: print('stopped')\nstart(wait)",
        stdout="stopped",
    ),
    "pool waits for a request for ever": Script(
        "runner = ModelRunner(LINEAR, patient); pool = ThreadPoolExecutor(2); "
        "pool.submit(runner.execute, one)"
    ),
    "daemon waits for a request for ever": Script(
        "runner = ModelRunner(LINEAR, patient); start(runner.executeAsync(one).wait, 10**6, "
        "daemon=True)"
    ),
    "thread goes on after the main thread": Script(
        "runner = ModelRunner(LINEAR)\ndef work():\n    for _ in range(8): time.sleep(0.1); last = "
        "runner.execute(four)\n    print(last['z'][0, 0])\nstart(work)",
        stdout="2.0",
    ),
    "session's own thread": Script(
        "session = open_session(LINEAR); queues = "
        "session.createQueueManager(timeout_ns=0)\nstart(serve, session)"
    ),
    "session's own thread, before it waits": Script(
        "session = open_session(LINEAR); queues = session.createQueueManager(timeout_ns=0)\n"
        "start(lambda: time.sleep(0.3) or serve(session))"
    ),
    "session's own daemon": Script(
        "session = open_session(LINEAR); queues = "
        "session.createQueueManager(timeout_ns=0)\nstart(serve, session, daemon=True)"
    ),
    "session's own daemon, rows wait": Script(
        "session = open_session(LINEAR); queues = session.createQueueManager(timeout_ns=0)\n"
        "start(serve, session, daemon=True)\nqueues.inputQueue('x').enqueue(one['x']); "
        "queues.outputQueue('z').enqueue(None, 1)"
    ),
    "two threads of a session": Script(
        "session = open_session(LINEAR); queues = session.createQueueManager(timeout_ns=0); "
        "written = threading.Event()\ndef feed():\n    time.sleep(0.6)\n    with "
        "queues.lock:\n        queues.inputQueue('x').enqueue(four['x'])\n        "
        "queues.outputQueue('y').enqueue(None, 4); queues.outputQueue('z').enqueue(None, 4, "
        "written.set)\n    print(written.wait(5))\nstart(serve, session); start(feed)",
        stdout="True",
    ),
    "daemon computes all the time": Script(
        "session = open_session(LINEAR)\ndef compute():\n    while True: "
        "session.run(four)\nstart(compute, daemon=True)\ntime.sleep(0.1)"
    ),
    "daemon in an endless run": Script(
        "session = open_session(LOOP); start(session.run, {'turns': np.array([10**9], np.int64)}, "
        "daemon=True)\ntime.sleep(0.2)"
    ),
    "session alive": Script("session = open_session(LINEAR); session.run(four)"),
    "session dropped": Script("open_session(LINEAR).run(four)"),
    "session never bound": Script(
        "session = Session(LINEAR, SessionConfig(policy=LaunchPolicy.Deferred))"
    ),
    "pipeline alive": Script(
        "pipeline = RequestFlow(open_session(LINEAR), timeout_ns=0); pipeline.start()"
    ),
    "pipeline never started": Script("pipeline = RequestFlow(open_session(LINEAR), timeout_ns=0)"),
    "packing, idle": Script("runner = open_packing(); runner.execute_async(sample, {})"),
    "packing, dropped": Script("open_packing().execute_async(sample, {})"),
    "packing, answered": Script(
        "runner = open_packing(1); z = np.zeros((2, 4), np.float32); runner.execute(sample, {'z': "
        "z}); "
        "print(z.sum())",
        stdout="16.0",
    ),
    "packing, in threads that outlive the main one": Script(
        "runner = open_packing(300_000)\n"
        "def ask(): runner.execute(sample, {}); print('answered')\n"
        "start(ask)",
        stdout="answered",
    ),
    "packing, closed with work in flight": Script(
        "runner = open_packing(); future = runner.execute_async(sample, {}); runner.close()\n"
        "try: future.wait()\nexcept StoppedError: print('stopped')",
        stdout="stopped",
    ),
    "isolated, idle": Script("session = open_session(LINEAR, isolated=True); session.run(four)"),
    "isolated, dropped": Script("open_session(LINEAR, isolated=True).run(four)"),
    "isolated, in flight": Script("pipeline = endless_request(open_session(LOOP, isolated=True))"),
    "isolated, in flight, exception": Script(
        "pipeline = endless_request(open_session(LOOP, isolated=True)); raise "
        "ValueError('expected')",
        1,
        error="ValueError: expected",
    ),
    "isolated, in flight in a daemon": Script(
        "session = open_session(LOOP, isolated=True)\n"
        "start(session.run, {'turns': np.array([10**9], np.int64)}, daemon=True); time.sleep(0.2)"
    ),
    "atexit runs a model before the end": Script(
        "runner = ModelRunner(LINEAR); atexit.register(lambda: print(runner.execute(four)['z'][0, "
        "0]))",
        stdout="2.0",
    ),
    "atexit runs a model a while after all threads ended": Script(
        "runner = ModelRunner(LINEAR); start(time.sleep, 0.1)\n"
        "atexit.register(lambda: time.sleep(0.7) or print(runner.execute(four)['z'][0, 0]))",
        stdout="2.0",
    ),
    "atexit runs a model after the end": Script(
        "session = open_session(LINEAR); at_last.append(lambda: print(session.run(four)['z'][0, "
        "0]))",
        stdout="2.0",
    ),
    "atexit asks a runner after the end": Script(
        "runner = ModelRunner(LINEAR)\ndef ask():\n    try: runner.execute(four)\n    except "
        "StoppedError: print('stopped')\nat_last.append(ask)",
        stdout="stopped",
    ),
    "atexit makes a runner after the end": Script(
        "def make():\n    try: ModelRunner(LINEAR)\n    except StoppedError: "
        "print('stopped')\nat_last.append(make)",
        stdout="stopped",
    ),
    "finalizer runs a model": Script(
        "class Last:\n    def __del__(self): self.session.run(self.x)\n"
        "last = Last(); last.session = open_session(LINEAR); last.x = four; del last"
    ),
}


def run_scripts(
    scripts: Sequence[Script], files: Sequence[str], jobs: int, python: str = sys.executable
) -> list[Ended]:
    """Run scripts in interpreters of their own, `jobs` of them at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda script: _run_script(script, files, python), scripts))


def _run_script(script: Script, files: Sequence[str], python: str) -> Ended:
    began = time.monotonic()
    command = [python, "-c", IMPORTS + BEGINNING + script.source, *files]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        # Not pipes, which an engine's process might hold open for a moment after the script has
        # ended.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            status = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        return Ended(status, time.monotonic() - began, _read(out), _read(err))


def fork_scripts(
    scripts: Sequence[Script], files: Sequence[str], jobs: int, python: str = sys.executable
) -> list[Ended]:
    """Run scripts in forks of one process, `jobs` of them at a time."""
    # ONNX Runtime's telemetry has a thread from its import on, which a fork lacks and whose end it
    # would wait for.
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [python, __file__],
        input=json.dumps([[script.source for script in scripts], files, jobs]),
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=True,
    )
    return [Ended(**fields) for fields in json.loads(done.stdout)]


def find_faults(names: Iterable[str], ended: Iterable[Ended]) -> list[str]:
    """Return the name and fault of each script that did not end as it should."""
    faults = ((name, end.find_fault(SCRIPTS[name])) for name, end in zip(names, ended, strict=True))
    return [f"{name}: {fault}" for name, fault in faults if fault]


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


_open_file = partial(tempfile.TemporaryFile, "w+")


@dataclass(frozen=True, slots=True)
class _Fork:
    number: int
    out: IO[str] = field(default_factory=_open_file)
    err: IO[str] = field(default_factory=_open_file)
    began: float = field(default_factory=time.monotonic)

    def end(self, status: int) -> Ended:
        return Ended(status, time.monotonic() - self.began, _read(self.out), _read(self.err))


def _fork_all(sources: Sequence[str], files: Sequence[str], jobs: int) -> str | None:
    """Fork for each script and report at last; in a fork, return the code to run."""
    waiting, running = list(enumerate(sources)), dict[int, _Fork]()
    ended = dict[int, Ended]()
    while waiting or running:
        while waiting and len(running) < jobs:
            number, source = waiting.pop(0)
            fork = _Fork(number)
            pid = os.fork()
            if not pid:
                null = os.open(os.devnull, os.O_RDONLY)
                for descriptor, replaced in (
                    (null, 0),
                    (fork.out.fileno(), 1),
                    (fork.err.fileno(), 2),
                ):
                    os.dup2(descriptor, replaced)
                sys.argv[1:] = files
                return source
            running[pid] = fork
        for pid, fork in list(running.items()):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                ended[fork.number] = running.pop(pid).end(os.waitstatus_to_exitcode(status))
            elif time.monotonic() > fork.began + PATIENCE_SECONDS:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    print(json.dumps([asdict(ended[number]) for number in range(len(sources))]))
    return None


if __name__ == "__main__":
    exec(IMPORTS)
    # A fork would otherwise search, and so copy, what was imported here.
    gc.collect()
    gc.freeze()
    source = _fork_all(*json.load(sys.stdin))
    if source is not None:
        exec(BEGINNING + source)
