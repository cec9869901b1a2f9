"""Finding, printing, sending and consuming messages."""

import base64
import json
import time
import zlib
from datetime import datetime
from pathlib import Path

import pytest

from skylark.mqadmin.message_text import save_body
from skylark.mqcommon.errors import BrokerError, ConnectFailed
from skylark.mqcommon.message.compression import COMPRESSIONS
from skylark.mqcommon.message.ids import UniqueKeys
from skylark.mqcommon.message.message import decode_messages
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.clients import ConsumerConnection, ConsumerRunningInfo, SubscriptionData
from skylark.remoting.protocol.requests.groups import ConsumeOffset, ConsumeStats
from tests.mqadmin.fake import MASTER, World, message, route, run
from tests.sdk.fakes import record

UNIQUE = "FD00000000000000000000000000000249904E0E2F2A67A392290000"
OFFSET_ID = "7F000001000078BF0000000000001016"
JSON = ("--output", "json")


@pytest.fixture(autouse=True)
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Bodies are saved under the test's own folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def saved(own_tmp: Path, name: str) -> Path:
    """The body that a command saved."""
    (path,) = own_tmp.glob(f"mqadmin-bodies-*/{name}")
    return path


def test_block_of_a_message(own_tmp: Path) -> None:
    world = World(messages=[message()])
    lines = run(world, "queryMsgById", "-i", OFFSET_ID, "-f", "utf-8").stdout.splitlines()
    path = saved(own_tmp, UNIQUE)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [line[:20].rstrip() for line in lines[:16]] == [
        "OffsetID:", "Topic:", "Tags:", "Keys:", "Queue ID:", "Queue Offset:", "CommitLog Offset:", "Reconsume Times:",
        "Born Timestamp:", "Store Timestamp:", "Born Host:", "Store Host:", "System Flag:", "Properties:",
        "Message Body Path:", "Message Body:",
    ]  # fmt: skip
    values = [line[21:] for line in lines[:16]]
    assert values[:8] == [OFFSET_ID, "AdminT", "[TagA]", "[adminkey]", "3", "0", "4118", "0"]
    assert values[10:13] == ["127.0.0.1:42960", "127.0.0.1:30911", "0"]
    assert values[13].startswith("{MSG_REGION=DefaultRegion, UNIQ_KEY=")
    assert values[14:] == [str(path), "hello admin"]
    assert lines[16:] == ["", "", "WARN: No Consumer"]
    assert path.read_bytes() == b"hello admin"


@pytest.mark.parametrize(("stored", "shown"), [(zlib.compress(b"plain"), b"plain"), (b"no zlib", b"no zlib")])
def test_a_compressed_body_is_shown_plain_if_that_is_possible(own_tmp: Path, stored: bytes, shown: bytes) -> None:
    (found,) = decode_messages(record("AdminT", 3, 0, stored, sys_flag=COMPRESSIONS["zlib"], UNIQ_KEY=UNIQUE))
    result = run(World(messages=[found]), "queryMsgById", "-i", found.offset_msg_id, "-f", "utf-8")
    assert f"{'Message Body:':20} {shown.decode()}\n" in result.stdout
    assert saved(own_tmp, UNIQUE).read_bytes() == shown
    assert ("the body is shown as it is stored" in result.stderr) == (stored == shown)


def test_no_tags_and_no_keys() -> None:
    world = World(messages=[message(tags=None, keys=None)])
    lines = run(world, "queryMsgById", "-i", OFFSET_ID).stdout.splitlines()
    assert [line[21:] for line in lines[2:4]] == ["[null]", "[null]"]


def test_a_message_does_not_drive_the_terminal() -> None:
    evil = message(body=b"\x1b]0;owned\x07", tags="a\rb", properties={"k": "\x1b[2J"})
    world = World(messages=[evil], routes={"AdminT": route()})
    for arguments in (["queryMsgById", "-i", OFFSET_ID, "-f", "utf-8"], ["consumeMessage", "-t", "AdminT"]):
        text = run(world, *arguments).stdout
        assert "\\x1b" in text
        assert not {"\x1b", "\r", "\x07"} & set(text)


def test_a_body_is_saved_in_its_folder_only(own_tmp: Path) -> None:
    path = save_body(message(msg_id="../../escaped"), own_tmp)
    assert path == own_tmp / "______escaped"
    target = own_tmp / "target"
    path.unlink()
    path.symlink_to(target)
    with pytest.raises(OSError):
        save_body(message(msg_id="../../escaped"), own_tmp)
    assert not target.exists()


