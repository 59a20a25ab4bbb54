"""Files of any static web server, by range requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from guideloom._typing import PathLike
from guideloom.backends.base import read_each
from guideloom.backends.urls import URL
from guideloom.errors import ClosedError
from guideloom.ranges import ByteRanges

try:
    from guideloom.backends.http_client import Client, HTTPOptions, Signer, tls_context
except ModuleNotFoundError as error:
    if error.name not in ("aiohttp", "yarl"):
        raise
    raise ModuleNotFoundError(
        "reading over HTTP needs aiohttp: pip install 'guideloom[http]'", name=error.name
    ) from None


class HTTPBackend:
    """Reads files below an address, a range a request.

    Every answer is compared with what was asked for, and with the version of the file that answered first: a file that
    is replaced on the server is a `guideloom.errors.FileChangedError`, never a mixture. One request is one attempt;
    `guideloom.backends.from_url` adds retries and coalescing.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://`` address of the folder. Its query, if there is one, is kept for every file. A user
        and password in it are sent as basic authorization.
    headers : mapping of str to str, optional
        Sent with each request to this server, and to no other.
    sign : callable, optional
        Takes the address of a file, and returns the one to ask for, or a `Signed` address with headers of its own; may
        be async. Called once a file, and again when the server answers 401 or 403.
    max_concurrency : int, default 32
        Most requests at a time, and connections kept. Halved when the server answers 429 or 503, then grows again.
    connect_seconds, stall_seconds, request_seconds : float, default 5, 30 and 120
        How long a connection, the next byte, and a whole request may take.
    max_redirects : int, default 5
        Most redirects in a row.
    redirect_origins : collection of str, default ()
        Origins such as ``"https://cdn.example.com"`` that redirects may lead to, ``"*"`` for any; no header of the
        caller is sent there. Never from https to http, nor from a public server to an inner address.
    ca_file : str or path, optional
        Further certificate authorities to trust, PEM. Certificates are always verified.
    trust_env : bool, default False
        Whether proxies are taken from the environment.

    Raises
    ------
    UnsafeURLError
        If `url` is no such address.
    ValueError
        If a bound is out of range.
    """

    _live: ClassVar[set[Client]] = set()

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        sign: Signer | None = None,
        max_concurrency: int = 32,
        connect_seconds: float = 5.0,
        stall_seconds: float = 30.0,
        request_seconds: float = 120.0,
        max_redirects: int = 5,
        redirect_origins: Collection[str] = (),
        ca_file: PathLike | None = None,
        trust_env: bool = False,
    ) -> None:
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, not {max_concurrency}")
        if min(connect_seconds, stall_seconds, request_seconds) <= 0:
            raise ValueError("connect_seconds, stall_seconds and request_seconds must be positive")
        if max_redirects < 0:
            raise ValueError(f"max_redirects must be at least 0, not {max_redirects}")
        self._options = HTTPOptions(
            url=URL.parse(url),
            headers=dict(headers or {}),
            sign=sign,
            max_concurrency=max_concurrency,
            connect_seconds=connect_seconds,
            stall_seconds=stall_seconds,
            request_seconds=request_seconds,
            max_redirects=max_redirects,
            redirect_origins=tuple(redirect_origins),
            ca_file=None if ca_file is None else os.fspath(ca_file),
            trust_env=trust_env,
        )
        tls_context(self._options.ca_file)  # takes a while, which the event loop must not wait for
        self._clients: dict[asyncio.AbstractEventLoop, tuple[Client, int]] = {}

    def __repr__(self) -> str:
        return f"HTTPBackend({str(self._options.url)!r})"

    def __getstate__(self) -> dict[str, Any]:
        options = self._options
        if options.headers or options.url.holds_secrets:
            raise TypeError(
                f"{self!r} holds headers, a user or a query, which may be secret, and secrets are not pickled. Give "
                "sign=, a function of some module that finds them where it is called"
            )
        state = {name: getattr(options, name) for name in HTTPOptions.__slots__}
        return {**state, "url": options.url.reveal()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # the state is the constructor's arguments

    async def open(self) -> None:
        """Count one more user in this event loop; connections are made as they are needed."""
        loop = asyncio.get_running_loop()
        client, users = self._clients.get(loop) or (Client(self._options), 0)
        # A forked child keeps its parent's clients for ever: letting go of them would close the parent's connections.
        self._live.add(client)
        self._clients[loop] = client, users + 1

    async def close(self) -> None:
        """Count one user less in this event loop; the last one closes the connections."""
        loop = asyncio.get_running_loop()
        client, users = self._clients[loop]
        if users > 1:
            self._clients[loop] = client, users - 1
            return
        del self._clients[loop]
        await client.close()
        self._live.discard(client)

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Return a whole small file."""
        return await self._client().read_file(path, max_bytes)

    async def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return await self._client().size(path)

    async def read_ranges(self, ranges: ByteRanges, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers with every range, each by one request."""
        await read_each(ranges, buffers, self._client().read_into, self._options.max_concurrency)

    def stats(self) -> dict[str, int]:
        """Return the requests sent and bytes received by open clients, and how many requests may be under way."""
        clients = [client for client, _ in self._clients.values()]
        return {
            "requests": sum(client.num_requests for client in clients),
            "bytes_received": sum(client.bytes_received for client in clients),
            "concurrency": min((client.throttle.limit for client in clients), default=self._options.max_concurrency),
        }

    def _client(self) -> Client:
        try:
            return self._clients[asyncio.get_running_loop()][0]
        except KeyError:
            raise ClosedError(f"{self!r} is not open in this event loop") from None
