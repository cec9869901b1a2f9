"""Opens the bucket that a URL names, and probes whether a bucket can hold a set.

A URL is ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix`` or ``file:///directory``. It holds no
credentials: those come from the environment, or from the usual files and services of the cloud.
"""

import contextlib
import os
import re
import secrets
import threading
from collections.abc import Sequence
from typing import Final, NoReturn
from urllib.parse import SplitResult, unquote, urlsplit

from skylark.mqcommon.errors import ConfigError, InvalidArgument
from skylark.mqcommon.extras import needs_extra
from skylark.mqcommon.tier.bucket import (
    Bucket,
    BucketAway,
    BucketError,
    BucketRefused,
    NoSuchObject,
    ObjectExists,
    check_name,
)
from skylark.mqcommon.tier.buckets.directory import DirectoryBucket

FORMS: Final = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory"
_OBJECT_STORES: Final = ("s3", "gs", "az")
# The names that at least one of the three kinds of store allows.
_STORE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,221}")

_PROBES: Final = "skylark-probe"
_RACES: Final = 3
_RACERS: Final = 8


def check_url(url: str) -> None:
    """Raise ConfigError if `open_bucket` would not understand ``url``; opens nothing, needs no library."""
    _split(url)


def open_bucket(url: str, *, timeout_s: float) -> Bucket:
    """The bucket at ``url``. Sends no request, so a bucket that cannot be reached is opened, too.

    A bucket, or a directory, is made by its administrator: a directory that is not there may not be mounted.
    ``timeout_s``: each call ends within that time (`Bucket.put`: each request of it).
    Raises ConfigError for a URL that is wrong or lacks something, UserError when the extra ``tier`` is missing.
    """
    parts = _split(url)
    if parts.scheme == "file":
        return DirectoryBucket(os.path.normpath(unquote(parts.path)))
    with needs_extra(f"a bucket of {parts.scheme}://", "tier"):
        from skylark.mqcommon.tier.buckets.objects import open_store
    return open_store(parts.scheme, parts.netloc, parts.path.strip("/"), timeout_s)


def _split(url: str) -> SplitResult:
    # An error never shows the whole URL, as it may hold a secret.
    try:
        parts = urlsplit(url)
        has_secret = parts.username is not None or parts.password is not None
    except ValueError as error:
        raise ConfigError(f"the URL of a bucket cannot be read ({error}): give {FORMS}") from None
    if has_secret:
        raise ConfigError(
            "the URL of a bucket holds no credentials: remove what is before the @, and set them in the environment"
            " (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY)"
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"the URL of a bucket ends before the ? or #: {parts.scheme}://{parts.netloc}{parts.path}")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            raise ConfigError(f"{url}: a directory has three slashes and an absolute path: file:///directory")
    elif parts.scheme in _OBJECT_STORES:
        if not _STORE_NAME.fullmatch(parts.netloc):
            raise ConfigError(f"{url}: {parts.netloc!r} is no name of a bucket: give {FORMS}")
        prefix = parts.path.strip("/")
        try:
            if prefix:
                check_name(prefix)
        except InvalidArgument as error:
            raise ConfigError(f"{url}: {error}") from None
    else:
        raise ConfigError(f"{url!r} is no URL of a bucket: give {FORMS}")
    return parts


def probe(bucket: Bucket) -> None:
    """Try what a set needs of ``bucket``: rights, ranges, and creates of which exactly one wins.

    Takes some 40 small requests. Raises BucketRefused, with what to do, for a bucket that cannot hold a set; BucketAway
    when it cannot be told now. Its objects, below ``skylark-probe/``, are removed at the end.
    """
    folder = f"{_PROBES}/{secrets.token_hex(8)}"
    names = [f"{folder}/{number}" for number in range(_RACES + 1)]
    try:
        for name in names[:_RACES]:
            _race(bucket, name)
        _try_reads(bucket, names[_RACES])
    except BaseException:
        _remove_quietly(bucket, names)
        raise
    bucket.delete(names)
    try:
        # Not the object of a race: a create without an answer may still be on its way.
        bucket.get(names[_RACES])
    except NoSuchObject:
        return
    raise BucketRefused(
        f"{bucket.url} still shows an object after its deletion: a set needs a store that reads its writes"
    )


def sets_in(bucket: Bucket) -> list[str]:
    """The sets in the bucket: its folders, without the folder in which masters probe the bucket."""
    return [folder for folder in bucket.folders("") if folder != _PROBES]


def _race(bucket: Bucket, name: str) -> None:
    """Create ``name`` by several threads at once: one must win, and its bytes must be there."""
    start = threading.Barrier(_RACERS)
    won: list[bytes] = []
    errors: list[BaseException] = []

    def create(content: bytes) -> None:
        start.wait()
        try:
            bucket.create(name, content)
        except ObjectExists:
            pass
        except BaseException as error:
            errors.append(error)
        else:
            won.append(content)

    threads = [threading.Thread(target=create, args=(secrets.token_bytes(16),), daemon=True) for _ in range(_RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A racer whose outcome is unknown may have won.
    unexpected = [each for each in errors if not isinstance(each, BucketAway)]
    if unexpected:
        raise unexpected[0]
    if errors and not won:
        raise errors[0]
    if len(won) != 1 or bucket.get(name) != won[0]:
        _refuse_creates(bucket, f"of {_RACERS} creators of one object {len(won)} succeeded")
    try:
        bucket.create(name, b"later")
    except ObjectExists:
        return
    _refuse_creates(bucket, "it replaced an object that should only be created")


def _refuse_creates(bucket: Bucket, seen: str) -> NoReturn:
    raise BucketRefused(
        f"{bucket.url} cannot hold a set, since two masters could overwrite each other: {seen}. Use a store that obeys"
        " If-None-Match: * in PutObject (S3, GCS, Azure, MinIO, Ceph since 2024 do), or update the store"
    )


def _try_reads(bucket: Bucket, name: str) -> None:
    content = secrets.token_bytes(4096)
    bucket.put(name, (content[:1024], content[1024:]))
    if bucket.get(name) != content or bucket.head(name).size != len(content):
        raise BucketRefused(f"{bucket.url} gives other bytes than it got: see what is between the broker and the store")
    if bucket.get_range(name, 1000, 2000) != content[1000:3000]:
        raise BucketRefused(f"{bucket.url} does not read ranges (the header Range): a set needs a store that does")
    next(iter(bucket.list(name)), None)


def _remove_quietly(bucket: Bucket, names: Sequence[str]) -> None:
    """Remove objects after an error, which says more than an error of the removal would."""
    with contextlib.suppress(BucketError):
        bucket.delete(names)
