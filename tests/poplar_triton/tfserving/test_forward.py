"""Requests on their way to Triton, for which a small server answers as its test says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from played_triton import METHODS, UNKNOWN, Triton, refuse
from poplar_triton.tfserving import forward
from poplar_triton.tfserving.forward import ForwardedServable, TritonModels
from poplar_triton.tfserving.models import (
    BY_DTYPE,
    Code,
    ModelSpec,
    ServingError,
    TensorSpec,
    VersionState,
    VersionStatus,
)
from poplar_triton.tfserving.settings import ModelSource, VersionPolicy
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype
from waiting import PATIENCE_SECONDS, wait_until

NEWEST = ModelSpec("m")
ROW = np.array([[1, 2]], np.float32)


class Asker:
    """Call with so many seconds left; `give_up` cancels it.

    `waits` has an entry for each time its thread waits, which says whether it still waits.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._callbacks: list[Callable[[], None]] = []
        self._is_given_up = False
        self.waits: list[bool] = []

    def seconds_left(self) -> float | None:
        return self._seconds

    def is_wanted(self) -> bool:
        return True

    def when_given_up(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        if self._is_given_up:
            callback()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self.waits.append(True)
        yield
        self.waits[-1] = False

    def give_up(self) -> None:
        self._is_given_up = True
        for callback in self._callbacks:
            callback()


Begin = Callable[..., tuple[Triton, TritonModels]]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Yield a function that makes a server and the object that forwards to it."""
    with ExitStack() as stack:

        def start(sources: Sequence[ModelSource] = ()) -> tuple[Triton, TritonModels]:
            triton = Triton()
            triton.start()
            stack.callback(triton.stop)
            models = TritonModels(f"127.0.0.1:{triton.port}", sources)
            stack.callback(models.close)
            return triton, models

        yield start


def predict(
    models: TritonModels, spec: ModelSpec = NEWEST, call: Asker | None = None
) -> ForwardedServable:
    call = call or Asker()
    servable = models.find(spec, call)
    answer = servable.predict({"x": ROW}, [], call)
    np.testing.assert_array_equal(answer["x"], ROW)
    return servable


def refusal(call: Callable[..., Any], *arguments: Any) -> tuple[Code, str]:
    with pytest.raises(ServingError) as raised:
        call(*arguments)
    return raised.value.code, str(raised.value)


def test_a_signature_is_what_metadata_and_configuration_say(begin):
    triton, models = begin()
    triton.tensors = [("x", "FP32", [-1, 2]), ("words", "BYTES", [-1]), ("half", "FP16", [3])]
    triton.optional = {"words"}
    signature = models.find(NEWEST, Asker()).signature
    assert signature.inputs == signature.outputs
    assert list(signature.inputs.items()) == [
        ("x", TensorSpec(np.dtype(np.float32), (-1, 2))),
        ("words", TensorSpec(np.dtype(object), (-1,))),
        ("half", TensorSpec(np.dtype(np.float16), (3,))),
    ]
    assert signature.optional == {"words"}


def test_a_type_without_a_way_to_send_it_is_refused_by_name(begin):
    triton, models = begin()
    triton.tensors = [("brain", "BF16", [2])]
    code, text = refusal(models.find, ModelSpec("m"), Asker())
    assert code is Code.UNIMPLEMENTED
    assert "input 'brain'" in text
    assert "found BF16" in text


def make_values(dtype: np.dtype) -> np.ndarray:
    if dtype.hasobject:
        return np.array([[b"", b"\0\xff"], [b"word", "é".encode()], [b"x" * 300, b"\n"]], object)
    bits = np.random.default_rng(0).integers(0, 256, 6 * dtype.itemsize, np.uint8)
    return (
        (bits % 2).astype(bool).reshape(3, 2)
        if dtype.kind == "b"
        else bits.view(dtype).reshape(3, 2)
    )


@pytest.mark.parametrize("dtype", BY_DTYPE, ids=str)
def test_values_of_every_type_come_back_bit_for_bit(dtype, begin):
    triton, models = begin()
    triton.tensors = [("x", np_to_triton_dtype(dtype), [-1, -1])]
    values = make_values(dtype)
    servable = models.find(ModelSpec("m"), Asker())
    strided, repeated = values[::2, ::-1], np.broadcast_to(values[:1, :1], (4, 5))
    for array in (values, values[:0], strided, repeated):
        answer = (servable.predict({"x": array}, [], Asker()))["x"]
        assert (answer.dtype, answer.shape) == (dtype, array.shape)
        if dtype.hasobject:
            assert answer.tolist() == array.tolist()
        else:
            assert answer.tobytes() == array.tobytes()


def test_only_the_outputs_that_are_asked_for_are_asked_for(begin):
    triton, models = begin()
    servable = models.find(ModelSpec("m", 1), Asker())
    servable.predict({"x": ROW}, ["x", "y"], Asker())
    request = triton.asked[-1][1]
    assert [output.name for output in request.outputs] == ["x", "y"]
    assert (request.model_name, request.model_version) == ("m", "1")


def test_signatures_are_fetched_again_after_a_while_or_a_refusal(monkeypatch, begin):
    triton, models = begin()
    monkeypatch.setattr(forward, "FRESH_SECONDS", PATIENCE_SECONDS)
    for _ in range(5):
        predict(models)
    assert triton.count("ModelMetadata") == 1
    for code in ("INVALID_ARGUMENT", "NOT_FOUND"):
        before = triton.count("ModelMetadata")
        triton.plan["ModelInfer"] = refuse(code, "not so")
        assert refusal(predict, models) == (Code[code], "not so")
        del triton.plan["ModelInfer"]
        predict(models)
        assert triton.count("ModelMetadata") == before + 1


def test_a_model_that_was_loaded_anew_is_seen(monkeypatch, begin):
    triton, models = begin()
    monkeypatch.setattr(forward, "FRESH_SECONDS", 0)
    predict(models)
    triton.tensors = [("new", "INT32", [1])]
    assert models.find(NEWEST, Asker()).signature.inputs.keys() == {"new"}


def test_many_that_wait_ask_once(begin):
    triton, models = begin()

    def late(request: Any) -> Any:
        triton.released.wait(PATIENCE_SECONDS)
        return triton.answer_ModelMetadata(request)

    triton.plan["ModelMetadata"] = late
    with ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(models.find, NEWEST, Asker()) for _ in range(16)]
        wait_until(
            lambda: models._asked[("m", None)]._condition._waiters, "somebody waits for the first"
        )
        triton.released.set()
        assert {each.result(PATIENCE_SECONDS).version for each in waiting} == {2}
    assert triton.count("ModelMetadata") == 1


def test_an_error_is_raised_in_all_waiting_threads(begin):
    triton, models = begin()
    triton.plan["ModelMetadata"] = triton.wait
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(models.find, NEWEST, Asker()) for _ in range(4)]
        wait_until(lambda: triton.count("ModelMetadata"), "it is asked")
        triton.released.set()
        for each in waiting:
            with pytest.raises(ServingError, match="released"):
                each.result(PATIENCE_SECONDS)
    assert not models._asked


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_codes_and_messages_are_passed_on(code, begin):
    triton, models = begin()
    triton.plan["ModelInfer"] = refuse(code.name, "not é\n so")
    found, text = refusal(predict, models)
    assert found is code
    where = f"Triton at 127.0.0.1:{triton.port}: " if code is Code.UNAVAILABLE else ""
    assert text == f"{where}not é\n so"


@pytest.mark.parametrize("code", ["NOT_FOUND", "UNAVAILABLE", "INTERNAL"])
@pytest.mark.parametrize("method", METHODS[:3])
def test_a_model_that_triton_does_not_have_is_not_found(code, method, begin):
    triton, models = begin()
    triton.plan[method] = refuse(code, UNKNOWN)
    latest = refusal(predict, models)
    assert latest == (Code.NOT_FOUND, "Servable not found for request: Latest(m)")
    specific = refusal(predict, models, ModelSpec("m", 1))
    assert specific == (Code.NOT_FOUND, "Servable not found for request: Specific(m, 1)")


@pytest.mark.parametrize("version", [-1, -(2**63), 2**63, 7, 10**30])
def test_unknown_versions_are_not_found(version, begin):
    _, models = begin()
    expected = Code.NOT_FOUND, f"Servable not found for request: Specific(m, {version})"
    assert refusal(models.find, ModelSpec("m", version), Asker()) == expected
    expected = Code.NOT_FOUND, f"Could not find version {version} of model m"
    assert refusal(models.list_versions, ModelSpec("m", version), Asker()) == expected


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "\x1b[2J", "n" * 1_000_000])
def test_names_that_no_model_has_do_not_reach_triton(name, begin):
    triton, models = begin()
    for call in (models.find, models.list_versions):
        assert refusal(call, ModelSpec(name), Asker())[0] is Code.NOT_FOUND
    assert triton.asked == []
    empty = refusal(models.find, ModelSpec(""), Asker())
    assert empty == (Code.INVALID_ARGUMENT, "ModelSpec has no name specified.")


def test_the_newest_version_is_tritons_to_choose(begin):
    triton, models = begin()
    servable = models.find(ModelSpec("m"), Asker())
    assert servable.version == 2
    triton.versions = [2, 3]
    servable.predict({"x": ROW}, [], Asker())
    assert servable.version == 3
    assert (predict(models, ModelSpec("m", 2))).version == 2


SOURCES = (
    ModelSource("m", Path("/none"), VersionPolicy(1), {"stable": 1, "canary": 2}),
    ModelSource(
        "pinned", Path("/none"), VersionPolicy(None, frozenset({1, 9})), {"old": 1, "gone": 9}
    ),
    ModelSource("all", Path("/none"), VersionPolicy(None)),
)


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        (ModelSpec("m"), 2),
        (ModelSpec("m", 2), 2),
        (ModelSpec("m", label="canary"), 2),
        (ModelSpec("pinned"), 1),
        (ModelSpec("pinned", label="old"), 1),
        (ModelSpec("all", 1), 1),
    ],
)
def test_labels_and_policies_choose_among_tritons_versions(spec, version, begin):
    _, models = begin(SOURCES)
    assert predict(models, spec).version == version


@pytest.mark.parametrize(
    ("spec", "code", "said"),
    [
        (ModelSpec("m", 1), Code.NOT_FOUND, "Servable not found for request: Specific(m, 1)"),
        (
            ModelSpec("m", label="stable"),
            Code.NOT_FOUND,
            "Servable not found for request: Specific(m, 1)",
        ),
        (
            ModelSpec("pinned", 2),
            Code.NOT_FOUND,
            "Servable not found for request: Specific(pinned, 2)",
        ),
        (
            ModelSpec("pinned", label="gone"),
            Code.NOT_FOUND,
            "Servable not found for request: Specific(pinned, 9)",
        ),
        (
            ModelSpec("m", label="x"),
            Code.INVALID_ARGUMENT,
            "Unrecognized servable version label: x",
        ),
        (ModelSpec("other"), Code.NOT_FOUND, "Servable not found for request: Latest(other)"),
    ],
)
def test_models_without_a_source_are_not_served(spec, code, said, begin):
    _, models = begin(SOURCES)
    assert refusal(models.find, spec, Asker()) == (code, said)


ALL = [
    VersionStatus(10, VersionState.END, Code.INTERNAL, "no such file"),
    VersionStatus(6, VersionState.UNKNOWN),
    VersionStatus(5, VersionState.UNLOADING),
    VersionStatus(4, VersionState.LOADING),
    VersionStatus(3, VersionState.END),
    VersionStatus(2, VersionState.AVAILABLE),
    VersionStatus(1, VersionState.AVAILABLE),
]


def test_versions_stand_as_the_index_of_the_repository_says(begin):
    triton, models = begin()
    assert models.list_versions(ModelSpec("m"), Asker()) == ALL
    assert models.list_versions(ModelSpec("m", 10), Asker()) == ALL[:1]
    for name in ("never_loaded", "none"):
        expected = Code.NOT_FOUND, f"Could not find any versions of model {name}"
        assert refusal(models.list_versions, ModelSpec(name), Asker()) == expected
    triton.plan["RepositoryIndex"] = refuse("INTERNAL", "the store is away")
    assert refusal(models.list_versions, ModelSpec("m"), Asker()) == (
        Code.INTERNAL,
        "the store is away",
    )


def test_versions_that_a_policy_leaves_out_are_not_available(begin):
    _, models = begin(SOURCES)
    assert models.list_versions(ModelSpec("m"), Asker()) == ALL[:-1]
    expected = Code.NOT_FOUND, "Could not find version 1 of model m"
    assert refusal(models.list_versions, ModelSpec("m", label="stable"), Asker()) == expected


@pytest.mark.parametrize(("sources", "versions"), [((), [2, 1]), (SOURCES, [2])])
def test_without_access_to_the_index_readiness_is_reported(sources, versions, begin):
    triton, models = begin(sources)
    text = "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
    triton.plan["RepositoryIndex"] = refuse("UNAVAILABLE", text)
    expected = [VersionStatus(version, VersionState.AVAILABLE) for version in versions]
    assert models.list_versions(ModelSpec("m"), Asker()) == expected
    assert models.list_versions(ModelSpec("m", 2), Asker()) == expected[:1]
    assert refusal(models.list_versions, ModelSpec("m", 7), Asker())[0] is Code.NOT_FOUND
    triton.plan["ModelMetadata"] = refuse("NOT_FOUND", UNKNOWN)
    assert refusal(models.list_versions, ModelSpec("m"), Asker())[0] is Code.NOT_FOUND


def test_a_deadline_goes_with_the_request(begin):
    triton, models = begin()
    predict(models, NEWEST, Asker(PATIENCE_SECONDS))
    assert 0 < triton.seconds[-1] <= PATIENCE_SECONDS + 1  # gRPC rounds up
    predict(models)
    assert triton.seconds[-1] > 1e9
    triton.plan["ModelInfer"] = triton.wait
    for seconds in (0.2, 0.0, -1.0):
        assert refusal(predict, models, NEWEST, Asker(seconds))[0] is Code.DEADLINE_EXCEEDED


def test_another_call_may_be_worked_at_while_triton_is_asked(begin):
    triton, models = begin()
    asker = Asker()
    heard = []

    def answer(method: str) -> Callable[[Any], Any]:
        def see(request: Any) -> Any:
            wait_until(lambda: asker.waits[-1:] == [True], "its thread waits")
            heard.append((method, len(asker.waits)))
            return getattr(triton, f"answer_{method}")(request)

        return see

    triton.plan = {method: answer(method) for method in METHODS}
    predict(models, NEWEST, asker)
    models.list_versions(NEWEST, asker)
    assert heard == [
        ("ModelMetadata", 1),
        ("ModelConfig", 1),
        ("ModelInfer", 2),
        ("RepositoryIndex", 3),
    ]


def test_who_gives_up_has_triton_give_up(begin):
    triton, models = begin()
    triton.plan["ModelInfer"] = triton.wait
    asker = Asker()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(predict, models, NEWEST, asker)
        wait_until(lambda: triton.count("ModelInfer"), "it is asked")
        asker.give_up()
        with pytest.raises(ServingError, match="cancelled") as raised:
            waiting.result(PATIENCE_SECONDS)
    assert raised.value.code is Code.CANCELLED
    wait_until(lambda: "ModelInfer" in triton.ended, "Triton hears of it")


def test_a_triton_that_says_nothing_of_a_model_is_not_waited_for(monkeypatch, begin):
    triton, models = begin()
    monkeypatch.setattr(forward, "ASK_SECONDS", 0.2)
    triton.plan["ModelConfig"] = triton.wait
    code, text = refusal(models.find, ModelSpec("m"), Asker())
    assert code is Code.UNAVAILABLE
    assert text == (
        f"Triton at 127.0.0.1:{triton.port}: expected a response to ModelConfig within 0.2 s"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"datatype": "BF16"},
        {"datatype": "BYTES"},
        {"shape": [3]},
        {"shape": [-7]},
        {"contents": b"123"},
        {"contents": None},
        {"version": "seven"},
    ],
    ids=str,
)
def test_answers_that_are_none_are_an_error(change, begin):
    triton, models = begin()

    def answer(_: Any) -> Any:
        output = {"name": "x", "datatype": "FP32", "shape": [1, 2]}
        contents = change.get("contents", ROW.tobytes())
        return service_pb2.ModelInferResponse(
            model_version=change.get("version", "2"),
            outputs=[{key: change.get(key, value) for key, value in output.items()}],
            raw_output_contents=[] if contents is None else [contents],
        )

    triton.plan["ModelInfer"] = answer
    code, text = refusal(predict, models)
    assert code is Code.INTERNAL
    assert "model 'm': expected outputs of the declared types and shapes from Triton" in text


def test_a_triton_that_was_away_is_asked_again(begin):
    triton, models = begin()
    predict(models)
    triton.stop()
    for call in (
        models.find,
        models.list_versions,
        lambda spec, asker: predict(models, spec, asker),
    ):
        code, text = refusal(call, ModelSpec("m", 1), Asker())
        assert code is Code.UNAVAILABLE
        assert text.startswith(f"Triton at 127.0.0.1:{triton.port}: ")
    triton.start()
    while True:
        try:
            predict(models)
            break
        except ServingError as error:
            assert error.code is Code.UNAVAILABLE  # noqa: PT017  until it is back
            time.sleep(0.05)


def test_many_models_do_not_fill_the_memory(monkeypatch, begin):
    _, models = begin()
    monkeypatch.setattr(forward, "_MAX_KNOWN", 10)
    for number in range(35):
        predict(models, ModelSpec(f"model{number}"))
    assert len(models._known) <= 10
