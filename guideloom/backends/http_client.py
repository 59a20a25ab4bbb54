"""Requests for bytes of files, in one event loop: each answer is checked before a byte of it counts."""

from __future__ import annotations

import asyncio
import base64
import errno
import functools
import inspect
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

import aiohttp
import yarl

from guideloom.backends.base import short_read
from guideloom.backends.http_answers import (
    ContentRange,
    Version,
    content_length,
    is_encoded,
    retry_after,
    total_of_unsatisfied,
)
from guideloom.backends.resolver import GuardedResolver
from guideloom.backends.throttle import Throttle
from guideloom.backends.urls import URL, is_literal
from guideloom.errors import (
    AccessError,
    BackendError,
    DisconnectedError,
    FileChangedError,
    GuideLoomError,
    MissingFileError,
    RangeNotSupportedError,
    ReadError,
    ReadTimeoutError,
    ResponseError,
    UnsafeURLError,
)

TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
OVERLOADED_STATUSES = frozenset({429, 503})
REDIRECTS = frozenset({301, 302, 303, 307, 308})

# A whole file of up to so many bytes is taken where a range was asked for; more would be read for little.
MOST_WHOLE_BYTES = 2**20
# The body of an error that is read to keep its connection.
MOST_ERROR_BYTES = 16 * 1024
# A server that asks for a longer pause is not waited for by other requests either.
MOST_PAUSE_SECONDS = 60.0

