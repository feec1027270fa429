"""Calls over gRPC as frames of HTTP/2 (RFC 9113): opened, and never sent. A client library has a
thread for each."""

from __future__ import annotations

import socket

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS = 1, 4
_END_HEADERS = 4


def open_calls(port: int, method: str, number: int) -> socket.socket:
    """Open a connection with `number` calls of `method` whose request never arrives."""
    connection = socket.create_connection(("127.0.0.1", port))
    block = b"".join(
        _write_literal(name, value)
        for name, value in (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "test"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        )
    )
    calls = (_write_frame(_HEADERS, _END_HEADERS, 2 * call + 1, block) for call in range(number))
    connection.sendall(_PREFACE + _write_frame(_SETTINGS, 0, 0, b"") + b"".join(calls))
    return connection


def _write_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def _write_literal(name: str, value: str) -> bytes:
    """Return a header that is not indexed (RFC 7541, 6.2.2), with lengths below 127."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