def test_a_body_that_cannot_be_saved_is_said(own_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(own_tmp / "missing"))
    result = run(World(messages=[message()]), "queryMsgById", "-i", OFFSET_ID)
    assert result.exit_code == 0
    assert "the body is not saved" in result.stderr


def test_several_ids_and_one_that_is_not_there() -> None:
    world = World(
        messages=[message()], errors={("view_messages", "0A"): BrokerError(1, "can not find message", MASTER)}
    )
    result = run(world, "queryMsgById", "-i", f"0A, {OFFSET_ID}", *JSON)
    assert result.exit_code == 1
    assert "message 0A: " in result.stderr
    assert [one["offsetMsgId"] for one in json.loads(result.stdout)] == [OFFSET_ID]


def test_the_messages_of_a_batch_share_an_id_and_are_all_shown() -> None:
    result = run(World(messages=[message()] * 40), "queryMsgById", "-i", OFFSET_ID, *JSON)
    assert result.exit_code == 0 and len(json.loads(result.stdout)) == 32
    assert "is the id of 40 messages" in result.stderr


def test_a_unique_key_with_its_topic() -> None:
    world = World(messages=[message()])
    assert run(world, "queryMsgById", "-i", UNIQUE, "-t", "AdminT").exit_code == 0
    assert world.called("view_messages") == []


def test_query_by_key_passes_the_range() -> None:
    world = World(messages=[message()])
    run(world, "queryMsgByKey", "-t", "AdminT", "-k", "adminkey", "-b", "1", "-e", "2", "-m", "3", "-c", "C")
    assert [call[:6] for call in world.called("query_message_by_key")] == [("AdminT", "adminkey", 3, 1, 2, "C")]


@pytest.mark.parametrize("command", [f"queryMsgByKey -t T -k {UNIQUE}", f"queryMsgByUniqueKey -t T -i {UNIQUE}"])
def test_nothing_found(command: str) -> None:
    table, document = run(World(), *command.split()), run(World(), *command.split(), *JSON)
    assert (table.exit_code, document.exit_code) == (1, 1)
    assert "no message of topic T has" in table.stderr
    assert json.loads(document.stdout) == []


@pytest.mark.parametrize(
    "command", ["queryMsgByKey -t T -k k", f"queryMsgByUniqueKey -t T -i {UNIQUE}", f"queryMsgTraceById -i {UNIQUE}"]
)
def test_a_search_that_ended_early_says_so(command: str) -> None:
    result = run(World(cut="broker-a: it ended early"), *command.split())
    assert "not all messages were searched. broker-a: it ended early" in result.stderr


def test_query_by_unique_key_shows_one_or_all(own_tmp: Path) -> None:
    world = World(messages=[message(), message(queue_offset=1)])
    arguments = ["queryMsgByUniqueKey", "-t", "AdminT", "-i", UNIQUE]
    assert run(world, *arguments).stdout.count("Topic:") == 1
    text = run(world, *arguments, "-a").stdout
    assert (text.count("Topic:"), text.count("OffsetID:")) == (2, 0)
    assert saved(own_tmp, f"{UNIQUE}_1").read_bytes() == b"hello admin"


def test_query_by_offset() -> None:
    world = World(messages=[message(), message(queue_offset=1)], routes={"AdminT": route()})
    arguments = ["queryMsgByOffset", "-t", "AdminT", "-b", "broker-a", "-i", "3", "-o"]
    [found] = json.loads(run(world, *arguments, "1", *JSON).stdout)
    assert found["queueOffset"] == 1
    missing = run(world, *arguments, "2")
    assert missing.exit_code == 1
    assert "no message at offset 2; it has 0 to 1" in missing.stderr
    assert "is empty" in run(World(routes={"AdminT": route()}), *arguments, "0").stderr


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("-b nowhere -i 3", "no such queue to read: broker nowhere has none; broker-a has 4\n"),
        ("-b broker-a -i 4", "no such queue to read: broker broker-a has queues 0 to 3\n"),
    ],
)
def test_query_by_offset_at_a_wrong_place(place: str, text: str) -> None:
    world = World(messages=[message()], routes={"AdminT": route()})
    result = run(world, "queryMsgByOffset", "-t", "AdminT", *place.split(), "-o", "0")
    assert result.exit_code == 1
    assert result.stderr == f"mqadmin: topic AdminT has {text}"


