"""Tests that find the process that listens on a port."""

from __future__ import annotations

import os
import socket

from poplar_triton.serving.traffic import describe_listener

HEAD = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  "
    "timeout inode\n"
)


def write_sockets(proc, name, *sockets):
    """Write the table of sockets with the address, state and inode of each."""
    (proc / "net").mkdir(exist_ok=True)
    lines = (
        f"   0: {place} 00000000:0000 {state} 0:0 00:0 0 0 0 {inode} 1\n"
        for place, state, inode in sockets
    )
    (proc / "net" / name).write_text(HEAD + "".join(lines))


def write_process(proc, pid, name, *inodes):
    folder = proc / str(pid) / "fd"
    folder.mkdir(parents=True)
    for number, inode in enumerate(inodes):
        (folder / str(number)).symlink_to(f"socket:[{inode}]")
    (proc / str(pid) / "comm").write_text(f"{name}\n")


def test_the_process_whose_socket_listens_is_named(tmp_path):
    write_sockets(tmp_path, "tcp", ("0100007F:1F90", "01", 5), ("0100007F:1F90", "0A", 6))
    write_sockets(tmp_path, "tcp6", (f"{'0' * 32}:1F91", "0A", 7))
    write_process(tmp_path, 10, "client", 5)
    write_process(tmp_path, 11, "tritonserver", 4, 6)
    write_process(tmp_path, 12, "another", 7)
    assert describe_listener(8080, tmp_path) == "process 11 (tritonserver)"
    assert describe_listener(8081, tmp_path) == "process 12 (another)"
    assert describe_listener(8082, tmp_path) == ""


def test_a_process_that_is_not_seen_is_not_named(tmp_path):
    assert describe_listener(8080, tmp_path) == ""
    write_sockets(tmp_path, "tcp", ("0100007F:1F90", "0A", 6))
    (tmp_path / "13").mkdir()
    assert describe_listener(8080, tmp_path) == ""


def test_of_a_real_socket():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = describe_listener(listener.getsockname()[1])
    assert found.startswith(f"process {os.getpid()} (")
