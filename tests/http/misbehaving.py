"""A web server that does what a test tells it to, wrong things above all."""

from __future__ import annotations

import asyncio
import hashlib
import re
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit

from tests.http.servers import free_port


@dataclass(frozen=True)
class Request:
    """What a client asked."""

    target: str
    headers: Mapping[str, str]

    @property
    def path(self) -> str:
        """The file, relative to the root, without escapes and query."""
        return unquote(urlsplit(self.target).path).lstrip("/")

    @property
    def range(self) -> tuple[int, int] | None:
        """The bytes asked for, as start and stop."""
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        return (int(match[1]), int(match[2]) + 1) if match else None


@dataclass
class Answer:
    """What to send back.

    Parameters
    ----------
    status : int
        Of the answer.
    headers : dict
        ``Content-Length`` is added, unless there is a ``Transfer-Encoding``.
    body : bytes
        All of it.
    sent : int, optional
        How many bytes of it are sent; all by default.
    then : "continue", "close", "reset" or "stall"
        What happens after that.
    delay : float
        Seconds to wait before anything is sent.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    sent: int | None = None
    then: Literal["continue", "close", "reset", "stall"] = "continue"
    delay: float = 0.0


def proper(files: Mapping[str, bytes], request: Request, *, preconditions: bool = True) -> Answer:
    """Answer as a good server does."""
    data = files.get(request.path)
    if data is None:
        return Answer(404, body=b"no such file")
    etag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
    if preconditions and request.headers.get("if-match", etag) != etag:
        return Answer(412, {"ETag": etag})
    headers = {"ETag": etag, "Accept-Ranges": "bytes"}
    if request.range is None:
        return Answer(200, headers, data)
    start, stop = request.range
    if start >= len(data):
        return Answer(416, {"Content-Range": f"bytes */{len(data)}"})
    stop = min(stop, len(data))
    return Answer(206, {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}, data[start:stop])


class MisbehavingServer:
    """Serves files, and does what `act` says.

    Parameters
    ----------
    files : mapping of str to bytes
        Contents by name.
    act : callable, optional
        Takes a `Request` and returns an `Answer`; what it returns none for is answered properly.
    """

    def __init__(self, files: Mapping[str, bytes], act: Callable[[Request], Answer | None] | None = None) -> None:
        self.files = files
        self.act = act or (lambda request: None)
        self.requests: list[Request] = []
        self.port = free_port()
        self.connections = self.most_connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="misbehaving-server", daemon=True)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        """The address of the root."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def start(self) -> None:
        """Listen, again perhaps, at the same port."""

        async def start() -> None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

        asyncio.run_coroutine_threadsafe(start(), self._loop).result(10)

    def stop(self) -> None:
        """Stop listening, and cut all connections."""

        async def stop() -> None:
            if self._server is not None:
                self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)

    def wait_until_closed(self) -> bool:
        """Return whether all connections are closed, within five seconds."""
        deadline = time.monotonic() + 5
        while self.connections and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.connections == 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.most_connections = max(self.most_connections, self.connections)
        try:
            while await self._answer(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.connections -= 1
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request, and return whether the connection goes on."""
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines[1:] if line)
        request = Request(lines[0].split(" ")[1], {name.lower(): value for name, value in pairs})
        self.requests.append(request)
        answer = self.act(request) or proper(self.files, request)
        await asyncio.sleep(answer.delay)
        headers = dict(answer.headers)
        if "Transfer-Encoding" not in headers:
            headers.setdefault("Content-Length", str(len(answer.body)))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
        sent = answer.body if answer.sent is None else answer.body[: answer.sent]
        writer.write(f"HTTP/1.1 {answer.status} Whatever\r\n{head}\r\n".encode("latin-1") + sent)
        if answer.then != "reset":
            await writer.drain()
        if answer.then == "stall":
            await asyncio.Event().wait()
        if answer.then == "reset":
            await asyncio.sleep(0.01)
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return answer.then == "continue"