_ALWAYS = {"Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True)
class Signed:
    """What a signer returns: where a file can be had, and the headers to send there.

    Parameters
    ----------
    url : str
        The whole address, with its signature if there is one; it is sent byte for byte.
    headers : mapping of str to str
        For this address alone, ``Authorization`` for one.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Signed({str(URL.parse(self.url))!r}, {len(self.headers)} headers)"


Signer = Callable[[str], str | Signed | Awaitable[str | Signed]]


@dataclass(frozen=True, slots=True, repr=False)
class HTTPOptions:
    """What an `HTTPBackend` was given; see there."""

    url: URL
    headers: Mapping[str, str]
    sign: Signer | None
    max_concurrency: int
    connect_seconds: float
    stall_seconds: float
    request_seconds: float
    max_redirects: int
    redirect_origins: Collection[str]
    ca_file: str | None
    trust_env: bool


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Address:
    """Where a file is asked for, and with which headers of the caller."""

    url: URL
    target: yarl.URL
    headers: Mapping[str, str]


class Client:
    """A pool of connections in one event loop, and what it has learnt about the files.

    Parameters
    ----------
    options : HTTPOptions
        What the backend was given.
    """

    def __init__(self, options: HTTPOptions) -> None:
        self._options = options
        self._resolver = GuardedResolver(options.url.host)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=options.max_concurrency, resolver=self._resolver, ssl=tls_context(options.ca_file)
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=options.trust_env,
            timeout=aiohttp.ClientTimeout(
                total=options.request_seconds,
                sock_connect=options.connect_seconds,
                sock_read=options.stall_seconds,
            ),
        )
        self.throttle = Throttle(options.max_concurrency)
        self.num_requests = self.bytes_received = 0
        self._versions: dict[str, Version] = {}
        self._addresses: dict[str, _Address] = {}
        self._signing = asyncio.Lock()

    async def close(self) -> None:
        """Close all connections."""
        self.throttle.close()
        await self._session.close()
        await self._resolver.close()

    async def read_into(self, path: str, offset: int, target: memoryview) -> None:
        """Fill a buffer with the bytes of a file from an offset on; one attempt.

        Raises
        ------
        BackendError
            Its ``received`` says how many bytes are in place all the same.
        """
        length = target.nbytes
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        pinned = self._versions.get(path)
        if pinned is not None and pinned.strong_etag is not None:
            headers["If-Match"] = pinned.strong_etag
        received = 0
        failure: Exception
        await self.throttle.acquire()
        try:
            response = await self._get(path, headers)
            try:
                skip = self._check_range(response, path, offset, length)
                content = response.content
                while received < length:
                    chunk = await content.readany()
                    if not chunk:
                        raise aiohttp.ClientPayloadError
                    if skip:
                        chunk, skip = chunk[skip:], max(skip - len(chunk), 0)
                    end = received + len(chunk)
                    if end > length:
                        if response.status == 206:
                            raise _too_long(path, offset, length)
                        chunk, end = chunk[: length - received], length
                    target[received:end] = chunk
                    received = end
                if response.status == 206 and not content.at_eof() and await content.readany():
                    raise _too_long(path, offset, length)
            finally:
                self.bytes_received += received
                if response.content.at_eof():
                    response.release()
                else:
                    response.close()
            return
        except (aiohttp.ClientError, OSError) as error:
            failure = self._translate(error, path, offset, length, received)
        finally:
            self.throttle.release()
        raise failure  # not from the one before: its text may hold the address, and so a secret

    async def read_file(self, path: str, max_bytes: int) -> bytes:
        """Return a whole small file; one attempt."""
        failure: Exception
        await self.throttle.acquire()
        try:
            response = await self._get(path, {})
            try:
                _refuse_encoded(response, path)
                if response.status != 200:
                    raise ResponseError(
                        f"{path}: the server answered {response.status}, and was asked for the whole file",
                        path=path,
                        status=response.status,
                        transient=False,
                    )
                data = bytearray()
                if (content_length(response.headers) or 0) <= max_bytes:
                    while len(data) <= max_bytes and (chunk := await response.content.readany()):
                        data += chunk
                    self.bytes_received += len(data)
                    if len(data) <= max_bytes:
                        return bytes(data)
                raise BackendError(f"{path} is larger than {max_bytes} bytes", path=path, transient=False)
            finally:
                response.close()
        except (aiohttp.ClientError, OSError) as error:
            failure = self._translate(error, path)
        finally:
            self.throttle.release()
        raise failure

    async def size(self, path: str) -> int:
        """Return the size of a file, from the answer to a request for its first byte; one attempt.

        A ``HEAD`` would be refused where an address is signed for ``GET``.
        """
        failure: Exception
        await self.throttle.acquire()
        try:
            response = await self._get(path, {"Range": "bytes=0-0"})
            try:
                _refuse_encoded(response, path)
                total = _total(response)
                if total is None:
                    raise RangeNotSupportedError(
                        f"{path}: the server does not tell the size", path=path, status=response.status, transient=False
                    )
                if response.status != 416:  # which carries no validators
                    self._pin(path, Version.of(response.headers, total))
                return total
            finally:
                response.close()
        except (aiohttp.ClientError, OSError) as error:
            failure = self._translate(error, path)
        finally:
            self.throttle.release()
        raise failure

    async def _get(self, path: str, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Return an answer with status 200, 206 or 416; all others are errors."""
        num_cuts = self.throttle.num_cuts
        address = self._addresses.get(path) or await self._address(path)
        response = await self._follow(path, address, headers)
        if response.status in (401, 403) and self._options.sign is not None:
            response.close()
            address = await self._address(path, expired=address)
            response = await self._follow(path, address, headers)
        status = response.status
        if status in (200, 206, 416):
            self.throttle.succeeded()
            return response
        await _let_go(response)
        pause = retry_after(response.headers)
        if status in OVERLOADED_STATUSES:
            self.throttle.overloaded(num_cuts, min(pause or 0.0, MOST_PAUSE_SECONDS))
        raise self._refusal(path, status, pause, response)

    def _refusal(self, path: str, status: int, pause: float | None, response: aiohttp.ClientResponse) -> GuideLoomError:
        where = str(self._options.url.file(path))
        if status in (404, 410):
            return MissingFileError(
                f"{path} is missing: {where} is answered with {status}. Is the dataset complete?",
                path=path,
                status=status,
                transient=False,
            )
        if status in (401, 403):
            return AccessError(
                f"{path}: the server refuses access to {where} with status {status}; are the credentials right, and "
                "not expired?",
                path=path,
                status=status,
                transient=False,
            )
        if status == 412:
            return FileChangedError(
                f"{path} was replaced on the server while it was read from: it was {self._versions.get(path)}, and "
                f"now is {response.headers.get('ETag', 'another')}. Files of a dataset never change; restore it, or "
                "open the dataset again",
                path=path,
                expected=str(self._versions.get(path)),
                found=response.headers.get("ETag"),
                transient=False,
            )
        asked = f", and to wait {pause:.0f} s" if pause is not None else ""
        return ResponseError(
            f"{path}: {where} is answered with status {status}{asked}",
            path=path,
            status=status,
            transient=status in TRANSIENT_STATUSES,
            retry_after=pause,
        )

    async def _address(self, path: str, expired: _Address | None = None) -> _Address:
        """Return where to ask for a file; sign it if need be, once for all who wait for it."""
        options = self._options
        address = self._addresses.get(path)
        if address is not None and address is not expired:
            return address
        url, headers = options.url.file(path), options.headers
        if options.sign is not None:
            async with self._signing:
                address = self._addresses.get(path)
                if address is not None and address is not expired:
                    return address
                answer = options.sign(url.reveal())
                signed = await answer if inspect.isawaitable(answer) else answer
                if isinstance(signed, str):
                    signed = Signed(signed)
                url = URL.parse(signed.url)
                own = options.headers if url.origin == options.url.origin else {}
                headers = {**own, **signed.headers}
        user = url.user or (options.url.user if url.origin == options.url.origin else None)
        if user is not None:
            token = base64.b64encode(":".join(user).encode()).decode()
            headers = {"Authorization": f"Basic {token}", **headers}
        address = _Address(url, yarl.URL(url.reveal(), encoded=True), {**_ALWAYS, **headers})
        self._addresses[path] = address
        return address

    async def _follow(self, path: str, address: _Address, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Ask, and follow redirects as far as they are allowed."""
        url, target, sent = address.url, address.target, {**address.headers, **headers}
        for _ in range(self._options.max_redirects + 1):
            self.num_requests += 1
            response = await self._session.get(target, headers=sent, allow_redirects=False)
            if response.status not in REDIRECTS:
                return response
            location = response.headers.get("Location", "")
            await _let_go(response)
            url = self._redirected(path, url, location)
            target = yarl.URL(url.reveal(), encoded=True)
            if url.origin != address.url.origin:
                sent = {**_ALWAYS, **headers}
        raise UnsafeURLError(f"{path}: the server redirects more than {self._options.max_redirects} times", path=path)

    def _redirected(self, path: str, url: URL, location: str) -> URL:
        """Return where a redirect leads, if it may be followed."""
        options = self._options
        try:
            new = url.redirected(location)
        except UnsafeURLError as error:
            raise UnsafeURLError(f"{path}: a redirect from {url} leads nowhere: {error}", path=path) from None
        if url.scheme == "https" and new.scheme == "http":
            raise UnsafeURLError(f"{path}: a redirect from {url} to {new.origin} would give up encryption", path=path)
        upgrade = new.host == url.host and (url.scheme, new.scheme) == ("http", "https")
        known = {url.origin, options.url.origin, *options.redirect_origins}
        if not upgrade and new.origin not in known and "*" not in options.redirect_origins:
            raise UnsafeURLError(
                f"{path}: a redirect from {url} leads to {new.origin}; redirect_origins=[{new.origin!r}] allows that",
                path=path,
            )
        if is_literal(new.host):
            self._resolver.check(new.host)
        return new

    def _check_range(self, response: aiohttp.ClientResponse, path: str, offset: int, length: int) -> int:
        """Return how many bytes of the body come before the range; raise if it is not in there."""
        status, headers = response.status, response.headers
        pinned = self._versions.get(path)
        if (
            pinned is not None
            and status == 206
            and headers.get("Content-Range") == f"bytes {offset}-{offset + length - 1}/{pinned.total}"
            and headers.get("Content-Length") == str(length)
            and headers.get("ETag") == pinned.etag
            and pinned.strong_etag is not None
            and "Content-Encoding" not in headers
        ):
            return 0  # to the letter what was expected, as nearly all answers are
        _refuse_encoded(response, path)
        if status == 416:
            total = total_of_unsatisfied(headers.get("Content-Range"))
            if pinned is not None and total is not None:
                pinned.check_same(Version(pinned.etag, pinned.last_modified, total), path)
            raise short_read(path, offset, length, max((total or 0) - offset, 0))
        if status == 200:
            total = content_length(headers)
            if total is None or total > MOST_WHOLE_BYTES:
                raise RangeNotSupportedError(
                    f"{path}: the server sends the whole file instead of a range; it must support Range requests, "
                    "and not compress what it sends",
                    path=path,
                    offset=offset,
                    length=length,
                    status=status,
                    transient=False,
                )
            self._pin(path, Version.of(headers, total))
            if total < offset + length:
                raise short_read(path, offset, length, max(total - offset, 0))
            return offset
        found = ContentRange.parse(headers.get("Content-Range"))
        announced = content_length(headers)
        if (
            found is None
            or found.start != offset
            or found.stop > offset + length
            or (found.stop < offset + length and found.stop != found.total)
            or (announced is not None and announced != found.stop - found.start)
        ):
            raise RangeNotSupportedError(
                f"{path}: asked for {length} bytes at offset {offset}, the server sends "
                f"{headers.get('Content-Range') or headers.get('Content-Type')!r} in {announced} bytes",
                path=path,
                offset=offset,
                length=length,
                status=status,
                transient=False,
            )
        self._pin(path, Version.of(headers, found.total))
        if found.stop < offset + length:
            raise short_read(path, offset, length, found.stop - offset)
        return 0

    def _pin(self, path: str, version: Version) -> None:
        """Remember the version of a file, or compare it with the one that is remembered."""
        self._versions.setdefault(path, version).check_same(version, path)

    def _translate(
        self, error: Exception, path: str, offset: int | None = None, length: int | None = None, received: int = 0
    ) -> Exception:
        """Return an error of ours for one of aiohttp or the system, without its text: that may hold the address."""
        if isinstance(error, GuideLoomError):
            return error
        options = self._options
        what = path if offset is None else f"{path}, {length} bytes at offset {offset}"
        have = f" after {received} of {length} bytes" if length is not None and received else ""
        details = {"path": path, "offset": offset, "length": length, "received": received}
        host = options.url.origin
        if isinstance(error, aiohttp.ClientSSLError):
            return ReadError(
                f"{what}: {host} cannot be trusted ({_tls_reason(error)}); ca_file names further authorities to trust",
                **details,
                transient=False,
            )
        if isinstance(error, aiohttp.ClientConnectorError):
            refused = error.os_error
            final = isinstance(refused, socket.gaierror) and refused.errno == socket.EAI_NONAME
            return DisconnectedError(
                f"{what}: no connection to {host} ({_reason(refused)})",
                **details,
                errno=refused.errno,
                transient=not final,
                reached=False,
            )
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return ReadTimeoutError(
                f"{what}: no connection to {host} within {options.connect_seconds:g} s",
                **details,
                transient=True,
                reached=False,
            )
        if isinstance(error, aiohttp.SocketTimeoutError):
            return ReadTimeoutError(
                f"{what}: {host} sent nothing for {options.stall_seconds:g} s{have}", **details, transient=True
            )
        if isinstance(error, TimeoutError):
            return ReadTimeoutError(
                f"{what}: {host} took longer than {options.request_seconds:g} s{have}", **details, transient=True
            )
        if isinstance(error, aiohttp.ClientResponseError):
            return ResponseError(f"{what}: {host} does not answer in HTTP", **details, status=None, transient=False)
        if isinstance(error, (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, ConnectionError)):
            return DisconnectedError(
                f"{what}: the connection to {host} broke{have}", **details, errno=errno.ECONNRESET, transient=True
            )
        return ReadError(f"{what}: reading from {host} failed ({type(error).__name__})", **details, transient=False)


@functools.cache
def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return how servers are verified: always, against the system's authorities and perhaps others."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


def _total(response: aiohttp.ClientResponse) -> int | None:
    """Return the size of the whole file as an answer tells it."""
    said = response.headers.get("Content-Range")
    if response.status == 200:
        return content_length(response.headers)
    if response.status == 416:
        return total_of_unsatisfied(said)
    found = ContentRange.parse(said)
    return None if found is None else found.total


def _refuse_encoded(response: aiohttp.ClientResponse, path: str) -> None:
    if is_encoded(response.headers):
        raise RangeNotSupportedError(
            f"{path}: the server sends it encoded ({response.headers['Content-Encoding'][:40]}), though only identity "
            "was asked for; turn compression off for these files",
            path=path,
            status=response.status,
            transient=False,
        )


def _too_long(path: str, offset: int, length: int) -> ResponseError:
    return ResponseError(
        f"{path}: the server sends more than the {length} bytes at offset {offset} that it announced",
        path=path,
        offset=offset,
        length=length,
        status=206,
        transient=False,
    )


async def _let_go(response: aiohttp.ClientResponse) -> None:
    """Read the short body of an error to keep its connection, or close it."""
    if (content_length(response.headers) or MOST_ERROR_BYTES + 1) <= MOST_ERROR_BYTES:
        await response.read()
    response.close()


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _tls_reason(error: aiohttp.ClientSSLError) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(getattr(error.certificate_error, "verify_message", "its certificate does not fit"))
    return getattr(error.os_error, "verify_message", "") or _reason(error.os_error)
