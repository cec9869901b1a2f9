"""A broker on a Java broker's directory, over the wire: topics, offsets, messages; and it goes on."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skylark.broker.cli import main
from skylark.mqcommon.disk.files import DiskUsage, OsFiles
from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.offsets import QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET
from skylark.remoting.protocol.requests.query import QUERY_MESSAGE
from skylark.remoting.protocol.requests.topics import GET_ALL_TOPIC_CONFIG, TopicConfigTable
from tests.broker.running import pull_request, running, send_request
from tests.support.golden_store import VERSIONS, rows, stored_offsets, unpack

# What stands in the broker.conf of the Java broker.
CONF: dict[str, Any] = {
    "broker_name": "broker-g",
    "mapped_file_size_commit_log": 262_144,
    "mapped_file_size_consume_queue": 6_000,
    "max_hash_slot_num": 500,
    "max_index_num": 2_000,
}


class RoomyDisk(OsFiles):
    """The files of this machine's disk, which is as good as empty: how full it is is no matter here."""

    def disk_usage(self, path: str) -> DiskUsage:
        return DiskUsage(total=100, used=1, free=99)


def conf(store: Path) -> dict[str, Any]:
    return {**CONF, "fs": RoomyDisk(), "store_path_root_dir": str(store)}


async def pull_all(client: RemotingClient, addr: str, topic: str, queue_id: int, offset: int = 0) -> list[MessageExt]:
    found: list[MessageExt] = []
    while True:
        answer = await client.invoke(addr, pull_request(topic, offset, queue_id=queue_id))
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code == ResponseCode.PULL_NOT_FOUND, answer.remark
            return found
        assert answer.ext is not None
        found += decode_messages(answer.body)
        offset = int(answer.ext["nextBeginOffset"])


async def query_offset(client: RemotingClient, addr: str, queue_id: int) -> int:
    ext = {"consumerGroup": "golden_group", "topic": "GoldenA", "queueId": queue_id, "setZeroIfNotFound": False}
    answer = await client.invoke(addr, Command(QUERY_CONSUMER_OFFSET.code, ext))
    return int(answer.ext["offset"]) if answer.ext else -1


async def check_messages(client: RemotingClient, addr: str, version: str) -> None:
    told = rows(version, "ROW")
    by_place: dict[tuple[str, int], list[MessageExt]] = {}
    for topic, queue_id in sorted({(row["topic"], row["queueId"]) for row in told}):
        by_place[topic, queue_id] = await pull_all(client, addr, topic, queue_id)
    for row in told:
        message = by_place[row["topic"], row["queueId"]][row["queueOffset"]]
        assert (message.body, message.tags, message.keys) == (row["body"].encode(), row["tags"], row["keys"])
        assert (message.msg_id, message.offset_msg_id) == (row["msgId"], row["offsetMsgId"])
    (batch,) = rows(version, "BATCH")
    found = await pull_all(client, addr, "GoldenBatch", batch["queueId"])
    assert [message.body for message in found[:10]] == [b"batch %d" % number for number in range(10)]
    (big,) = rows(version, "BIG")
    assert by_place["GoldenA", big["queueId"]][big["queueOffset"]].body == bytes(big["zeros"])


@pytest.mark.parametrize("version", VERSIONS)
async def test_everything_is_served_and_goes_on(version: str, tmp_path: Path) -> None:
    store = unpack(version, tmp_path)
    async with running(**conf(store)) as (client, addr):
        await check_messages(client, addr, version)
        answer = await client.invoke(addr, Command(GET_ALL_TOPIC_CONFIG.code, {}))
        table = decode_body(TopicConfigTable, answer.body, answer.codec).topic_config_table
        assert {"GoldenA", "GoldenB", "GoldenBatch", "%RETRY%golden_group"} < set(table)
        for queue_id, offset in stored_offsets(version).items():
            assert await query_offset(client, addr, queue_id) == offset
            left = await pull_all(client, addr, "GoldenA", queue_id, offset)
            assert [message.queue_offset for message in left] == list(range(offset, offset + len(left)))
            assert len(left) == 2
        row = rows(version, "ROW")[17]
        query = {"topic": row["topic"], "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        for extra in ({"key": row["keys"]}, {"key": row["msgId"], "_UNIQUE_KEY_QUERY": "true"}):
            answer = await client.invoke(addr, Command(QUERY_MESSAGE.code, {**query, **extra}))
            assert row["offsetMsgId"] in [message.offset_msg_id for message in decode_messages(answer.body)]
        sent = await client.invoke(addr, send_request("GoldenA", b"more", queue_id=0, n="broker-g"))
        end = next(each["max"] for each in rows(version, "OFFSET") if each["queueId"] == 0)
        assert sent.ext is not None and int(sent.ext["queueOffset"]) == end
        commit = {"consumerGroup": "golden_group", "topic": "GoldenA", "queueId": 0, "commitOffset": end}
        await client.invoke(addr, Command(UPDATE_CONSUMER_OFFSET.code, commit))
    async with running(**conf(store)) as (client, addr):
        await check_messages(client, addr, version)
        assert await query_offset(client, addr, 0) == end
        (message,) = await pull_all(client, addr, "GoldenA", 0, end)
        assert message.body == b"more"


@pytest.mark.parametrize("version", VERSIONS)
def test_verify_store_finds_no_damage_and_changes_nothing(version: str, tmp_path: Path) -> None:
    store = unpack(version, tmp_path)
    (tmp_path / "broker.conf").write_text("maxHashSlotNum=500\nmaxIndexNum=2000\n", encoding="utf-8")
    files = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    result = CliRunner().invoke(main, ["verifyStore", str(store), "-c", str(tmp_path / "broker.conf")])
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert "131 records" in result.stdout and result.stdout.endswith("no damage\n")
    del files[store / "lock"]  # held while it looks
    assert {path: path.read_bytes() for path in files} == files


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_log_says_what_was_taken_over_and_nothing_alarming(
    version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store = unpack(version, tmp_path)
    for _ in range(2):
        async with running(**conf(store)):
            pass
    lines = [record.getMessage() for record in caplog.records]
    (imported,) = [line for line in lines if line.startswith("metadata imported: ")]
    assert "topics, " in imported and str(store / "config") in imported
    warnings = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert [line for line in warnings if not line.startswith("no NameServer is set")] == []
    assert not any("crash" in line for line in lines)
