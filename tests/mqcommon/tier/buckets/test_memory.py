"""The buckets of simulations do what every bucket does."""

from random import Random

import pytest

from skylark.mqcommon.tier.bucket import Bucket
from tests.mqcommon.tier.buckets.contract import BucketContract
from tests.support.faulty_bucket import FaultyBucket
from tests.support.memory_bucket import MemoryBucket


class TestMemoryBucket(BucketContract):
    @pytest.fixture
    def bucket(self) -> Bucket:
        return MemoryBucket()


class TestFaultyBucketWithoutFaults(BucketContract):
    @pytest.fixture
    def bucket(self) -> Bucket:
        return FaultyBucket(MemoryBucket(), Random(1))
