"""Every error that this library raises on purpose.

    GuideLoomError
    ├── ManifestError (ValueError)          a manifest that cannot be read, or that is not one
    │   └── FingerprintMismatchError        a dataset that is not the one expected
    ├── UnsafePathError (ValueError)        a name in a manifest that could leave the dataset
    ├── BackendError (OSError)              bytes that could not be read
    │   ├── MissingFileError (FileNotFoundError)
    │   ├── ShortReadError (EOFError)       the file ends before the range does
    │   ├── ReadError                       the system's own error, in ``errno``
    │   ├── AccessError (PermissionError)   a server wants other credentials
    │   ├── ReadTimeoutError (TimeoutError)  a server was not heard of in time
    │   ├── DisconnectedError (ConnectionError)  no connection, or one that broke
    │   ├── ResponseError                   a server answered with something else than the bytes
    │   │   └── RangeNotSupportedError      it does not serve ranges of this file as it is stored
    │   ├── FileChangedError                a file was replaced while it was read from
    │   ├── RetriesExhaustedError           it failed each time it was tried
    │   └── RangesError                     some ranges of a batch failed; the rest are valid
    ├── UnsafeURLError (ValueError)         an address that must not be followed
    ├── CorruptionError (OSError)           bytes that do not match their checksum
    ├── ConversionError (ValueError)        a stored value does not fit the dtype asked for
    ├── UnknownEncodingError (LookupError)  an encoding that a manifest names is not registered
    ├── DecodeError (ValueError)            a document that its encoding cannot decode
    ├── WriteError (OSError)                a shard that could not be written; it is not published
    ├── ShardError (ValueError)             shards that cannot be committed together
    │   └── ShardClaimedError               a shard that another task, which is alive, is writing
    ├── CommitConflict (RuntimeError)       another commit came first
    ├── StateError (ValueError)             a loader state that cannot be read
    │   └── StateMismatchError              a loader state of another dataset, order or window
    └── ClosedError (RuntimeError)          a reader, loader or bridge that is closed, or of a parent process

Each takes one message and keyword details, so that it survives pickling to and from a worker process.
Wrong arguments are plain ``ValueError`` or ``TypeError``.
"""

from typing import Any, Self


class GuideLoomError(Exception):
    """Base of every error of this library.

    Parameters
    ----------
    message : str
        What happened, where, and what to do.
    **details
        The same facts as values; each becomes an attribute.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __getattr__(self, name: str) -> Any:
        details = self.__dict__.get("details", {})
        if name in details:
            return details[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.details)

    def for_sample(self, sample: int, location: str) -> Self:
        """Return the same error, naming the sample that could not be delivered, and its dataset."""
        error = type(self)(f"sample {sample} of {location}: {self.message}", **{**self.details, "sample": sample})
        error.__cause__ = self.__cause__
        return error


def _rebuild(cls: type[GuideLoomError], message: str, details: dict[str, Any]) -> GuideLoomError:
    return cls(message, **details)


class ManifestError(GuideLoomError, ValueError):
    """A manifest cannot be read, or does not describe a dataset."""


class FingerprintMismatchError(ManifestError):
    """A dataset is not the one that was expected. Details: ``path``, ``expected``, ``found``: two fingerprints."""


class UnsafePathError(GuideLoomError, ValueError):
    """A name in a manifest could reach outside the dataset."""


class _SystemError(GuideLoomError, OSError):
    """An error of input or output; ``errno`` is the system's number, where there is one."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **details)
        self.errno = details.get("errno")


class BackendError(_SystemError):
    """Bytes could not be read. Details: ``path``, and ``offset`` and ``length`` where they are known.

    Those of a server also say ``transient``, whether trying again may help, and perhaps ``received``, the bytes from
    the start of the range that are in place all the same.
    """


class MissingFileError(BackendError, FileNotFoundError):
    """A file that should be there is not. Details: ``path``."""


class ShortReadError(BackendError, EOFError):
    """A file ends before a range does. Details: ``path``, ``offset``, ``length``, ``found``."""


class ReadError(BackendError):
    """The system refused a read. Details: ``path``, ``offset``, ``length``, ``errno``."""


class AccessError(BackendError, PermissionError):
    """A server wants other credentials. Details: ``path``, ``status``."""


class ReadTimeoutError(BackendError, TimeoutError):
    """A server was not heard of in time. Details: ``path``, ``offset``, ``length``, ``received``."""


class DisconnectedError(BackendError, ConnectionError):
    """There is no connection, or it broke. Details: ``path``, ``offset``, ``length``, ``received``."""


class ResponseError(BackendError):
    """A server answered with something else than the bytes asked for. Details: ``path``, ``status``."""


class RangeNotSupportedError(ResponseError):
    """A server does not serve ranges of a file as it is stored. Details: ``path``, ``status``."""


class FileChangedError(BackendError):
    """A file was replaced while it was read from. Details: ``path``, ``expected``, ``found``."""


class RetriesExhaustedError(BackendError):
    """It failed each time it was tried.

    Details: ``path``, ``offset``, ``length``, and ``attempts``, a list of (seconds since the first, what happened).
    """


class RangesError(BackendError):
    """Some ranges of one call failed; the others are valid.

    Details: ``failures``, a dict from the index of a range to its error.
    """


class UnsafeURLError(GuideLoomError, ValueError):
    """An address must not be followed: a redirect to another place than the caller allowed. Details: ``path``."""


class CorruptionError(_SystemError):
    """Bytes do not match their checksum. Details: ``path``, ``offset``, ``length``, ``expected``, ``found``."""


class ConversionError(GuideLoomError, ValueError):
    """A stored value does not fit the dtype asked for. Details: ``field``, ``path``, ``offset``."""


class UnknownEncodingError(GuideLoomError, LookupError):
    """A manifest names an encoding that is not registered. Details: ``name``."""


class DecodeError(GuideLoomError, ValueError):
    """An encoding cannot decode a document, whose bytes are as written. Details: ``path``, ``offset``, ``length``."""


class WriteError(_SystemError):
    """A shard could not be written, and is not published. Details: ``shard``, ``path``."""


class ShardError(GuideLoomError, ValueError):
    """Shards cannot be committed together. Details: ``shards``."""


class ShardClaimedError(ShardError):
    """Another task is writing the shard, and is alive. Details: ``shards``, ``task``, ``host``, ``pid``."""


class CommitConflict(GuideLoomError, RuntimeError):  # noqa: N818 - an outcome to act on, named as databases do
    """Another commit published this snapshot first. Details: ``snapshot``. Open the storage again and retry."""


class StateError(GuideLoomError, ValueError):
    """A loader state cannot be read: it is damaged, or of another version."""


class StateMismatchError(StateError):
    """A loader state belongs to another dataset, order or window. Details: ``differences``."""


class ClosedError(GuideLoomError, RuntimeError):
    """A reader, loader or bridge is closed, or was made in the parent of this process."""
