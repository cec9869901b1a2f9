"""A bucket in memory."""

import threading
from collections.abc import Iterable, Iterator, Sequence

from skylark.mqcommon.tier.bucket import NoSuchObject, ObjectExists, ObjectInfo, check_name


class MemoryBucket:
    """As `Bucket`; ``now_ms`` is the time that objects get."""

    url = "memory://bucket"

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.now_ms = 0
        self._lock = threading.Lock()

    def kept(self, data: bytes) -> bytes:
        """The bytes of an object as they are kept: what has a length and gives bytes for a slice."""
        return data

    def get(self, name: str) -> bytes:
        return self._object(name)[:]

    def _object(self, name: str) -> bytes:
        check_name(name)
        try:
            return self.objects[name][0]
        except KeyError:
            raise NoSuchObject(name) from None

    def get_range(self, name: str, start: int, size: int) -> bytes:
        data = self._object(name)[start : start + size]
        if len(data) < size:
            raise NoSuchObject(f"{name} ends before {start + size}")
        return data

    def head(self, name: str) -> ObjectInfo:
        return ObjectInfo(name, len(self._object(name)), self.objects[name][1])

    def create(self, name: str, data: bytes) -> None:
        check_name(name)
        with self._lock:
            if name in self.objects:
                raise ObjectExists(name)
            self.objects[name] = bytes(data), self.now_ms

    def put(self, name: str, pieces: Iterable[bytes | memoryview]) -> int:
        check_name(name)
        data = b"".join(pieces)
        kept = self.kept(data)
        with self._lock:
            self.objects[name] = kept, self.now_ms
        return len(data)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            check_name(name)
        with self._lock:
            for name in names:
                self.objects.pop(name, None)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for name, (data, modified_ms) in sorted(self.objects.items()):
            if name.startswith(prefix):
                yield ObjectInfo(name, len(data), modified_ms)

    def folders(self, prefix: str) -> Sequence[str]:
        start = len(prefix) + 1 if prefix else 0
        below = [name[start:] for name in self.objects if name.startswith(f"{prefix}/" if prefix else "")]
        return sorted({name.partition("/")[0] for name in below if "/" in name})

    def close(self) -> None:
        pass
