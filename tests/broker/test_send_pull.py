"""Sends, pulls and queries through a whole broker: codes, texts and what comes back."""

import zlib
from itertools import product
from random import Random

import pytest
import trio
import trio.testing

from skylark.broker.delivery.held_pulls import HeldPull, HeldPulls
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.writing.send_handlers import UNPACKED_AT_ONCE
from skylark.mqcommon.errors import DiskFull, RemotingError
from skylark.mqcommon.message.batch import encode_batch
from skylark.mqcommon.message.compression import COMPRESSIONS, compressed
from skylark.mqcommon.message.ids import parse_offset_msg_id
from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.requests.query import QUERY_MESSAGE, VIEW_MESSAGE_BY_ID
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE
from tests.broker.running import pull_request, running, send_request
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until


def messages(answer: Command) -> list[MessageExt]:
    return decode_messages(answer.body)


async def test_a_message_is_pulled_as_it_was_sent() -> None:
    async with running() as (client, addr):
        sent = await client.invoke(addr, send_request("t", b"hello", properties="TAGS\x01a\x02KEYS\x01k1 k2\x02"))
        assert sent.code == 0 and sent.ext is not None
        assert (sent.ext["queueId"], sent.ext["queueOffset"], sent.ext["MSG_REGION"]) == ("0", "0", "DefaultRegion")
        pulled = await client.invoke(addr, pull_request("t", 0))
        assert (pulled.code, pulled.remark) == (0, "FOUND") and pulled.ext is not None
        assert (pulled.ext["nextBeginOffset"], pulled.ext["maxOffset"], pulled.ext["minOffset"]) == (1, 1, 0)
        (message,) = messages(pulled)
        assert (message.body, message.tags, message.keys) == (b"hello", "a", "k1 k2")
        assert message.properties["CLUSTER"] == "DefaultCluster"
        assert message.offset_msg_id == sent.ext["msgId"]
        assert len(message.msg_id) == 32, "the broker makes a unique key when the client sent none"


async def test_the_keys_of_two_runs_of_a_broker_differ_even_in_the_same_millisecond() -> None:
    makers: list[str] = []
    for _ in range(2):
        async with running() as (client, addr):
            await client.invoke(addr, send_request("t", b"x"))
            (message,) = messages(await client.invoke(addr, pull_request("t", 0)))
            # The last 12 digits of a key are its time and number; the 8 before them are the run's.
            makers.append(message.properties["UNIQ_KEY"][-20:-12])
            # Another run may have the same port, as well as address and process id.
            assert int(makers[-1], 16) != int(addr.rpartition(":")[2])
    assert makers[0] != makers[1]


async def test_the_long_form_and_batches() -> None:
    async with running() as (client, addr):
        long_form = {
            "producerGroup": "g", "topic": "t", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "1",
            "sysFlag": "0", "bornTimestamp": "1", "flag": "7", "properties": "p\x01v", "batch": "0", "unitMode": "0",
        }  # fmt: skip
        assert (await client.invoke(addr, Command(SEND_MESSAGE.code, long_form, b"long"))).code == 0
        rows = [(0, b"%d" % n, b"UNIQ_KEY\x01%032d\x02TAGS\x01T\x02" % n) for n in range(5)]
        batch = send_request("t", encode_batch(rows), queue_id=1, m=True)
        batch.code = SEND_BATCH_MESSAGE.code
        answer = await client.invoke(addr, batch)
        assert answer.code == 0 and answer.codec == CBOR and len(answer.body) == 5 * 8
        found = messages(await client.invoke(addr, pull_request("t", 0, queue_id=1)))
        assert [message.body for message in found] == [b"long", b"0", b"1", b"2", b"3", b"4"]
        assert found[0].flag == 7 and found[0].properties["p"] == "v"
        assert [message.msg_id for message in found[1:]] == [f"{n:032d}" for n in range(5)]


async def test_a_json_client_gets_the_ids_of_a_batch_as_text() -> None:
    async with running() as (client, addr):
        batch = send_request("t", encode_batch([(0, b"x", b""), (0, b"y", b"")]))
        batch.code = SEND_BATCH_MESSAGE.code
        answer = await client.invoke(addr, batch)
        assert answer.ext is not None
        first, second = answer.ext["msgId"].split(",")
        assert parse_offset_msg_id(first)[2] == 0 < parse_offset_msg_id(second)[2]