@pytest.mark.parametrize(
    ("consumer_offset", "tags", "track"),
    [
        (0, [], "NOT_CONSUME_YET"),
        (1, ["TagA"], "CONSUMED"),
        (1, ["TagB"], "CONSUMED_BUT_FILTERED"),
        (1, ["*"], "CONSUMED"),
    ],
)
def test_tracks_of_push_consumers(consumer_offset: int, tags: list[str], track: str) -> None:
    subscription = {"AdminT": SubscriptionData("AdminT", tags_set=tags)}
    world = World(
        messages=[message()],
        groups={"AdminT": ["G"]},
        consumers={"G": ConsumerConnection([], subscription, "CONSUME_PASSIVELY")},
        consume_stats={"G": ConsumeStats({MessageQueue("AdminT", "broker-a", 3): ConsumeOffset(1, consumer_offset)})},
    )
    line = run(world, "queryMsgById", "-i", OFFSET_ID).stdout.splitlines()[-1]
    assert line == f"MessageTrack [consumerGroup=G, trackType={track}, exceptionDesc=null]"


def test_tracks_of_others() -> None:
    world = World(
        messages=[message()],
        groups={"AdminT": ["away", "lost", "pull"]},
        consumers={"pull": ConsumerConnection([])},
        errors={
            ("consumer_connection", "away"): BrokerError(206, "not online", MASTER),
            ("consumer_connection", "lost"): ConnectFailed(MASTER, "refused"),
        },
    )
    [found] = json.loads(run(world, "queryMsgById", "-i", OFFSET_ID, *JSON).stdout)
    assert [track["trackType"] for track in found["tracks"]] == ["NOT_ONLINE", "UNKNOWN", "PULL"]
    assert found["tracks"][0]["exceptionDesc"] == "CODE:206 DESC:not online"


def test_json_has_the_body_as_it_is() -> None:
    world = World(messages=[message(body=b"\xff\x00")])
    [found] = json.loads(run(world, "queryMsgById", "-i", OFFSET_ID, *JSON).stdout)
    assert base64.b64decode(found["bodyBase64"]) == b"\xff\x00"


# --- giving one to a consumer


def world_with_a_consumer(kind: str = "CONSUME_PASSIVELY") -> World:
    return World(messages=[message()], running={"c@1": ConsumerRunningInfo({"PROP_CONSUME_TYPE": kind})})


@pytest.mark.parametrize("arguments", [f"queryMsgById -i {OFFSET_ID}", f"queryMsgByUniqueKey -i {UNIQUE} -t AdminT"])
def test_a_push_consumer_is_given_a_message(arguments: str) -> None:
    world = world_with_a_consumer()
    result = run(world, *arguments.split(), "-g", "G", "-d", "c@1")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == (
        "ConsumeMessageDirectlyResult [order=false, autoCommit=true, consumeResult=CR_LATER, remark=\\x1b[2J, "
        "spentTimeMills=5]\n"
    )
    [(group, client, given)] = world.called("consume_message_directly")
    assert (group, client, given.offset_msg_id) == ("G", "c@1", OFFSET_ID)
    [found] = json.loads(run(world, *arguments.split(), "-g", "G", "-d", "c@1", *JSON).stdout)
    assert (found["consumeResult"], found["offsetMsgId"]) == ("CR_LATER", OFFSET_ID)


def test_a_pull_consumer_is_not() -> None:
    world = world_with_a_consumer("CONSUME_ACTIVELY")
    result = run(world, "queryMsgById", "-i", OFFSET_ID, "-g", "G", "-d", "c@1")
    assert result.exit_code == 1
    assert "client c@1 of group G is not a push consumer" in result.stderr
    assert world.called("consume_message_directly") == []


@pytest.mark.parametrize("arguments", ["-g G", "-d c@1"])
def test_without_a_group_or_a_client_the_message_is_shown(arguments: str, own_tmp: Path) -> None:
    world = world_with_a_consumer()
    for command in ("queryMsgById -i " + OFFSET_ID, f"queryMsgByUniqueKey -t AdminT -i {UNIQUE}"):
        result = run(world, *command.split(), *arguments.split())
        assert (result.exit_code, result.stdout.count("Topic:")) == (0, 1), result.stderr
    assert world.called("consume_message_directly") == []


# --- sending


