"""A bucket that fails as object stores do, and as no store should, by a seed: for simulations.

The bucket has no faults until a test sets `FaultyBucket.faults` or one of the states. With one thread and the same
seed all calls end in the same way.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random

from skylark.mqcommon.tier.bucket import (
    Bucket,
    BucketAway,
    BucketRefused,
    ObjectExists,
    ObjectInfo,
)


class Stopped(BaseException):
    """The process of the caller has died at this call."""


@dataclass
class Faults:
    """How probable each fault is in a call, 0 to 1. Good stores have the first four only."""

    #: BucketAway, and nothing was done: throttling, a lost request.
    lost_request: float = 0.0
    #: BucketAway, although it was done: a lost answer.
    lost_answer: float = 0.0
    #: BucketAway, and the create is done at a later call: a request that a proxy held.
    late_create: float = 0.0
    #: A list without the newest objects, or with objects that are gone.
    stale_list: float = 0.0

    #: A create that replaces an object that is there.
    wrong_condition: float = 0.0
    #: A put that says it is done, and of which only the beginning is there.
    cut_put: float = 0.0
    #: A read with a wrong byte.
    wrong_byte: float = 0.0


GOOD_STORE = Faults(lost_request=0.05, lost_answer=0.05, late_create=0.02, stale_list=0.5)


class FaultyBucket:
    """As `Bucket`, around ``bucket``.

    ``on_call`` is called before each call with its name and the object's: simulations advance their clock in it.
    """

    def __init__(self, bucket: Bucket, random: Random, on_call: Callable[[str, str], None] = lambda call, name: None):
        self.url = bucket.url
        self.faults = Faults()
        #: All calls fail with BucketAway.
        self.is_away = False
        #: Calls that write fail with BucketRefused.
        self.is_read_only = False
        #: All calls fail with BucketRefused.
        self.have_credentials_ended = False
        #: Calls so far, with failed calls.
        self.calls = 0
        self._bucket = bucket
        self._random = random
        self._on_call = on_call
        # Call → whether it is done before `Stopped`.
        self._stop_at: tuple[int, bool] | None = None
        # Creates that are done later.
        self._late: list[tuple[str, bytes]] = []
        # By prefix, what a stale list shows.
        self._old: dict[str, list[ObjectInfo]] = {}

    def stop_at(self, call: int, *, is_done: bool) -> None:
        """Raise `Stopped` in the call with this number, counted from now as 0. ``is_done``: the call has its effect."""
        self._stop_at = self.calls + call, is_done

    def do_late_creates(self, probability: float = 1.0) -> None:
        """Do creates that were late until now, each of them with ``probability``."""
        waiting, self._late = self._late, []
        for name, data in waiting:
            if self._random.random() >= probability:
                self._late.append((name, data))
                continue
            with suppress(ObjectExists):
                self._bucket.create(name, data)

    def get(self, name: str) -> bytes:
        with self._call("get", name, writes=False):
            return self._read(self._bucket.get(name))

    def get_range(self, name: str, start: int, size: int) -> bytes:
        with self._call("get_range", name, writes=False):
            return self._read(self._bucket.get_range(name, start, size))

    def head(self, name: str) -> ObjectInfo:
        with self._call("head", name, writes=False):
            return self._bucket.head(name)

    def create(self, name: str, data: bytes) -> None:
        with self._call("create", name):
            if self._happens(self.faults.late_create):
                self._late.append((name, bytes(data)))
                raise BucketAway(f"{name}: no answer in time")
            if self._happens(self.faults.wrong_condition):
                self._bucket.put(name, (data,))
            else:
                self._bucket.create(name, data)

    def put(self, name: str, pieces: Iterable[bytes | memoryview]) -> int:
        with self._call("put", name):
            if not self._happens(self.faults.cut_put):
                return self._bucket.put(name, pieces)
            data = b"".join(pieces)
            self._bucket.put(name, (data[: self._random.randrange(len(data) + 1)],))
            return len(data)

    def delete(self, names: Sequence[str]) -> None:
        with self._call("delete", names[0] if names else ""):
            self._bucket.delete(names)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._call("list", prefix, writes=False):
            found = list(self._bucket.list(prefix))
            if self._happens(self.faults.stale_list):
                found = self._old.get(prefix, [])
            self._old[prefix] = found
            return iter(found)

    def folders(self, prefix: str) -> Sequence[str]:
        with self._call("folders", prefix, writes=False):
            return self._bucket.folders(prefix)

    def close(self) -> None:
        self._bucket.close()

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    @contextmanager
    def _call(self, call: str, name: str, *, writes: bool = True) -> Iterator[None]:
        self._on_call(call, name)
        stops, is_done = False, False
        if self._stop_at is not None:
            stops, is_done = self._stop_at[0] == self.calls, self._stop_at[1]
        self.calls += 1
        if stops and not is_done:
            raise Stopped(f"before {call} {name}")
        self.do_late_creates(0.5)
        if self.have_credentials_ended:
            raise BucketRefused(f"{name}: the store answered 400: ExpiredToken")
        if self.is_read_only and writes:
            raise BucketRefused(f"{name}: the store answered 403: AccessDenied")
        if self.is_away or self._happens(self.faults.lost_request):
            raise BucketAway(f"{name}: the store answered 503: SlowDown")
        yield
        if stops:
            raise Stopped(f"after {call} {name}")
        if writes and self._happens(self.faults.lost_answer):
            raise BucketAway(f"{name}: no answer in time")

    def _read(self, data: bytes) -> bytes:
        if not data or not self._happens(self.faults.wrong_byte):
            return data
        at = self._random.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self._random.randrange(8)]) + data[at + 1 :]
