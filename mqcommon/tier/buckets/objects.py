"""A bucket of S3, GCS or Azure, by the library obstore.

Its calls release the GIL, and may be made from any thread. A process that is forked after the first call cannot use the
bucket: a child process opens its own.
The library's texts of errors hold URLs, and URLs of Azure may hold a secret: only the answer of the store is passed on.
"""

import configparser
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.tier.bucket import (
    Bucket,
    BucketAway,
    BucketError,
    BucketRefused,
    NoSuchObject,
    ObjectExists,
    ObjectInfo,
    check_name,
)
from skylark.mqcommon.version import VERSION

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Config, S3Credential

    Opener = Callable[[str, str | None, ClientConfig, RetryConfig], ObjectStore]

# An object of at most this size is written by one request, a larger object in parts of this size.
_PART_BYTES: Final = 8 * 1024 * 1024
# Parts that are on their way at a time. With the part that is being filled they bound the memory of a put: 40 MiB.
_PARTS_AT_A_TIME: Final = 4
_RETRIES: Final = 2
_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
_OTHER_CREDENTIALS: Final = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE")
_LISTED_AT_A_TIME: Final = 1000
# The library asks again for credentials that end within 5 minutes: the file is read about once a minute.
_FILE_IS_GOOD_FOR: Final = timedelta(minutes=6)

# After these words an error of the library has details for the library's developers.
_DETAILS: Final = "\n\nDebug source"
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,500})</Message>")
_REASON: Final = re.compile(r"(?:message|error): \"([^\"]{1,200})\"")
_SENDING: Final = re.compile(r" - (HTTP error[^\n]{1,200})")
_NO_BUCKET: Final = re.compile(r"NoSuchBucket|ContainerNotFound|specified bucket does not exist")
# Statuses 4xx that the next try may not meet: too slow, a conflict with a call at the same time, too many requests.
_PASSING: Final = (408, 409, 425, 429)
_PASSING_CODES: Final = (
    # Another request for the same name came at the same time: the answer does not say which request has won.
    "ConditionalRequestConflict",
    "OperationAborted",
    "RequestTimeout",
    "IncompleteBody",
    "BadDigest",
)
_REFUSED: Final = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.NotSupportedError,
    exceptions.InvalidPathError,
    exceptions.UnknownConfigurationKeyError,
)
_NO_CREDENTIALS: Final = "no credentials were found: set them in the environment of the process"
# A part of the library's text → what an administrator can do.
_REMEDIES: Final = (
    ("169.254.169.254", _NO_CREDENTIALS),
    ("169.254.170.2", _NO_CREDENTIALS),
    ("metadata.google.internal", _NO_CREDENTIALS),
    ("without LOCATION", "the bucket is in another region: set AWS_REGION"),
    ("InvalidCertificate", "its certificate is not trusted: set AWS_CA_BUNDLE or SSL_CERT_FILE"),
    ("BadScheme", "https is needed; only AWS_ENDPOINT_URL may say http"),
    ("AccessDenied", "a right is missing"),
)


def open_store(scheme: str, name: str, prefix: str, timeout_s: float) -> Bucket:
    """The bucket ``name`` of the store of ``scheme``. Raises ConfigError when the environment lacks something."""
    url = f"{scheme}://{name}/{prefix}".rstrip("/")
    # Each try may take half of the time, and none begins in the second half: so a call ends within the time.
    half = timedelta(seconds=timeout_s / 2)
    options: ClientConfig = {
        "timeout": half,
        "connect_timeout": min(half, _CONNECT_TIMEOUT),
        "user_agent": f"skylark/{VERSION}",
    }
    openers: dict[str, Opener] = {"s3": _open_s3, "gs": _open_gcs, "az": _open_azure}
    open_one = openers[scheme]
    try:
        patient = open_one(name, prefix or None, options, {"max_retries": _RETRIES, "retry_timeout": half})
        once = open_one(name, prefix or None, options, {"max_retries": 0, "retry_timeout": half})
    except (ValueError, exceptions.BaseError) as error:
        # No request was made, so the text tells of the settings only.
        raise ConfigError(f"{url} cannot be opened: {str(error).partition(_DETAILS)[0]}") from None
    return ObjectBucket(url, patient, once)


