"""The fleet's choice of ports: no two programs get the same one."""

from __future__ import annotations

from server_processes import choose_ports


def test_no_port_is_given_twice():
    # Two of so many free choices would meet almost surely (1000 of 12000, the birthday problem).
    chosen = [port for _ in range(200) for port in choose_ports(5)]
    assert len(set(chosen)) == len(chosen)
