"""Which lost instances are dead, and which are no more: what the server serves decides."""

from __future__ import annotations

import pytest
from commands.errors import ServerError
from commands.serving.endpoint import ServedVersion
from commands.serving.inquest import Inquest
from commands.serving.stubs import Stub


class Server:
    """Says what it is told to."""

    def __init__(self, *models, groups=(("m_0", 2),), silent=False, mute=False):
        self.models = [ServedVersion(*model, "") for model in models]
        self.groups, self.silent, self.mute = groups, silent, mute

    def list_models(self, *, served):
        assert served, "what a store has is not asked: it may be away"
        if self.silent:
            raise ServerError("no")
        return self.models

    def read_config(self, model):
        if self.mute:
            raise ServerError("no")
        return {"instance_group": [{"name": name, "count": count} for name, count in self.groups]}


def stub(instance="m_0_0", model="m", version="1"):
    return Stub(7, 1, model, version, instance)


@pytest.mark.parametrize(
    ("server", "verdict"),
    [
        (Server(("m", "1", "READY")), "dead"),
        (Server(("m", "1", "UNLOADING")), "gone"),
        (Server(("m", "2", "READY")), "gone"),
        (Server(("n", "1", "READY")), "gone"),
        (Server(), "gone"),
        (Server(silent=True), "dead"),
        (Server(("m", "1", "READY"), mute=True), "dead"),
        (Server(("m", "1", "READY"), groups=()), "dead"),
        (Server(("m", "1", "READY"), groups=(("other", 1),)), "gone"),
    ],
)
def test_dead_is_what_is_served_still(server, verdict):
    lost = stub()
    expected = {"dead": ({lost}, []), "gone": (set(), [lost])}
    assert Inquest(server).divide([lost]) == expected[verdict]


def test_an_instance_that_the_configuration_has_no_more_is_gone():
    lost = [stub("m_0_0"), stub("m_0_1"), stub("m_0_2"), stub("m_0_1_gpu1"), stub("m_0_2_gpu0")]
    dead, gone = Inquest(Server(("m", "1", "READY"))).divide(lost)
    assert dead == {lost[0], lost[1], lost[3]}
    assert gone == [lost[2], lost[4]]


def test_a_process_that_completed_a_configuration_is_gone():
    lost = stub("m")
    assert Inquest(Server(("m", "1", "READY"))).divide([lost]) == (set(), [lost])


def test_where_the_stub_does_not_know_its_model_the_configurations_do():
    lost = stub("mine_1", model="folderQx12Ab")
    server = Server(("m", "1", "READY"), groups=(("mine", 2),))
    assert Inquest(server).divide([lost]) == (set(), [lost])
    dead, gone = Inquest(server, is_remote=True).divide([lost])
    assert gone == []
    assert [each.model for each in dead] == ["m"]
