"""Each small file that a daemon or a consumer reads at its start: cut, zeroed, with zeros after its end, bits flipped.

It is read, or refused with one line for the user; nothing else is ever raised. Files of the store are in
store/test_damage.py, journal and snapshot in meta/test_damage.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from skylark.broker.delivery.timed_delivery import TimerCheckpoint
from skylark.broker.meta.json_files import CONSUMER_OFFSETS, TOPICS, read_tables
from skylark.broker.replication.autoswitch import enrolment
from skylark.broker.replication.autoswitch.epochs import Epoch, Epochs, decode_file, encode_file
from skylark.broker.security.accounts.account_file import parse_file
from skylark.broker.store.truncation.intent import FILE_NAME as INTENT
from skylark.broker.store.truncation.intent import QueueTruncation, TruncationIntent, read_intent, write_intent
from skylark.mqcommon.disk.atomic import read_or_backup
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import ProtocolError, StoreCorrupt, UserError
from skylark.mqcommon.yaml_documents import parse_yaml
from skylark.namesrv.kvconfig import KvConfig
from skylark.sdk.consumer.offsets import _check as check_offsets
from tests.broker.security.accounts.acl_files import ADMIN
from tests.support.memory_files import MemoryFiles
from tests.support.rot import Ways, cut_anywhere, flipped_anywhere, zeroed_anywhere, zeros_after

IDENTITY = "the-cluster", "broker-a"
CUT = TruncationIntent(100, 200, 7, [QueueTruncation("t", 0, 0, 3, 5)])
EPOCHS = Epochs([Epoch(1, 0), Epoch(3, 400)])
TABLE = b'{"dataVersion":{"counter":3,"timestamp":7},"topicConfigTable":{"t":{"topicName":"t","readQueueNums":2}}}'
OFFSETS = b'{"offsetTable":{"t@g":{0:7,1:9}}}'


class File(NamedTuple):
    """``read`` gets the disk with the file; ``refuses``: what it may raise, which a start shows as one line."""

    path: str
    whole: bytes
    read: Callable[[FileSystem], object]
    refuses: tuple[type[Exception], ...]


def intent_bytes() -> bytes:
    fs = MemoryFiles()
    fs.mkdirs("/store")
    write_intent(fs, "/store", CUT)
    return fs.read(f"/store/{INTENT}")


def text(fs: FileSystem, path: str) -> str:
    try:
        return fs.read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:  # as read_secret_file says it
        raise UserError(str(error)) from None


FILES = {
    "unfinishedCut": File(f"/store/{INTENT}", intent_bytes(), lambda fs: read_intent(fs, "/store"), (StoreCorrupt,)),
    "brokerIdentity": File(
        "/id",
        enrolment.encode(enrolment.Identified(*IDENTITY, 2)),
        lambda fs: enrolment.decode(fs.read("/id"), "/id", *IDENTITY),
        (UserError,),
    ),
    "epochFileCheckpoint": File(
        "/epochs", encode_file(EPOCHS), lambda fs: decode_file(fs.read("/epochs")), (ProtocolError,)
    ),
    "topics.json": File(f"/config/{TOPICS}", TABLE, lambda fs: read_tables(fs, "/config"), (StoreCorrupt,)),
    "consumerOffset.json": File(
        f"/config/{CONSUMER_OFFSETS}", OFFSETS, lambda fs: read_tables(fs, "/config"), (StoreCorrupt,)
    ),
    "kvConfig.json": File(
        "/kv",
        b'{"configTable":{"ORDER_TOPIC_CONFIG":{"t":"broker-a:4"}}}',
        lambda fs: KvConfig.load(fs, "/kv"),
        (UserError,),
    ),
    "offsets.json": File(
        "/offsets",
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5}}',
        lambda fs: read_or_backup(fs, "/offsets", check_offsets),
        (StoreCorrupt,),
    ),
    "plain_acl.yml": File(
        "/acl", ADMIN.encode(), lambda fs: parse_file(parse_yaml(text(fs, "/acl"), "/acl"), "/acl"), (UserError,)
    ),
    "timercheck": File(
        "/timer", bytes(range(64)), lambda fs: TimerCheckpoint.of_rocketmq(fs.read("/timer")), (ProtocolError,)
    ),
}


@pytest.mark.parametrize("ways", [cut_anywhere, zeroed_anywhere, flipped_anywhere, zeros_after])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_read_or_refused_in_one_line(name: str, ways: Ways) -> None:
    file = FILES[name]
    fs = MemoryFiles()
    fs.overwrite(file.path, file.whole)
    assert file.read(fs) is not None
    for _, data in ways(file.whole):
        fs.overwrite(file.path, data)
        try:
            file.read(fs)
        except file.refuses as error:
            assert str(error) and "\n" not in str(error)


@pytest.mark.parametrize("ways", [cut_anywhere, zeroed_anywhere, flipped_anywhere, zeros_after])
@pytest.mark.parametrize("name", ["unfinishedCut", "epochFileCheckpoint"])
def test_a_file_with_a_crc_is_never_read_as_another(name: str, ways: Ways) -> None:
    file = FILES[name]
    fs = MemoryFiles()
    fs.overwrite(file.path, file.whole)
    whole = repr(file.read(fs)) if name == "unfinishedCut" else [*decode_file(file.whole)]
    for _, data in ways(file.whole):
        fs.overwrite(file.path, data)
        try:
            found = file.read(fs)
        except file.refuses:
            continue
        assert (repr(found) if name == "unfinishedCut" else [*found]) == whole
