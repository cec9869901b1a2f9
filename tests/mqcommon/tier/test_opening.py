"""URLs of buckets, and the probe, which refuses a bucket that cannot hold a set."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.tier.bucket import BucketAway, BucketRefused
from skylark.mqcommon.tier.opening import check_url, open_bucket, probe
from tests.support.faulty_bucket import Faults, FaultyBucket
from tests.support.memory_bucket import MemoryBucket


@pytest.mark.parametrize(
    "url",
    ["s3://bucket", "s3://my.bucket-1/", "s3://bucket/a/b", "gs://under_score/x", "az://container", "file:///a b"],
)
def test_each_form_of_url_is_understood(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("/var/tier", "give s3://bucket/prefix, gs://"),
        ("s3:/bucket", "'' is no name of a bucket"),
        ("s3://", "'' is no name of a bucket"),
        ("s3://UPPER/x", "'UPPER' is no name of a bucket"),
        ("s3://bucket:9000/x", "'bucket:9000' is no name"),
        ("s3://bucket/a/../b", "parts are not empty and begin with no dot"),
        ("s3://bucket/a//b", "parts are not empty"),
        ("s3://bucket/a?region=x", r"ends before the \? or #"),
        ("http://host/bucket", "is no URL of a bucket"),
        ("file://relative/path", "three slashes"),
        ("file:///", "three slashes"),
        ("s3://[bucket", "cannot be read"),
    ],
)
def test_wrong_urls_are_refused_with_the_right_form(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_url(url)
    with pytest.raises(ConfigError, match=text):
        open_bucket(url, timeout_s=1)


@pytest.mark.parametrize("url", ["s3://key:topsecret@bucket/x", "s3://topsecret@bucket", "s3://topsecret@[bucket"])
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_url(url)
    assert "topsecret" not in str(caught.value)


def test_a_directory_is_never_made_as_it_may_not_be_mounted(tmp_path: Path) -> None:
    bucket = open_bucket(f"file://{tmp_path}/some%20where/tier/", timeout_s=1)
    assert bucket.url == f"file://{tmp_path}/some where/tier"
    with pytest.raises(BucketAway, match="some where/tier: No such file or directory: create the directory, or mount"):
        probe(bucket)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "some where/tier").mkdir(parents=True)
    probe(bucket)


def faulty(**faults: float) -> FaultyBucket:
    bucket = FaultyBucket(MemoryBucket(), Random(1))
    bucket.faults = Faults(**faults)
    return bucket


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_the_probe_refuses_a_store_that_takes_two_creates(share: float) -> None:
    bucket = faulty(wrong_condition=share)
    with pytest.raises(BucketRefused, match=r"two masters could overwrite each other: .* Use a store that obeys"):
        probe(bucket)
    assert list(bucket.list("")) == []


def test_the_probe_refuses_a_store_that_takes_only_the_first_create_by_its_name() -> None:
    class Atomic(MemoryBucket):
        """The last of several creators wins; later ones are refused."""

        def create(self, name: str, data: bytes) -> None:
            if self.objects.get(name, (b"",))[0] == b"later" or data == b"later":
                super().create(name, data)
            else:
                self.put(name, (data,))

    with pytest.raises(BucketRefused, match="of 8 creators of one object 8 succeeded"):
        probe(Atomic())


def test_the_probe_refuses_wrong_bytes_and_missing_ranges() -> None:
    with pytest.raises(BucketRefused, match=r"two masters|other bytes|ranges"):
        probe(faulty(wrong_byte=1.0))

    class WithoutRanges(MemoryBucket):
        def get_range(self, name: str, start: int, size: int) -> bytes:
            return self.get(name)

    with pytest.raises(BucketRefused, match="does not read ranges"):
        probe(WithoutRanges())


def test_the_probe_refuses_a_store_that_keeps_what_was_deleted() -> None:
    class Keeping(MemoryBucket):
        def delete(self, names: Sequence[str]) -> None:
            pass

    with pytest.raises(BucketRefused, match="still shows an object after its deletion"):
        probe(Keeping())


def test_the_probe_says_what_is_missing_and_what_is_away() -> None:
    bucket = faulty()
    bucket.is_read_only = True
    with pytest.raises(BucketRefused, match="AccessDenied"):
        probe(bucket)
    bucket.is_read_only = False
    bucket.is_away = True
    with pytest.raises(BucketAway, match="SlowDown"):
        probe(bucket)


@pytest.mark.histories
def test_the_probe_never_refuses_a_good_store_that_is_busy(seeds: Sequence[str]) -> None:
    for seed in seeds:
        bucket = FaultyBucket(MemoryBucket(), Random(seed))
        bucket.faults = Faults(lost_request=0.02, lost_answer=0.02, late_create=0.02, stale_list=0.5)
        try:
            probe(bucket)
        except BucketAway:
            continue


def test_the_probe_refuses_a_store_between_which_and_the_broker_large_objects_change() -> None:
    class Changing(MemoryBucket):
        def get(self, name: str) -> bytes:
            data = super().get(name)
            return data if len(data) < 1_000 else data[::-1]

    with pytest.raises(BucketRefused, match="gives other bytes than it got"):
        probe(Changing())
