"""The options of the gRPC server."""

import pytest
from poplar_triton.tfserving.settings import ServerSettings
from poplar_triton.tfserving.worker import make_channel_arguments


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("grpc.max_receive_message_length", 128 << 20),
        ("grpc.max_concurrent_streams", 256),
        ("grpc.max_allowed_incoming_connections", 500),
    ],
)
def test_limits_have_defaults_unless_they_are_given(name, default):
    def read(**given):
        return make_channel_arguments(ServerSettings((), channel_arguments=given), files=1000)[name]

    assert read() == default
    assert read(**{name: -1}) == -1
