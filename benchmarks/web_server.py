"""nginx over a folder, for as long as a benchmark runs."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_CONFIG = """
{user}
daemon off;
worker_processes 1;
pid {work}/nginx.pid;
error_log {work}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {work}/body;
    proxy_temp_path {work}/proxy;
    fastcgi_temp_path {work}/fastcgi;
    uwsgi_temp_path {work}/uwsgi;
    scgi_temp_path {work}/scgi;
    sendfile on;
    keepalive_requests 1000000000;
    server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


@contextlib.contextmanager
def nginx(root: Path) -> Iterator[str]:
    """Serve a folder, and give its address.

    Raises
    ------
    RuntimeError
        If nginx is not installed, or does not start.
    """
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise RuntimeError("nginx is not installed (Debian: apt-get install nginx)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as work:
        user = f"user {pwd.getpwuid(os.geteuid()).pw_name};" if os.geteuid() == 0 else ""
        config = Path(work) / "nginx.conf"
        config.write_text(_CONFIG.format(user=user, work=work, port=port, root=root))
        process = subprocess.Popen([program, "-p", work, "-c", str(config)], stdin=subprocess.DEVNULL)
        try:
            for _ in range(500):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                if process.poll() is not None:
                    raise RuntimeError("nginx did not start")
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()
