"""The socket that a server listens on."""

import socket
from pathlib import Path

import pytest

from sandboxagent.core.settings import load
from sandboxagent.server.listen import open_listener


@pytest.mark.requirement("4.silent")
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such bound")
def test_accepted_sockets_notice_that_the_other_end_is_gone(tmp_path: Path) -> None:
    settings = load({"port": 0, "no_persist": True, "data_dir": str(tmp_path)}, {})
    with (
        open_listener(settings) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 10
