"""Real proxies in front of a server, which speak HTTP/2: Caddy, which PyPI has, and nginx where it is installed."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.running import BOUND

CADDY = """\
{{
    admin off
    auto_https disable_redirects
    skip_install_trust
    storage file_system {directory}/storage
    servers {{
        protocols h1 h2 h2c
    }}
}}
http://127.0.0.1:{clear} {{
    reverse_proxy {upstream}
}}
https://localhost:{secure} {{
    tls internal
    reverse_proxy {upstream}
}}
"""

NGINX = """\
daemon off;
pid {directory}/pid;
error_log stderr;
worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    map $http_upgrade $connection_upgrade {{
        default upgrade;
        ''      '';
    }}
    server {{
        {clear_listen}
        {secure_listen}
        ssl_certificate {directory}/cert.pem;
        ssl_certificate_key {directory}/key.pem;
        client_max_body_size 32m;
        location / {{
            proxy_pass http://{upstream};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_buffering off;
            proxy_read_timeout 1h;
            proxy_send_timeout 1h;
        }}
    }}
}}
"""


class Missing(Exception):
    """There is no such proxy here; says what is missing."""


@dataclass(frozen=True)
class Front:
    """A proxy that runs: where it speaks without TLS, and where with it."""

    h2c: str
    h2: str


@contextmanager
def front(name: str, url: str, directory: Path) -> Generator[Front]:
    """A proxy in front of a server; raises Missing."""
    program = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if program is None:
        raise Missing(f"there is no {name} on this machine")
    clear, secure = _free_port(), _free_port()
    upstream = urlsplit(url).netloc
    command = _COMMANDS[name](program, directory, upstream, clear, secure)
    # Caddy keeps what it knows below these.
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(directory), "XDG_DATA_HOME": str(directory)}
    with (directory / "stderr").open("wb") as stderr:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)
    try:
        for port in (clear, secure):
            _await_port(port, process, directory / "stderr")
        yield Front(f"http://127.0.0.1:{clear}", f"https://localhost:{secure}")
    finally:
        process.terminate()
        process.wait(BOUND)


def _caddy(program: str, directory: Path, upstream: str, clear: int, secure: int) -> list[str]:
    config = directory / "Caddyfile"
    config.write_text(CADDY.format(directory=directory, upstream=upstream, clear=clear, secure=secure))
    return [program, "run", "--adapter", "caddyfile", "--config", str(config)]


def _nginx(program: str, directory: Path, upstream: str, clear: int, secure: int) -> list[str]:
    said = subprocess.run([program, "-v"], capture_output=True, text=True, timeout=BOUND).stderr
    version = tuple(int(part) for part in said.rpartition("/")[2].split()[0].split(".")[:2])
    # What `listen` took before 1.25 is a directive of its own since.
    old = version < (1, 25)
    words = {
        "clear_listen": f"listen 127.0.0.1:{clear}{' http2' if old else ''};",
        "secure_listen": f"listen 127.0.0.1:{secure} ssl{' http2' if old else ''};" + ("" if old else " http2 on;"),
    }
    openssl = shutil.which("openssl")
    if openssl is None:
        raise Missing("there is no openssl to make a certificate for nginx")
    making = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem")]
    subprocess.run([*making, *files], check=True, capture_output=True, timeout=BOUND)
    config = directory / "nginx.conf"
    config.write_text(NGINX.format(directory=directory, upstream=upstream, **words))
    return [program, "-c", str(config), "-p", str(directory)]


_COMMANDS: dict[str, Callable[[str, Path, str, int, int], list[str]]] = {"caddy": _caddy, "nginx": _nginx}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _await_port(port: int, process: subprocess.Popen[bytes], stderr: Path) -> None:
    end = time.monotonic() + BOUND
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(stderr.read_text()) from None
        else:
            return
