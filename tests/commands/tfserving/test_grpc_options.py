"""The options of the gRPC server."""

from commands.tfserving.settings import Settings
from commands.tfserving.worker import make_channel_arguments


def test_messages_have_a_largest_size_unless_it_is_given():
    def read(**given):
        arguments = make_channel_arguments(Settings((), channel_arguments=given))
        return arguments["grpc.max_receive_message_length"]

    assert read() == 128 << 20
    assert read(**{"grpc.max_receive_message_length": -1}) == -1
