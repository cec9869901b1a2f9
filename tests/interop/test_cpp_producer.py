"""What the official C++ producer sends is stored by our broker as it was sent; topics are made on its first send."""

from pathlib import Path

from skylark import Admin
from skylark.mqcommon.message.ids import parse_offset_msg_id
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.interop import cpp
from tests.support.daemons import in_threads, make_topic, until_route
from tests.support.waiting import until

TOPIC = "from-cpp"
CONFIG = TopicConfig(TOPIC, 4, 4)


async def test_sync_and_async_sends_are_stored_as_sent(tmp_path: Path) -> None:
    sends = [
        {
            "how": how,
            "topic": TOPIC,
            "body": f"{number} ü",
            "tags": "TagA",
            "keys": f"k{number} even",
            "properties": {"n": "ñ"},
        }
        for number, how in enumerate(["sync", "async", "sync", "async"])
    ]
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        results = await cpp.send(cluster, sends)
        messages = await cpp.stored(cluster, TOPIC)
        broker = cluster.brokers[0]
        assert [result and result["status"] for result in results] == ["OK"] * 4
        assert [message.body.decode() for message in messages] == [send["body"] for send in sends]
        for send, result, message in zip(sends, results, messages, strict=True):
            assert (message.tags, message.keys, message.properties["n"]) == (send["tags"], send["keys"], "ñ")
            assert result and (message.msg_id, message.queue_offset) == (result["id"], result["queue_offset"])
            assert parse_offset_msg_id(message.offset_msg_id)[:2] == ("127.0.0.1", broker.port)
        async with Admin(cluster.nameserver) as admin:
            found = await admin.query_message_by_key(TOPIC, "k2")
        assert [message.body.decode() for message in found] == ["2 ü"]


async def test_oneway_sends_arrive(tmp_path: Path) -> None:
    bodies = [f"oneway-{number:02}" for number in range(20)]
    sends = [{"how": "oneway", "topic": TOPIC, "body": body} for body in bodies]
    # The first makes the connection that the others share. The answer of the last comes after all that went before it.
    first, last = ({"how": "sync", "topic": TOPIC, "body": body} for body in ("a first", "z last"))
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        results = await cpp.send(cluster, [first, *sends, last])
        assert results[1:-1] == [None] * 20
        # A busy machine makes the library drop a request, and nobody but its log is told.
        fewest = 22 - cpp.oneway_given_up(cluster)
        stored: list[str] = []

        async def arrived() -> bool:
            stored[:] = [message.body.decode() for message in await cpp.stored(cluster, TOPIC)]
            return len(stored) >= fewest

        await until(arrived, "all oneway sends are stored")
    assert len(set(stored)) == len(stored)
    assert {"a first", "z last"} <= set(stored) <= {"a first", *bodies, "z last"}


async def test_ordered_sends_stay_in_the_queue_of_their_shard_and_in_order(tmp_path: Path) -> None:
    sends = [{"how": "orderly", "topic": TOPIC, "body": f"{number:03}", "shard": number % 7} for number in range(70)]
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        await cpp.send(cluster, sends)
        messages = await cpp.stored(cluster, TOPIC)
    assert [message.body.decode() for message in messages] == [send["body"] for send in sends]
    for queue_id in range(4):
        queue = [message for message in messages if message.queue_id == queue_id]
        assert [message.queue_offset for message in queue] == list(range(len(queue)))  # sorted by body: as sent
        assert {int(message.body) % 7 % 4 for message in queue} == {queue_id}


async def test_a_batch_is_stored_as_its_messages(tmp_path: Path) -> None:
    # under 4 KiB in all: a larger batch this client compresses as one body, which is no batch to a server any more
    wanted = [
        {
            "topic": TOPIC,
            "body": f"batch-{number:02}",
            "tags": f"T{number % 2}",
            "keys": f"k{number}",
            "properties": {"n": f"{number}"},
        }
        for number in range(20)
    ]
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        (result,) = await cpp.send(cluster, [{"how": "batch", "messages": wanted}])
        messages = await cpp.stored(cluster, TOPIC)
    assert result and (result["status"], result["queue_offset"]) == ("OK", 0)
    assert [message.queue_offset for message in messages] == list(range(20))
    assert len({message.queue_id for message in messages}) == 1
    assert len({message.msg_id for message in messages}) == 20
    for each, message in zip(wanted, messages, strict=True):
        got = (message.body.decode(), message.tags, message.keys, message.properties["n"])
        assert got == (each["body"], each["tags"], each["keys"], each["properties"]["n"])


async def test_a_body_that_the_client_compresses_is_read_whole(tmp_path: Path) -> None:
    body = "long ж" * 5_000
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        await cpp.send(cluster, [{"how": "sync", "topic": TOPIC, "body": body}])
        (ours,) = await cpp.stored(cluster, TOPIC)
        (theirs,) = await cpp.pull(cluster, TOPIC)
    assert ours.sys_flag & 1 and ours.store_size < 5_000  # it did compress
    assert ours.body.decode() == theirs["body"] == body


async def test_signed_requests_are_taken(tmp_path: Path) -> None:
    async with in_threads(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        send = {"how": "sync", "topic": TOPIC, "body": "signed"}
        await cpp.send(cluster, [send], credentials=["AccessKey", "SecretKey", "ALIYUN"])
        assert [message.body for message in await cpp.stored(cluster, TOPIC)] == [b"signed"]


async def test_the_first_send_makes_the_topic(tmp_path: Path) -> None:
    sends = [{"how": "sync", "topic": "new-topic", "body": f"{number}"} for number in range(8)]
    async with in_threads(tmp_path) as cluster:
        await cpp.send(cluster, sends)
        await until_route(cluster, "new-topic", ["broker-a"])  # the broker tells the NameServer after its answer
        async with Admin(cluster.nameserver) as admin:
            (queues,) = (await admin.topic_route("new-topic")).queue_datas
        assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums) == ("broker-a", 4, 4)
        assert [message["body"] for message in await cpp.pull(cluster, "new-topic")] == [send["body"] for send in sends]


async def test_sends_go_round_the_queues_of_all_brokers(tmp_path: Path) -> None:
    async with in_threads(tmp_path, brokers=2) as cluster:
        await make_topic(cluster, CONFIG)
        sends = [{"how": "sync", "topic": TOPIC, "body": f"{number:02}"} for number in range(16)]
        await cpp.send(cluster, sends)
        messages = await cpp.stored(cluster, TOPIC)
        places = {(message.broker_name, message.queue_id) for message in messages}
        assert places == {(broker, queue_id) for broker in ("broker-a", "broker-b") for queue_id in range(4)}
        pulled = await cpp.pull(cluster, TOPIC)
        assert [message["body"] for message in pulled] == [send["body"] for send in sends]