# In this order: the first request finds no topic, and a later request makes the topic.
REFUSALS = [
    (send_request("t", b"", c="nothing"), ResponseCode.TOPIC_NOT_EXIST, "topic[t] not exist, apply first please!"),
    (send_request("a b", b""), ResponseCode.INVALID_PARAMETER, "illegal characters"),
    (send_request("SCHEDULE_TOPIC_XXXX", b""), ResponseCode.NO_PERMISSION, "is forbidden"),
    (
        send_request("t", b"", queue_id=9),
        ResponseCode.INVALID_PARAMETER,
        "request queueId[9] is illegal, TopicConfig [topicName=t, readQueueNums=4, writeQueueNums=4, perm=RW-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}] Producer: 127.0.0.1:",
    ),
    (send_request("t", bytes(70_000)), ResponseCode.MESSAGE_ILLEGAL, "the message is illegal"),
    (send_request("t", b"", f=4), ResponseCode.MESSAGE_ILLEGAL, "TRAN_MSG is not true"),
    (
        send_request("t", b"", properties="TIMER_DELAY_SEC\x01259201\x02"),
        ResponseCode.MESSAGE_ILLEGAL,
        "should not be bigger than the max delay 259200000ms",
    ),
    (send_request("t", b"", e="x"), ResponseCode.SYSTEM_ERROR, "invalid literal"),
    (send_request("t", b"", b=None), ResponseCode.SYSTEM_ERROR, "the custom field <b> is null"),
    (send_request("t", b"junk", m=True), ResponseCode.MESSAGE_ILLEGAL, "the batch ends within message 0"),
    (pull_request("nowhere", 0), ResponseCode.TOPIC_NOT_EXIST, "topic[nowhere] not exist"),
    (
        pull_request("%LMQ%a", 0),
        ResponseCode.TOPIC_NOT_EXIST,
        "while enableLmq=false; set enableLmq=true",
    ),
    (
        send_request("%LMQ%a", b"", c="nothing"),
        ResponseCode.TOPIC_NOT_EXIST,
        "while enableLmq=false; set enableLmq",
    ),
    (pull_request("BenchmarkTest", 0, queue_id=1024), ResponseCode.INVALID_PARAMETER, "queueId[1024] is illegal"),
    (pull_request("BenchmarkTest", 5), ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE"),
    (pull_request("BenchmarkTest", 0), ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE"),
    (pull_request("BenchmarkTest", 0, expressionType="SQL92"), ResponseCode.SYSTEM_ERROR, "SQL92"),
    (pull_request("BenchmarkTest", 0, sysFlag=0), ResponseCode.SUBSCRIPTION_NOT_EXIST, "subscription not exist"),
    (Command(VIEW_MESSAGE_BY_ID.code, {"offset": 5}), 1, "can not find message by the offset, 5"),
]


async def test_refusals_have_rocketmqs_codes_and_texts() -> None:
    async with running() as (client, addr):
        for request, code, text in REFUSALS:
            answer = await client.invoke(addr, request)
            assert (answer.code, text in (answer.remark or "")) == (code, True), answer


@pytest.mark.parametrize("batch", [False, True])
async def test_a_time_of_delivery_that_is_none_or_too_late_is_refused(batch: bool) -> None:
    values = {"": 0, "0": 0, "-1": 0, "1700000000000": 0, "99999999999999": 13, "9" * 5000: 13, "soon": 13}
    async with running() as (client, addr):
        for number, (name, value) in enumerate(product(("TIMER_DELIVER_MS", "__STARTDELIVERTIME"), values)):
            topic, code = f"t{number}", values[value]
            properties = f"p\x01v\x02{name}\x01{value}\x02"
            request = send_request(topic, b"x", properties=properties)
            if batch:
                rows = [(0, b"x", b"UNIQ_KEY\x011\x02"), (0, b"x", properties.encode())]
                request = send_request(topic, encode_batch(rows), m=True)
            answer = await client.invoke(addr, request)
            assert (answer.code, "the message is illegal" in (answer.remark or "")) == (code, code == 13), answer
            assert len(messages(await client.invoke(addr, pull_request(topic, 0)))) == (0 if code else 1 + batch)


@pytest.mark.parametrize("batch", [False, True])
async def test_stored_messages_have_the_brokers_properties_once_and_in_rocketmqs_order(batch: bool) -> None:
    sent = "TAGS\x01a\x02UNIQ_KEY\x01k\x02"
    again = (
        "MSG_REGION\x01old\x02TAGS\x01a\x02CLUSTER\x01old\x02UNIQ_KEY\x01k\x02MYCLUSTER\x01m\x02TRACE_ON\x01false\x02"
    )
    requests = [send_request("t", b"x", properties=properties) for properties in (sent, again)]
    if batch:
        requests = [send_request("t", encode_batch([(0, b"x", p.encode()) for p in (sent, again)]), m=True)]
    async with running(region_id="north", broker_cluster_name="c", trace_on=False) as (client, addr):
        for request in requests:
            answer = await client.invoke(addr, request)
            assert answer.ext is not None
            assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("north", "false")
        found = messages(await client.invoke(addr, pull_request("t", 0)))
    own = "MSG_REGION\x01north\x02CLUSTER\x01c\x02TRACE_ON\x01false\x02"
    stored = [bytes(message.record.properties).decode() for message in found]
    assert stored == [sent + own, "TAGS\x01a\x02UNIQ_KEY\x01k\x02MYCLUSTER\x01m\x02" + own]


@pytest.mark.parametrize("batch", [False, True])
async def test_the_brokers_own_properties_count_for_the_limit(batch: bool) -> None:
    own = "MSG_REGION\x01DefaultRegion\x02CLUSTER\x01DefaultCluster\x02TRACE_ON\x01true\x02"
    key = "UNIQ_KEY\x01k\x02p\x01"
    longest = 32_767 - len(own) - len(key) - 1
    async with running() as (client, addr):
        for length, code in [(longest, 0), (longest + 1, ResponseCode.MESSAGE_ILLEGAL)]:
            properties = f"{key}{'x' * length}\x02"
            request = send_request("t", b"x", properties=properties)
            if batch:
                request = send_request("t", encode_batch([(0, b"x", properties.encode())]), m=True)
            assert (await client.invoke(addr, request)).code == code
        (message,) = messages(await client.invoke(addr, pull_request("t", 0)))
        assert len(message.record.properties) == 32_767


async def test_a_held_pull_is_answered_when_its_message_comes() -> None:
    async with running() as (client, addr):
        await client.invoke(addr, send_request("t", b"first"))
        answers = []

        async def wait() -> None:
            answers.append(
                await client.invoke(addr, pull_request("t", 1, wait_ms=30_000, subscription="a || b"), 60_000)
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await client.invoke(addr, send_request("t", b"not for us", properties="TAGS\x01c\x02"))
            await client.invoke(addr, send_request("t", b"for us", properties="TAGS\x01b\x02"))
        assert [message.body for message in messages(answers[0])] == [b"for us"]
        assert answers[0].ext is not None and int(answers[0].ext["nextBeginOffset"]) == 3


async def test_a_held_pull_ends_when_its_time_is_over() -> None:
    async with running() as (client, addr):
        await client.invoke(addr, send_request("t", b"first"))
        answer = await client.invoke(addr, pull_request("t", 1, wait_ms=50), 10_000)
        assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")


async def test_rocketmqs_clients_get_32_messages_and_ours_what_they_ask_for() -> None:
    async with running() as (client, addr):
        for number in range(100):
            await client.invoke(addr, send_request("t", b"%d" % number))
        assert len(messages(await client.invoke(addr, pull_request("t", 0, maxMsgNums=500)))) == 100
    async with running() as (client, addr):
        await client.channel(addr, 1000)
        rows = [(0, b"%d" % n, b"") for n in range(100)]
        batch = send_request("t", encode_batch(rows), m=True)
        await client.invoke(addr, batch)
        pull = pull_request("t", 0, maxMsgNums=500)
        channel = await client.channel(addr, 1000)
        # On the channel itself the request stays JSON, as an official client's.
        pull.codec = 0
        assert len(messages(await channel.invoke(pull, 5_000))) == 32


async def test_messages_are_found_by_key_and_by_id() -> None:
    async with running() as (client, addr):
        sent = await client.invoke(addr, send_request("t", b"x", properties="KEYS\x01k\x02UNIQ_KEY\x01U1\x02"))
        assert sent.ext is not None
        query = {"topic": "t", "key": "k", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        found = messages(await client.invoke(addr, Command(QUERY_MESSAGE.code, query)))
        assert [message.body for message in found] == [b"x"]
        none = await client.invoke(addr, Command(QUERY_MESSAGE.code, {**query, "key": "other"}))
        assert none.code == ResponseCode.QUERY_NOT_FOUND
        offset = parse_offset_msg_id(sent.ext["msgId"])[2]
        view = await client.invoke(addr, Command(VIEW_MESSAGE_BY_ID.code, {"offset": offset}))
        assert messages(view)[0].msg_id == "U1"


@pytest.mark.parametrize("name", ["zlib", "lz4", "zstd"])
@pytest.mark.parametrize("padding", [0, 400])  # few bytes, and enough bytes for a thread to decompress them
async def test_a_batch_compressed_as_a_whole_is_stored_as_messages(name: str, padding: int) -> None:
    flag, noise = COMPRESSIONS[name], Random(1)
    bodies = [b"%d" % n + noise.randbytes(padding) for n in range(50)]
    async with running() as (client, addr):
        packed = compressed(encode_batch([(0, body, b"") for body in bodies]), flag)
        assert (len(packed) > UNPACKED_AT_ONCE) == bool(padding)
        answer = await client.invoke(addr, send_request("t", packed, m=True, f=flag))
        assert answer.code == 0
        found = messages(await client.invoke(addr, pull_request("t", 0, maxMsgNums=100)))
        assert [(message.body, message.sys_flag) for message in found] == [(body, 0) for body in bodies]


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (zlib.compress(bytes(30 << 20), 1), "holds more than"),
        (zlib.compress(b""), "a batch needs at least one message"),
        # Many bytes, and nothing in them: what follows the end of the data is ignored.
        (zlib.compress(b"", 0) + bytes(UNPACKED_AT_ONCE), "a batch needs at least one message"),
        (b"junk" * UNPACKED_AT_ONCE, "damaged"),
    ],
)
async def test_a_compressed_batch_that_cannot_be_read_is_refused(batch: bytes, text: str) -> None:
    async with running() as (client, addr):
        answer = await client.invoke(addr, send_request("t", batch, m=True, f=1))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL and text in (answer.remark or "")
        assert (await client.invoke(addr, pull_request("t", 0))).code != 0


async def test_a_disk_without_room_for_an_index_stores_and_reads_all_the_same() -> None:
    fs = MemoryFiles()

    def no_room(operation: str, path: str) -> None:
        if operation == "allocate" and path.startswith("/store/index/"):
            raise DiskFull("no room for an index")

    fs.before_call = no_room
    async with running(fs) as (client, addr):
        await client.invoke(addr, send_request("t", b"x", properties="KEYS\x01k\x02"))
        query = {"topic": "t", "key": "k", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        none = await client.invoke(addr, Command(QUERY_MESSAGE.code, query))
        assert none.code == ResponseCode.QUERY_NOT_FOUND
        fs.before_call = None
        found = messages(await client.invoke(addr, Command(QUERY_MESSAGE.code, query)))
        assert [message.body for message in found] == [b"x"]


# Longer than a test may take: no pull here ends with its time.
HELD_MS = 600_000


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[HeldPulls]:
    """The `HeldPulls` that held each pull."""
    holders: list[HeldPulls] = []
    hold = HeldPulls.hold

    def noted(self: HeldPulls, pull: HeldPull, queue: ConsumeQueue | None) -> bool:
        holders.append(self)
        return hold(self, pull, queue)

    monkeypatch.setattr(HeldPulls, "hold", noted)
    return holders


async def test_a_pull_of_a_queue_without_messages_is_answered_with_its_first(held: list[HeldPulls]) -> None:
    async with running() as (client, addr):
        await client.invoke(addr, send_request("t", b"makes the topic"))
        answers = []

        async def pull() -> None:
            request = pull_request("t", 0, queue_id=3, wait_ms=HELD_MS, subscription="a || b")
            answers.append(await client.invoke(addr, request, HELD_MS))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            await until(lambda: len(held) == 1, "a held pull")
            await client.invoke(addr, send_request("t", b"first", queue_id=3, properties="TAGS\x01a\x02"))
        assert [message.body for message in messages(answers[0])] == [b"first"]


async def test_the_held_pulls_of_a_connection_that_closes_are_forgotten(held: list[HeldPulls]) -> None:
    async with running() as (client, addr), open_client() as leaving:
        await client.invoke(addr, send_request("t", b"makes the topic"))

        async def pull(by: RemotingClient) -> None:
            with pytest.raises(RemotingError):
                await by.invoke(addr, pull_request("t", 1, wait_ms=HELD_MS), HELD_MS)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull, leaving)
            nursery.start_soon(pull, client)
            await until(lambda: len(held) == 2, "held pulls")
            leaving.close_connection(addr, "on purpose")
            await until(lambda: len(held[0]) == 1, "pulls of the closed connection are dropped")
            client.close_connection(addr, "on purpose")
            await until(lambda: len(held[0]) == 0, "pulls of the closed connection are dropped")