def test_send_to_a_queue_and_to_a_broker() -> None:
    world = World()
    arguments = ["sendMessage", "-t", "T", "-p", "x", "-b", "broker-a"]
    assert run(world, *arguments, "-i", "2").stdout.splitlines()[1].split()[:3] == ["broker-a", "2", "SEND_OK"]
    assert run(world, *arguments).exit_code == 0
    unknown = run(world, *arguments, "-i", "9")
    assert unknown.exit_code == 1
    assert "no such writable queue" in unknown.stderr


def test_send_to_a_queue_of_no_broker() -> None:
    result = run(World(), "sendMessage", "-t", "T", "-p", "x", "-i", "2")
    assert result.exit_code == 2
    assert "needs -b" in result.stderr


def test_send_an_empty_and_a_foreign_body() -> None:
    world = World()
    run(world, "sendMessage", "-t", "T", "-p", "")
    run(world, "sendMessage", "-t", "T", "-p", "中文")
    assert [sent.body for sent, _ in world.called("send")] == [b"", "中文".encode()]


# --- consuming


def consumed(world: World, *arguments: str) -> list[tuple[int, int]]:
    result = run(world, "consumeMessage", "-t", "AdminT", *arguments, *JSON)
    assert result.exit_code == 0, result.stderr
    return [(one["queueId"], one["queueOffset"]) for one in json.loads(result.stdout)["messages"]]


def two_queues(count: int) -> World:
    stored = [
        message(queue_id=queue, queue_offset=at, store_timestamp=1000 + at) for queue in range(2) for at in range(count)
    ]
    return World(messages=stored, routes={"AdminT": route(2)})


def test_consume_all_queues_in_order() -> None:
    assert consumed(two_queues(3)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_consume_at_most() -> None:
    world = two_queues(3)
    assert consumed(world, "-c", "4") == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert (
        "The older 1 message of the 1 queue will be provided"
        in run(world, "consumeMessage", "-t", "AdminT", "-c", "4").stdout
    )


def test_consume_more_than_a_pull() -> None:
    assert len(consumed(two_queues(70), "-c", "128")) == 128


def test_consume_a_queue_from_an_offset() -> None:
    world = two_queues(3)
    assert consumed(world, "-b", "broker-a", "-i", "1", "-o", "2") == [(1, 2)]
    assert consumed(world, "-b", "broker-a", "-i", "1") == [(1, 0), (1, 1), (1, 2)]


def test_consume_a_span_of_time() -> None:
    assert consumed(two_queues(4), "-s", "1001", "-e", "1003") == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_times_in_rocketmqs_form() -> None:
    assert run(two_queues(1), "consumeMessage", "-t", "AdminT", "-s", "2026-11-21#02:59:15:854").exit_code == 0
    assert run(two_queues(1), "consumeMessage", "-t", "AdminT", "-s", "yesterday").exit_code == 2


@pytest.mark.parametrize("arguments", ["-i 1", "-o 1", "-b broker-a -o 1", "-c 0"])
def test_consume_wrong_usage(arguments: str) -> None:
    assert run(two_queues(1), "consumeMessage", "-t", "AdminT", *arguments.split()).exit_code == 2


def test_consume_a_queue_that_is_not_there() -> None:
    result = run(two_queues(1), "consumeMessage", "-t", "AdminT", "-b", "broker-a", "-i", "7")
    assert result.exit_code == 1
    assert "broker broker-a has queues 0 to 1" in result.stderr


# --- ids


def test_a_unique_key_is_decoded_without_a_server() -> None:
    now_ms = round(time.time() * 1000)
    key = UniqueKeys("10.1.2.3", 4711, 1).next(now_ms - 1)
    result = run(World(), "DecodeMessageId", "-i", key, namesrv=None)
    date = datetime.fromtimestamp((now_ms - 1) // 1000).strftime("%Y-%m-%d#%H:%M:%S")
    assert result.stdout.splitlines() == ["ip=10.1.2.3", f"date={date}:{(now_ms - 1) % 1000:03d}"]
    document = json.loads(run(World(), "decodeMessageId", "-i", key, *JSON, namesrv=None).stdout)
    assert (document["pid"], document["timestamp"]) == (4711, now_ms - 1)


def test_what_is_no_unique_key_is_refused() -> None:
    result = run(World(), "DecodeMessageId", "-i", "key-7", namesrv=None)
    assert (result.exit_code, result.stdout) == (1, "") and "32 or 56 hex digits" in result.stderr
