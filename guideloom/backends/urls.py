"""Addresses that may hold secrets: joined to names, compared, and shown without them. No I/O."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote, urljoin, urlsplit

from guideloom.errors import UnsafeURLError

DEFAULT_PORTS = {"http": 80, "https": 443}

# What may stand in an address as it is: escapes that are there are kept byte for byte.
_AS_GIVEN = "".join(map(chr, range(0x21, 0x7F)))


@dataclass(frozen=True, slots=True, repr=False)
class URL:
    """An address that prints without what could be a secret: user, password, and the values of its query.

    Parameters
    ----------
    scheme, host, path, query : str
        Its parts, escaped; the path begins with ``/``.
    port : int
        Where the server listens.
    user : (str, str), optional
        User and password.
    """

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    user: tuple[str, str] | None = None

    @classmethod
    def parse(cls, address: str) -> URL:
        """Return an address from its text.

        Parameters
        ----------
        address : str
            ``http://`` or ``https://``, with a host and no fragment. What is escaped in it stays as it is; spaces and
            characters beyond ASCII are escaped.

        Raises
        ------
        UnsafeURLError
            If it is no such address.
        """
        try:
            parts = urlsplit(address)
            port, host = parts.port, (parts.hostname or "")
            host = host if host.isascii() else host.encode("idna").decode()
        except ValueError:
            raise UnsafeURLError("this address cannot be read: its host or port is none") from None
        if parts.scheme not in DEFAULT_PORTS or not host:
            raise UnsafeURLError(f"an http:// or https:// address is needed, not one of {parts.scheme or 'no scheme'}")
        if "#" in address:
            raise UnsafeURLError("an address of files has no fragment; write # in a name as %23")
        return cls(
            scheme=parts.scheme,
            host=host,
            port=DEFAULT_PORTS[parts.scheme] if port is None else port,
            path=quote(parts.path, safe=_AS_GIVEN) or "/",
            query=quote(parts.query, safe=_AS_GIVEN),
            user=None if parts.username is None else (unquote(parts.username), unquote(parts.password or "")),
        )

    def __str__(self) -> str:
        query = "&".join(f"{pair.partition('=')[0]}=..." for pair in self.query.split("&")) if self.query else ""
        return f"{self.origin}{self.path}" + (f"?{query}" if query else "")

    def __repr__(self) -> str:
        return f"URL({str(self)!r})"

    @property
    def origin(self) -> str:
        """Scheme, host and port; the port only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}")

    @property
    def holds_secrets(self) -> bool:
        """Whether it names a user or has a query."""
        return self.user is not None or bool(self.query)

    def reveal(self) -> str:
        """Return the whole address, for requests alone; but for the user, who goes into a header."""
        return f"{self.origin}{self.path}" + (f"?{self.query}" if self.query else "")

    def file(self, path: str) -> URL:
        """Return the address of a file below this one: its name is escaped, and the query of this one kept."""
        return replace(self, path=f"{self.path.rstrip('/')}/{quote(path, safe='/')}")

    def redirected(self, location: str) -> URL:
        """Return the address that a redirect from this one leads to."""
        return URL.parse(urljoin(self.reveal(), location).partition("#")[0])


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the open internet, not to this machine or a network around it."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_global


def is_literal(host: str) -> bool:
    """Return whether a host is an IP address rather than a name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def redact(location: str) -> str:
    """Return a path as it is, and the address of a server without what could be a secret."""
    return str(URL.parse(location)) if location.startswith(("http://", "https://")) else location
