"""A bucket in a directory: what a power loss, NFS and full or unmounted disks do to it."""

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from skylark.mqcommon.tier.bucket import Bucket, BucketAway, BucketError, BucketRefused, NoSuchObject, ObjectExists
from skylark.mqcommon.tier.buckets.directory import DirectoryBucket
from tests.mqcommon.tier.buckets.contract import BucketContract
from tests.support.memory_bucket import MemoryBucket


@pytest.fixture
def bucket(tmp_path: Path) -> DirectoryBucket:
    return DirectoryBucket(str(tmp_path))


class TestDirectoryBucket(BucketContract):
    @pytest.fixture
    def bucket(self, tmp_path: Path) -> Bucket:
        return DirectoryBucket(str(tmp_path))


def failing(number: int) -> Callable[..., object]:
    def fail(*args: object, **kwargs: object) -> object:
        raise OSError(number, os.strerror(number))

    return fail


def files(root: Path) -> set[str]:
    """All files, temporary ones as well."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_the_bytes_are_synced_before_the_name_and_the_folders_after_it(
    bucket: DirectoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "link", "rename", "mkdir")}

    def fsync(fd: int) -> None:
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).relative_to(tmp_path)}")
        real["fsync"](fd)

    def named(step: str) -> Callable[[str, str], None]:
        def call(old: str, new: str) -> None:
            real[step](old, new)
            steps.append(f"{step} {Path(new).relative_to(tmp_path)}")

        return call

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", named("link"))
    monkeypatch.setattr(os, "rename", named("rename"))
    bucket.create("set/manifest/1", b"1")
    assert steps[0].startswith("sync .temporary/")
    # Each new folder in its parent, then the name.
    assert steps[1:] == ["sync .", "sync set", "link set/manifest/1", "sync set/manifest"]
    steps.clear()
    bucket.put("set/manifest/2", [b"2"])
    assert steps[0].startswith("sync .temporary/")
    assert steps[1:] == ["rename set/manifest/2", "sync set/manifest"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are not asked to begin")
def test_the_disk_begins_with_each_large_piece_before_the_next_is_made(
    bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[int, int]] = []
    real = os.posix_fadvise

    def fadvise(fd: int, at: int, size: int, advice: int) -> None:
        begun.append((at, size))
        real(fd, at, size, advice)

    monkeypatch.setattr(os, "posix_fadvise", fadvise)
    large = 1024 * 1024

    def pieces() -> Iterator[bytes]:
        yield bytes(large)
        assert begun == [(0, large)]
        yield b"small"
        yield bytes(large)

    assert bucket.put("set/large", pieces()) == 2 * large + 5
    assert begun == [(0, large), (large + 5, large)]
    assert bucket.get("set/large") == bytes(large) + b"small" + bytes(large)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are not asked to begin")
def test_a_file_system_that_takes_no_advice_is_written_to(
    bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fadvise(fd: int, at: int, size: int, advice: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "posix_fadvise", fadvise)
    assert bucket.put("set/large", [bytes(2 << 20)]) == 2 << 20
    assert bucket.head("set/large").size == 2 << 20


@pytest.mark.parametrize(
    ("call", "number", "expected"),
    [
        ("write", errno.ENOSPC, BucketRefused),
        ("write", errno.EIO, BucketAway),
        ("fsync", errno.EIO, BucketAway),
        ("fsync", errno.EDQUOT, BucketRefused),
        ("mkdir", errno.EROFS, BucketRefused),
    ],
)
def test_a_failed_write_leaves_no_file(
    bucket: DirectoryBucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    expected: type[BucketError],
) -> None:
    bucket.create("set/there", b"")
    monkeypatch.setattr(os, call, failing(number))
    with pytest.raises(expected, match=f"{tmp_path}/?.*{os.strerror(number)}"):
        bucket.create("set/new/1", b"1")
    with pytest.raises(expected):
        bucket.put("set/new/1", [b"1"])
    assert files(tmp_path) == {"set/there"}


def test_a_folder_that_cannot_be_synced_leaves_a_doubt(
    bucket: DirectoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.create("set/there", b"")
    fsync, synced = os.fsync, []

    def fail_later(fd: int) -> None:
        synced.append(fd)
        if len(synced) > 1:
            failing(errno.EIO)()
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail_later)
    with pytest.raises(BucketAway, match="cannot be synced"):
        bucket.create("set/new", b"1")
    assert bucket.get("set/new") == b"1"


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.EACCES, BucketRefused), (errno.ESTALE, BucketAway), (errno.EIO, BucketAway), (errno.ENOENT, NoSuchObject)],
)
def test_the_error_of_a_failed_read_has_a_kind(
    bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[BucketError]
) -> None:
    bucket.create("set/there", b"1")
    monkeypatch.setattr("builtins.open", failing(number))
    with pytest.raises(expected):
        bucket.get("set/there")
    with pytest.raises(expected):
        bucket.get_range("set/there", 0, 1)


def test_a_file_system_without_hard_links_is_refused(bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP):
        monkeypatch.setattr(os, "link", failing(number))
        with pytest.raises(BucketRefused, match="makes no hard links"):
            bucket.create("one", b"1")


def test_a_link_whose_answer_nfs_has_lost_is_the_creators_own(
    bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_and_ask_again(old: str, new: str) -> None:
        link(old, new)
        link(old, new)

    monkeypatch.setattr(os, "link", link_and_ask_again)
    bucket.create("one", b"1")
    with pytest.raises(ObjectExists):
        bucket.create("one", b"2")


def test_a_rename_whose_answer_nfs_has_lost_is_a_doubt(
    bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def rename_and_ask_again(old: str, new: str) -> None:
        rename(old, new)
        rename(old, new)

    monkeypatch.setattr(os, "rename", rename_and_ask_again)
    with pytest.raises(BucketAway):
        bucket.put("one", [b"1"])
    assert bucket.get("one") == b"1"


def test_a_folder_that_is_removed_before_the_file_gets_its_name_is_made_again(
    bucket: DirectoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.create("set/seg/old", b"")
    link, waiting = os.link, ["set/seg/old"]

    def delete_and_link(old: str, new: str) -> None:
        if waiting:
            bucket.delete([waiting.pop()])
        link(old, new)

    monkeypatch.setattr(os, "link", delete_and_link)
    bucket.create("set/seg/new", b"1")
    assert bucket.get("set/seg/new") == b"1"


def test_empty_folders_go_with_their_last_object(bucket: DirectoryBucket, tmp_path: Path) -> None:
    bucket.put("set/seg/1/index", [b""])
    bucket.put("set/meta/1", [b""])
    bucket.delete(["set/seg/1/index"])
    assert sorted(each.name for each in (tmp_path / "set").iterdir()) == ["meta"]
    bucket.delete(["set/meta/1"])
    assert [each.name for each in tmp_path.iterdir()] == [".temporary"]


def test_files_of_crashed_writers_are_removed_and_those_of_others_are_not(tmp_path: Path) -> None:
    DirectoryBucket(str(tmp_path)).create("one", b"")
    old, new = tmp_path / ".temporary/old", tmp_path / ".temporary/new"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    reader = DirectoryBucket(str(tmp_path))
    reader.get("one")
    assert old.exists()
    reader.create("two", b"")
    assert files(tmp_path) == {".temporary/new", "one", "two"}


def test_a_directory_that_was_emptied_is_written_again(bucket: DirectoryBucket, tmp_path: Path) -> None:
    bucket.create("one", b"")
    shutil.rmtree(tmp_path / ".temporary")
    with pytest.raises(BucketAway):
        bucket.create("two", b"")
    bucket.create("two", b"")


def test_a_directory_that_is_gone_is_away_and_has_no_missing_objects(bucket: DirectoryBucket, tmp_path: Path) -> None:
    bucket.create("one", b"")
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    calls: list[Callable[[], object]] = [
        lambda: bucket.get("one"),
        lambda: bucket.head("one"),
        lambda: bucket.create("two", b""),
        lambda: bucket.put("two", []),
        lambda: bucket.delete(["one"]),
        lambda: list(bucket.list("")),
        lambda: bucket.folders(""),
    ]
    for call in calls:
        with pytest.raises(BucketAway, match="create the directory, or mount its file system"):
            call()
    tmp_path.touch()
    with pytest.raises(BucketAway, match="is no directory"):
        bucket.create("two", b"")


def test_a_directory_that_is_not_mounted_any_more_is_away(
    bucket: DirectoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "_device", -1)
    for call in (lambda: bucket.get("none"), lambda: bucket.create("new", b"")):
        with pytest.raises(BucketAway, match="on another file system than before"):
            call()
    assert files(tmp_path) == set()


names = st.sampled_from(["a/1", "a/2", "b/c/1", "b/c-1", "b/c.1", "one"])


class Twins(RuleBasedStateMachine):
    """Each rule does the same in a directory and in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.buckets: list[Bucket] = [DirectoryBucket(self.home.name), MemoryBucket()]

    def same(self, call: Callable[[Bucket], object]) -> None:
        outcomes: list[object] = []
        for bucket in self.buckets:
            try:
                outcomes.append(call(bucket))
            except BucketError as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1]

    @rule(name=names, data=st.binary(max_size=5))
    def create(self, name: str, data: bytes) -> None:
        self.same(lambda bucket: bucket.create(name, data))

    @rule(name=names, pieces=st.lists(st.binary(max_size=5), max_size=3))
    def put(self, name: str, pieces: list[bytes]) -> None:
        self.same(lambda bucket: bucket.put(name, pieces))

    @rule(some=st.lists(names, max_size=3))
    def delete(self, some: list[str]) -> None:
        self.same(lambda bucket: bucket.delete(some))

    @rule(name=names, start=st.integers(0, 6), size=st.integers(0, 6))
    def read(self, name: str, start: int, size: int) -> None:
        self.same(lambda bucket: bucket.get(name))
        self.same(lambda bucket: bucket.get_range(name, start, size))
        self.same(lambda bucket: bucket.head(name).size)

    @rule(prefix=st.sampled_from(["", "a", "a/", "b/c", "b/c/", "o"]))
    def list_objects(self, prefix: str) -> None:
        self.same(lambda bucket: sorted(each[:2] for each in bucket.list(prefix)))

    @rule(prefix=st.sampled_from(["", "a", "b", "b/c"]))
    def list_folders(self, prefix: str) -> None:
        self.same(lambda bucket: list(bucket.folders(prefix)))

    def teardown(self) -> None:
        with suppress(OSError):
            self.home.cleanup()


TestTwins = Twins.TestCase
TestTwins.settings = settings(stateful_step_count=15)
