"""What every bucket does. A file of tests derives a class, and gives it a fixture ``bucket``."""

import threading
from collections.abc import Callable, Iterator

import pytest

from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.tier.bucket import Bucket, NoSuchObject, ObjectExists
from skylark.mqcommon.tier.opening import probe

#: More than one part of a multipart upload.
LARGE = 8 * 1024 * 1024 + 1
# The last name is as of a set whose name was quoted.
NAMES = ["set/seg/a-1/0.log", "set/seg/a-1/index", "set/seg/a.b/0.log", "set/seg/a/0.log", "s%2Ft/meta/1"]

CREATORS = 6


def race(bucket: Bucket, name: str) -> list[bytes | type]:
    """Create ``name`` by several threads: what each has written, or its error."""
    start = threading.Barrier(CREATORS)
    outcomes: list[bytes | type] = []

    def create(content: bytes) -> None:
        start.wait()
        try:
            bucket.create(name, content)
        except Exception as error:
            outcomes.append(type(error))
        else:
            outcomes.append(content)

    threads = [threading.Thread(target=create, args=(b"%d" % each,)) for each in range(CREATORS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


class BucketContract:
    def test_an_object_is_read_whole_and_in_ranges(self, bucket: Bucket) -> None:
        assert bucket.put("set/one", [b"abc", memoryview(b"defg"), b"", bytearray(b"h")]) == 8
        assert bucket.get("set/one") == b"abcdefgh"
        assert bucket.get_range("set/one", 2, 3) == b"cde"
        assert bucket.get_range("set/one", 7, 1) == b"h"
        assert bucket.get_range("set/one", 3, 0) == b""
        assert (bucket.head("set/one").name, bucket.head("set/one").size) == ("set/one", 8)

    def test_a_range_past_the_end_is_no_short_answer(self, bucket: Bucket) -> None:
        bucket.put("one", [b"abcdefgh"])
        for start, size in ((0, 9), (7, 2), (8, 1), (100, 1)):
            with pytest.raises(NoSuchObject):
                bucket.get_range("one", start, size)

    def test_an_empty_object_is_there(self, bucket: Bucket) -> None:
        assert bucket.put("set/empty", []) == 0
        assert bucket.get("set/empty") == b""
        assert bucket.head("set/empty").size == 0

    def test_an_object_of_several_parts_comes_back(self, bucket: Bucket) -> None:
        data = bytes(range(256)) * (LARGE // 256) + b"x"
        assert len(data) == LARGE
        assert bucket.put("large", [memoryview(data)]) == LARGE
        assert bucket.get("large") == data
        assert bucket.get_range("large", LARGE - 3, 3) == data[-3:]

    def test_a_missing_object_is_an_error_of_each_read(self, bucket: Bucket) -> None:
        bucket.put("set/some", [b"1"])
        calls: list[Callable[[], object]] = [
            lambda: bucket.get("set/none"),
            lambda: bucket.get_range("set/none", 0, 1),
            lambda: bucket.get_range("set/none", 0, 0),
            lambda: bucket.head("set/none"),
            # A folder is no object.
            lambda: bucket.get("set"),
            lambda: bucket.head("set"),
            # An object is no folder.
            lambda: bucket.get("set/some/below"),
        ]
        for call in calls:
            with pytest.raises(NoSuchObject):
                call()

    def test_create_never_replaces(self, bucket: Bucket) -> None:
        bucket.create("set/manifest/1", b"first")
        with pytest.raises(ObjectExists):
            bucket.create("set/manifest/1", b"second")
        with pytest.raises(ObjectExists):
            bucket.create("set/manifest/1", b"first")
        assert bucket.get("set/manifest/1") == b"first"
        bucket.delete(["set/manifest/1"])
        bucket.create("set/manifest/1", b"third")
        assert bucket.get("set/manifest/1") == b"third"

    def test_of_creators_at_the_same_time_one_wins(self, bucket: Bucket) -> None:
        for number in range(5):
            outcomes = race(bucket, f"race/{number}")
            assert outcomes.count(ObjectExists) == CREATORS - 1
            assert bucket.get(f"race/{number}") in outcomes

    def test_an_error_of_the_pieces_passes_and_leaves_no_object(self, bucket: Bucket) -> None:
        class OfCaller(OSError):
            pass

        def pieces(size: int) -> Iterator[bytes]:
            yield bytes(size)
            raise OfCaller

        for size in (1, LARGE):
            with pytest.raises(OfCaller):
                bucket.put("set/half", pieces(size))
            with pytest.raises(NoSuchObject):
                bucket.head("set/half")

    def test_a_list_has_what_begins_with_its_prefix(self, bucket: Bucket) -> None:
        for size, name in enumerate(NAMES):
            bucket.put(name, [bytes(size)])
        assert sorted(each.name for each in bucket.list("")) == sorted(NAMES)
        assert sorted(each.name for each in bucket.list("set/seg/")) == sorted(NAMES[:4])
        assert sorted(each.name for each in bucket.list("set/seg/a-1/")) == sorted(NAMES[:2])
        assert sorted(each.name for each in bucket.list("set/seg/a-")) == sorted(NAMES[:2])
        assert sorted(each.name for each in bucket.list("set/seg/a-1/ind")) == [NAMES[1]]
        assert [(each.name, each.size) for each in bucket.list("s%2Ft/")] == [(NAMES[4], 4)]
        assert list(bucket.list("set/none/")) == list(bucket.list("se/")) == []
        assert all(each == bucket.head(each.name) for each in bucket.list(""))

    def test_folders_are_told_by_their_last_part(self, bucket: Bucket) -> None:
        for name in [*NAMES, "alone"]:
            bucket.put(name, [b""])
        assert list(bucket.folders("")) == ["s%2Ft", "set"]
        assert list(bucket.folders("set/seg")) == ["a", "a-1", "a.b"]
        assert list(bucket.folders("set/none")) == []

    def test_deletion_takes_the_named_objects_and_ignores_missing_ones(self, bucket: Bucket) -> None:
        for name in NAMES:
            bucket.put(name, [b""])
        bucket.delete([])
        bucket.delete(["set/none", NAMES[0], NAMES[1], "set/seg"])
        bucket.delete([NAMES[0]])
        assert sorted(each.name for each in bucket.list("")) == sorted(NAMES[2:])

    def test_names_that_could_leave_the_bucket_are_refused(self, bucket: Bucket) -> None:
        calls: list[Callable[[str], object]] = [
            bucket.get,
            bucket.head,
            lambda name: bucket.get_range(name, 0, 1),
            lambda name: bucket.create(name, b""),
            lambda name: bucket.put(name, []),
            lambda name: bucket.delete([name]),
        ]
        for name in ("", "/a", "a/", "a//b", "..", "a/../b", "a/./b", ".hidden", "a\x00b"):
            for call in calls:
                with pytest.raises(InvalidArgument):
                    call(name)

    def test_the_probe_finds_nothing_and_leaves_nothing(self, bucket: Bucket) -> None:
        probe(bucket)
        assert list(bucket.list("")) == []
