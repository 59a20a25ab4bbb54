"""Real web servers, started by the tests and ended after them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
import trustme

STARTING_SECONDS = 20.0


def find_server(program: str) -> str:
    """Return the path of a server; without it, the test is skipped, and on CI it fails."""
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if path is None:
        reason = f"{program} is not installed (Debian: apt-get install {program})"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[None]:
    """Run a server while the body runs."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + STARTING_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"{command[0]} did not start: {log.read_text()}"
            time.sleep(0.01)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


NGINX = """
{user}
daemon off;
worker_processes 1;
pid {work}/nginx.pid;
error_log {work}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    default_type application/octet-stream;
    access_log off;
    client_body_temp_path {work}/body;
    proxy_temp_path {work}/proxy;
    fastcgi_temp_path {work}/fastcgi;
    uwsgi_temp_path {work}/uwsgi;
    scgi_temp_path {work}/scgi;
    sendfile on;
    keepalive_requests 100000;
    limit_req_zone $binary_remote_addr zone=requests:1m rate=50r/s;
    server {{
        listen 127.0.0.1:{port};
        location /plain/ {{ alias {root}/; }}
        location /gzip/ {{ alias {root}/; gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any; }}
        location /no-ranges/ {{ alias {root}/; max_ranges 0; }}
        location /slow/ {{ alias {root}/; limit_rate 1m; }}
        location /limited/ {{
            alias {root}/;
            limit_req zone=requests burst=5 nodelay;
            limit_req_status 429;
            error_page 429 = @limited;
        }}
        location @limited {{ add_header Retry-After 1 always; return 429; }}
        location /moved/ {{ return 302 /plain/; }}
    }}
    server {{
        listen 127.0.0.1:{tls_port} ssl;
        ssl_certificate {work}/server.pem;
        ssl_certificate_key {work}/server.key;
        location /plain/ {{ alias {root}/; }}
        location /down/ {{ return 302 http://127.0.0.1:{port}/plain/one.bin; }}
    }}
}}
"""


class Nginx:
    """nginx over a folder: plain, with gzip, without ranges, slow, limited to 50 requests a second, and with TLS.

    Parameters
    ----------
    root : Path
        What it serves.
    work : Path
        Where it keeps its own files; ``ca.pem`` in there is the authority that signed its certificate.
    """

    def __init__(self, root: Path, work: Path) -> None:
        self._program = find_server("nginx")
        self._root, self._work = root, work
        self._stack = contextlib.ExitStack()
        self.port, self.tls_port = free_port(), free_port()
        self.ca_file = work / "ca.pem"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca_file)
        certificate = authority.issue_cert("127.0.0.1", "localhost")
        certificate.private_key_pem.write_to_path(work / "server.key")
        for number, blob in enumerate(certificate.cert_chain_pems):
            blob.write_to_path(work / "server.pem", append=number > 0)
        user = f"user {_user()};" if os.geteuid() == 0 else ""
        (work / "nginx.conf").write_text(
            NGINX.format(user=user, work=work, root=root, port=self.port, tls_port=self.tls_port)
        )

    def url(self, location: str = "plain") -> str:
        """Return the address of a location."""
        return f"http://127.0.0.1:{self.port}/{location}"

    @property
    def tls_url(self) -> str:
        """The address of all files by TLS."""
        return f"https://127.0.0.1:{self.tls_port}/plain"

    def start(self) -> None:
        """Start it, again perhaps."""
        command = [self._program, "-p", str(self._work), "-c", str(self._work / "nginx.conf")]
        self._stack.enter_context(running(command, self.port, self._work / "output.log"))

    def stop(self) -> None:
        """End it."""
        self._stack.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextlib.contextmanager
def lighttpd(root: Path, work: Path) -> Iterator[str]:
    """Run lighttpd over a folder, and give its address."""
    program, port = find_server("lighttpd"), free_port()
    (work / "lighttpd.conf").write_text(
        f'server.document-root = "{root}"\nserver.bind = "127.0.0.1"\nserver.port = {port}\n'
        f'server.errorlog = "{work}/error.log"\nserver.modules = ()\nmimetype.assign = ()\n'
    )
    with running([program, "-D", "-f", str(work / "lighttpd.conf")], port, work / "output.log"):
        yield f"http://127.0.0.1:{port}"


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name
