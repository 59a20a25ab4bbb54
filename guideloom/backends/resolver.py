"""Names to addresses, on a thread that nothing waits for at exit; inner addresses stay out of reach from outside."""

from __future__ import annotations

import asyncio
import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from guideloom.backends.pool import ReadPool
from guideloom.backends.urls import is_literal, is_public
from guideloom.errors import UnsafeURLError

LOOK_UP_SECONDS = 5.0


class GuardedResolver(AbstractResolver):
    """Looks names up, and refuses addresses of inner networks once the caller's own server proved to be a public one.

    A redirect or a second answer of a name server could otherwise make this machine ask its neighbours.

    Parameters
    ----------
    host : str
        Of the caller's own server.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._public: bool | None = is_public(host) if is_literal(host) else None
        self._pool = ReadPool(1)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host."""
        found: list[ResolveResult] = []

        def look_up() -> None:
            for kind, _, proto, _, address in socket.getaddrinfo(
                host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
            ):
                found.append(
                    ResolveResult(
                        hostname=host,
                        host=str(address[0]),
                        port=int(address[1]),
                        family=kind,
                        proto=proto,
                        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                    )
                )

        async with asyncio.timeout(LOOK_UP_SECONDS):
            await self._pool.run(look_up)
        if self._public is None and host == self._host:
            self._public = all(is_public(result["host"]) for result in found)
        for result in found:
            self.check(result["host"])
        return found

    def check(self, address: str) -> None:
        """Raise ``UnsafeURLError`` if a public server must not lead to this address."""
        if self._public and not is_public(address):
            raise UnsafeURLError(f"{self._host} is on the open internet, and leads to the inner address {address}")

    async def close(self) -> None:
        """End the thread."""
        self._pool.close()
