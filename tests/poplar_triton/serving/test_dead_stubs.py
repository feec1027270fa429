"""Which lost instances are dead and which no longer exist; what the server serves decides."""

from __future__ import annotations

import pytest
from poplar_triton.errors import ServerError
from poplar_triton.serving.endpoint import ServedVersion
from poplar_triton.serving.healer import DeadStubClassifier
from poplar_triton.serving.stubs import Stub


class Server:
    """Server of version 1 of some models, each with its instance groups."""

    def __init__(self, *models, groups=(("m_0", 2),), silent=False):
        self.models, self.groups, self.silent = models, groups, silent
        self.lists = 0

    def list_models(self):
        self.lists += 1
        if self.silent:
            raise ServerError("the store is away")
        return [ServedVersion(model, "1", "READY", "") for model in self.models]

    def read_config(self, model, version=""):
        if self.silent:
            raise ServerError("no")
        if model not in self.models or version not in ("", "1"):
            return None
        return {"instance_group": [{"name": name, "count": count} for name, count in self.groups]}


def had_loaded(stub):
    return True


def stub(instance="m_0_0", model="m", version="1"):
    return Stub(7, 1, model, version, instance)


@pytest.mark.parametrize(
    ("server", "is_dead"),
    [
        (Server("m"), True),
        (Server("m", groups=()), True),
        (Server(silent=True), True),
        (Server("m", groups=(("other", 1),)), False),
        (Server("n"), False),
        (Server(), False),
    ],
)
def test_dead_is_what_is_served_still(server, is_dead):
    lost = stub()
    assert DeadStubClassifier(server).classify([lost], had_loaded) == (
        ({lost}, []) if is_dead else (set(), [lost])
    )


def test_a_model_that_never_loaded_is_not_dead_while_the_server_is_busy():
    """Triton answers nothing on the thread of a load over HTTP."""
    silent = DeadStubClassifier(Server(silent=True))
    assert silent.classify([stub()], lambda _: False) == (set(), [])


def test_another_version_is_another_matter():
    lost = stub(version="2")
    assert DeadStubClassifier(Server("m")).classify([lost], had_loaded) == (set(), [lost])


def test_an_instance_that_the_configuration_has_no_more_is_gone():
    lost = [stub("m_0_0"), stub("m_0_1"), stub("m_0_2"), stub("m_0_1_gpu1"), stub("m_0_2_gpu0")]
    dead, gone = DeadStubClassifier(Server("m")).classify(lost, had_loaded)
    assert dead == {lost[0], lost[1], lost[3]}
    assert gone == [lost[2], lost[4]]


def test_a_process_that_completed_a_configuration_is_gone():
    lost = stub("m")
    assert DeadStubClassifier(Server("m")).classify([lost], had_loaded) == (set(), [lost])


def test_where_the_stub_does_not_know_its_model_the_configurations_do():
    """The model was copied from a store into a folder with another name."""
    lost = stub("mine_1", model="folderQx12Ab")
    server = Server("m", groups=(("mine", 2),))
    near, far = DeadStubClassifier(server), DeadStubClassifier(server, is_remote=True)
    near.learn_models([lost])
    far.learn_models([lost])
    assert near.classify([lost], had_loaded) == (set(), [lost])
    dead, gone = far.classify([lost], had_loaded)
    assert gone == []
    assert [each.model for each in dead] == ["m"]


def test_the_store_is_asked_for_names_only_when_a_model_is_new():
    server = Server("m")
    dead_stubs = DeadStubClassifier(server, is_remote=True)
    for _ in range(3):
        dead_stubs.learn_models([stub()])
        dead_stubs.classify([stub("m_0_1")], had_loaded)
    assert server.lists == 1
    dead_stubs.learn_models([stub(), stub("n_0_0", model="n")])
    assert server.lists == 2
    server.silent = True
    dead_stubs.learn_models([stub("o_0_0", model="o")])
    DeadStubClassifier(server).learn_models([stub()])
    assert server.lists == 3