def _open_s3(name: str, prefix: str | None, options: "ClientConfig", retries: "RetryConfig") -> S3Store:
    environment = os.environ
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = next((environment[each] for each in names if environment.get(each)), None)
    is_plain = (endpoint or "").startswith("http://")
    options = {**options, "allow_http": is_plain}
    if bundle := environment.get("AWS_CA_BUNDLE"):
        try:
            options["root_certificate"] = Path(bundle).read_bytes()
        except OSError as error:
            raise ConfigError(f"AWS_CA_BUNDLE={bundle} cannot be read: {error.strerror}") from None
    profile = _Profile()
    config: S3Config = {"conditional_put": "etag"}
    if endpoint is not None:
        config["endpoint"] = endpoint
    if not environment.get("AWS_UNSIGNED_PAYLOAD"):
        # TLS proves the bytes on their way. A SHA-256 of them takes a third of the processor time of an upload.
        config["unsigned_payload"] = not is_plain
    if profile.region is not None:
        config["region"] = profile.region
    return S3Store(
        name,
        prefix=prefix,
        config=config,
        client_options=options,
        retry_config=retries,
        credential_provider=profile.read if profile.is_needed() else None,
    )


def _open_gcs(name: str, prefix: str | None, options: "ClientConfig", retries: "RetryConfig") -> GCSStore:
    return GCSStore(name, prefix=prefix, client_options=options, retry_config=retries)


def _open_azure(name: str, prefix: str | None, options: "ClientConfig", retries: "RetryConfig") -> AzureStore:
    if not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
        raise ConfigError(
            f"az://{name}: set AZURE_STORAGE_ACCOUNT_NAME in the environment: the account of the container"
        )
    return AzureStore(name, prefix=prefix, client_options=options, retry_config=retries)


