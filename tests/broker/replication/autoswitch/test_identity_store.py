"""The identity's files on disk: a crash at any step leaves what `next_step` can go on with."""

from random import Random

import pytest

from broker.replication.autoswitch.identity_file import Identified, Step, next_step
from broker.replication.autoswitch.identity_store import (
    FILE_NAME,
    read_identity,
    remove_temporary,
    write_identity,
    write_temporary,
)
from mqcommon.errors import ConfigError
from tests.support.memory_files import MemoryFiles

MINE = Identified("c", "b", 3, "127.0.0.1:10911;17")


def test_an_id_is_kept_at_every_step() -> None:
    fs = MemoryFiles()
    fs.mkdirs("/store")
    assert next_step(*read_identity(fs, "/store", "c", "b")) is Step.ASK_NEXT_ID
    write_temporary(fs, "/store", MINE)
    assert next_step(*read_identity(fs, "/store", "c", "b")) is Step.APPLY
    images: list[MemoryFiles] = []
    fs.before_call = lambda operation, path: images.extend(fs.crash(Random(seed)) for seed in range(10))
    write_identity(fs, "/store", MINE)
    for image in images:
        kept = read_identity(image, "/store", "c", "b")
        assert MINE in kept or kept.identified == MINE._replace(check_code="")
    assert read_identity(fs, "/store", "c", "b") == (MINE._replace(check_code=""), None)
    assert fs.read(f"/store/{FILE_NAME}") == b"c#b#3"


def test_an_id_that_another_broker_got_is_forgotten() -> None:
    fs = MemoryFiles()
    fs.mkdirs("/store")
    write_temporary(fs, "/store", MINE)
    remove_temporary(fs, "/store")
    assert read_identity(fs.crash(Random(1)), "/store", "c", "b") == (None, None)


def test_the_store_of_another_broker_is_refused() -> None:
    fs = MemoryFiles()
    fs.mkdirs("/store")
    write_identity(fs, "/store", MINE)
    with pytest.raises(ConfigError, match="belongs to broker b"):
        read_identity(fs, "/store", "c", "other")