class _Profile:
    """The profile of the AWS command line, which obstore does not read: keys and the region.

    Profiles without keys (a role, SSO) are not followed.
    """

    def __init__(self) -> None:
        self.name = os.environ.get("AWS_PROFILE") or "default"
        # A container's user may have no home: then there are no files.
        self._keys = os.path.expanduser(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
        config = os.path.expanduser(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config")
        settings = _section(config, f"profile {self.name}", self.name)
        is_named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        #: None: as the environment says.
        self.region = None if is_named else settings.get("region")

    def is_needed(self) -> bool:
        """Whether the environment names no credentials, and this profile has some."""
        if any(map(os.environ.get, _OTHER_CREDENTIALS)):
            return False
        if "aws_access_key_id" in _section(self._keys, self.name):
            return True
        if os.environ.get("AWS_PROFILE"):
            raise ConfigError(f"the profile {self.name} (AWS_PROFILE) has no aws_access_key_id in {self._keys}")
        return False

    def read(self) -> "S3Credential":
        """The keys as the file has them now: whoever renews them replaces the file."""
        keys = _section(self._keys, self.name)
        credential: S3Credential = {
            "access_key_id": keys["aws_access_key_id"],
            "secret_access_key": keys["aws_secret_access_key"],
            "token": keys.get("aws_session_token"),
            "expires_at": datetime.now(UTC) + _FILE_IS_GOOD_FOR,
        }
        return credential


def _section(path: str, *names: str) -> dict[str, str]:
    """The first of the sections ``names`` that the file has; empty without such a section, or without the file."""
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        # The error is not shown: its text would hold a line of the file.
        raise ConfigError(f"{path} is no file of profiles of the AWS command line") from None
    return next((dict(parser[name]) for name in names if parser.has_section(name)), {})


class ObjectBucket:
    """A `Bucket` in an object store."""

    def __init__(self, url: str, patient: "ObjectStore", once: "ObjectStore") -> None:
        self.url = url
        self._store = patient
        # For `create`: a second try would meet the object of the first try, and take it for another creator's.
        self._once = once

    def get(self, name: str) -> bytes:
        check_name(name)
        with self._errors(name):
            return obstore.get(self._store, name).bytes().to_bytes()

    def get_range(self, name: str, start: int, size: int) -> bytes:
        check_name(name)
        if size == 0:
            self.head(name)
            return b""
        with self._errors(name):
            data = obstore.get_range(self._store, name, start=start, length=size).to_bytes()
        if len(data) != size:
            raise NoSuchObject(f"{name} ends before byte {start + size}")
        return data

    def head(self, name: str) -> ObjectInfo:
        check_name(name)
        with self._errors(name):
            found = obstore.head(self._store, name)
        return ObjectInfo(name, found["size"], _ms(found["last_modified"]))

    def create(self, name: str, data: bytes) -> None:
        check_name(name)
        with self._errors(name, "create"):
            obstore.put(self._once, name, data, mode="create", use_multipart=False)

    def put(self, name: str, pieces: Iterable[bytes | memoryview]) -> int:
        check_name(name)
        counted = _Pieces(pieces)
        first = counted.take(_PART_BYTES + 1)
        with self._errors(name, "write", counted):
            if counted.size <= _PART_BYTES:
                obstore.put(self._store, name, b"".join(first), use_multipart=False)
            else:
                obstore.put(
                    self._store,
                    name,
                    chain(first, counted),
                    chunk_size=_PART_BYTES,
                    max_concurrency=_PARTS_AT_A_TIME,
                )
        return counted.size

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            check_name(name)
        if not names:
            return
        try:
            with self._errors(names[0]):
                obstore.delete(self._store, names)
        except NoSuchObject:
            # GCS and Azure: the call may have stopped at the missing object, so each object is deleted by itself.
            for name in names:
                with suppress(NoSuchObject), self._errors(name):
                    obstore.delete(self._store, [name])

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder, _, beginning = prefix.rpartition("/")
        with self._errors(prefix):
            for some in obstore.list(self._store, folder or None, chunk_size=_LISTED_AT_A_TIME):
                for each in some:
                    if not beginning or each["path"].startswith(prefix):
                        yield ObjectInfo(each["path"], each["size"], _ms(each["last_modified"]))

    def folders(self, prefix: str) -> Sequence[str]:
        with self._errors(prefix):
            found = obstore.list_with_delimiter(self._store, prefix or None)
        return sorted(each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"])

    def close(self) -> None:
        """The library closes its connections when nobody holds the stores any more."""

    @contextmanager
    def _errors(self, name: str, doing: str = "read", pieces: "_Pieces | None" = None) -> Iterator[None]:
        """Raise our errors in place of the library's. ``doing``: read, write or create."""
        try:
            yield
        except (FileNotFoundError, exceptions.BaseError) as error:
            if pieces is not None and pieces.error is not None:
                raise pieces.error from None
            raise _error_of(error, doing, name, f"{self.url}/{name}") from None


class _Pieces:
    """The pieces of an object, none larger than `_PART_BYTES`.

    ``size``: the bytes so far; ``error``: the error with which the iterable ended.
    """

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self.size = 0
        self.error: Exception | None = None
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def __iter__(self) -> "_Pieces":
        return self

    def __next__(self) -> memoryview:
        while not self._rest:
            try:
                self._rest = memoryview(next(self._pieces)).cast("B")
            except StopIteration:
                raise
            except Exception as error:
                self.error = error
                raise
        piece, self._rest = self._rest[:_PART_BYTES], self._rest[_PART_BYTES:]
        self.size += len(piece)
        return piece

    def take(self, size: int) -> list[memoryview]:
        """The pieces with the first ``size`` bytes; all pieces if there are fewer bytes."""
        taken: list[memoryview] = []
        for piece in self:
            taken.append(piece)
            if self.size >= size:
                break
        return taken


def _error_of(error: Exception, doing: str, name: str, what: str) -> BucketError:
    text = str(error)
    told = ": ".join(filter(None, (what, _told(error))))
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    code = _CODE.search(text)
    if _NO_BUCKET.search(text):
        return BucketRefused(f"{told}: there is no such bucket: create it, or correct the URL")
    if isinstance(error, FileNotFoundError):
        return NoSuchObject(name) if doing == "read" else BucketAway(told)
    if status == 416:
        return NoSuchObject(f"{name} ends before the range")
    if code and code[1] in _PASSING_CODES:
        return BucketAway(told)
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return ObjectExists(name) if doing == "create" else BucketAway(told)
    if remedy := next((remedy for sign, remedy in _REMEDIES if sign in text), ""):
        return BucketRefused(f"{told}: {remedy}")
    if isinstance(error, _REFUSED) or status == 501 or (300 <= status < 500 and status not in _PASSING):
        return BucketRefused(told)
    return BucketAway(told)


def _told(error: Exception) -> str:
    """What the store answered, or why there is no answer: without URLs."""
    text = str(error)
    if found := _STATUS.search(text):
        details = [each[1] for each in (_CODE.search(text), _MESSAGE.search(text)) if each]
        return ": ".join([f"the store answered {found[1]}", *details])
    if "TimedOut" in text:
        return "no answer in time"
    if found := _REASON.search(text):
        return found[1]
    found = _SENDING.search(text)
    return found[1] if found else ""


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)
