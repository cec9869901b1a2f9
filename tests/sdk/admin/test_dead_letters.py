"""Dead letters of a group: listed with their story, delivered to the group again, written to files."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio

from skylark import Admin, ConsumeFrom, Producer, PullConsumer, SimpleConsumer, blocking
from skylark.mqcommon.errors import BrokerError, InvalidArgument, RouteNotFound, UserError
from skylark.mqcommon.message.message import Message, MessageExt, decode_messages
from skylark.mqcommon.message.properties import FAIL_REASON, FAIL_TIME, RESENT_TIMES, encode_properties
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.sdk import broker_api
from skylark.sdk.admin import dead_letter_files, resent_marks
from skylark.sdk.admin.dead_letter_files import DeadLetterFile
from skylark.sdk.admin.dead_letters import DeadLetter, DeadLetterCounts, Resending
from skylark.sdk.admin.failures import explain
from skylark.sdk.client import ClientHandle
from skylark.sdk.consumer.reader import PullResult
from skylark.sdk.testing import Cluster
from tests.sdk.admin.dead_lettering import AT_ONCE, Group, consumer, killed
from tests.sdk.arrow.records import Stored
from tests.sdk.fakes import until
from tests.support import waiting
from tests.support.in_process import Servers, until_known


async def test_each_dead_letter_tells_its_story(cluster: Servers) -> None:
    first, _ = await killed(cluster, b"tea", b"cake")
    async with Admin(cluster.nameserver) as admin:
        assert [letter.message.body for letter in await admin.dead_letters("g", most=1)] == [b"tea"]
        tea, cake = await admin.dead_letters("g")
        assert (tea.group, tea.topic, tea.message.msg_id, tea.deliveries, tea.resent_times) == ("g", "one", first, 1, 0)
        assert tea.failure.reason.startswith("ValueError: no tea for me (dead_lettering.py:")
        assert "@" in tea.failure.client and abs(tea.failure.time_ms - tea.message.store_timestamp) < 60_000
        died = cake.message.store_timestamp
        assert await admin.dead_letters("g", to_ms=tea.message.store_timestamp) == []
        assert cake.message.msg_id in [
            letter.message.msg_id for letter in await admin.dead_letters("g", from_ms=died, to_ms=died + 1)
        ]
        chosen = await admin.dead_letters("g", matches=lambda letter: "cake" in letter.failure.reason)
        assert [letter.message.body for letter in chosen] == [b"cake"]
        with pytest.raises(InvalidArgument, match="give the group, not the topic of its dead letters: g"):
            await admin.dead_letters("%DLQ%g")


async def test_only_the_group_gets_its_dead_letters_again_and_each_once(cluster: Servers) -> None:
    ids = await killed(cluster, b"tea", b"cake", b"milk")
    others: list[bytes] = []
    async with consumer(cluster, lambda message: others.append(message.body), group="others") as bystander:
        await until(lambda: bystander.consumed == 3)
        async with Admin(cluster.nameserver) as admin:
            seen: list[DeadLetter] = []
            progress: list[tuple[int, int, int]] = []

            def note(counts: DeadLetterCounts) -> None:
                progress.append((counts.read, counts.total, counts.done))

            group = Group(cluster)
            async with group.consumer:
                dry = await admin.resend_dead_letters("g", dry_run=True, on_letter=seen.append)
                assert (dry.read, dry.chosen, dry.done, len(seen)) == (3, 3, 0, 3)
                sent = await admin.resend_dead_letters("g", rate=None, on_progress=note)
                assert (sent.total, sent.read, sent.chosen, sent.done, sent.missing) == (3, 3, 3, 3, [])
                assert progress[-1] == (3, 3, 3)
                await until(lambda: len(group.got) == 3)
                again = await admin.resend_dead_letters("g")
                assert (again.total, again.done) == (0, 0), "the broker knows that all were sent"
            assert sorted(message.msg_id for message in group.got) == sorted(ids)
            message = next(message for message in group.got if message.body == b"tea")
            assert (message.topic, message.keys, message.reconsume_times) == ("one", "k-tea", 0)
            assert message.properties["DLQ_RESENT_TIMES"] == "1"
            assert not [name for name in message.properties if name.startswith(("CONSUME_FAIL", "DLQ_ORIGIN"))]
        assert len(others) == 3


async def test_a_choice_is_sent_once_unless_it_is_asked_for_again(cluster: Servers) -> None:
    ids = await killed(cluster, b"tea", b"cake", b"milk")
    group = Group(cluster)
    async with Admin(cluster.nameserver) as admin, group.consumer:
        counts = await admin.resend_dead_letters("g", ids=[ids[1], "unknown"])
        assert (counts.read, counts.chosen, counts.done, counts.missing) == (3, 1, 1, ["unknown"])
        counts = await admin.resend_dead_letters("g", ids=[ids[1]])
        assert (counts.chosen, counts.done, counts.skipped, counts.missing) == (0, 0, 1, []), "it is no unknown one"
        dry = await admin.resend_dead_letters("g", ids=ids, dry_run=True)
        assert (dry.chosen, dry.skipped, dry.forgetful) == (2, 1, [])
        (dead,) = await admin.dead_letters("g", ids=[ids[2]])
        by_place = await admin.resend_dead_letters("g", ids=[dead.message.offset_msg_id])
        assert (by_place.done, by_place.missing) == (1, [])
        again = await admin.resend_dead_letters("g", ids=[ids[1]], again=True)
        assert (again.done, again.skipped) == (1, 0)
        assert [letter.resent_times for letter in await admin.dead_letters("g")] == [0, 2, 1]
        rest = await admin.resend_dead_letters("g")
        assert (rest.read, rest.done, rest.skipped) == (3, 1, 2), "what was chosen before is left out"
        assert (await admin.resend_dead_letters("g", matches=lambda letter: True)).skipped == 3
        assert [letter.resent_times for letter in await admin.dead_letters("g")] == [1, 2, 1]
        every = await admin.resend_dead_letters("g", again=True)
        assert (every.read, every.done) == (3, 3)
        await until(lambda: len(group.got) == 7)
    assert group.bodies() == [b"cake"] * 3 + [b"milk"] * 2 + [b"tea"] * 2
    counted = sorted(message.properties["DLQ_RESENT_TIMES"] for message in group.got)
    assert counted == ["1", "1", "1", "2", "2", "2", "3"]


async def test_what_was_sent_again_is_known_after_a_kill_of_the_broker() -> None:
    async with Cluster() as cluster:
        cluster.create_topic("one", queues=1)
        servers = Servers(cluster.nameserver, cluster.brokers[0].address)
        ids = await killed(servers, b"tea", b"cake")
        async with Admin(cluster.nameserver) as admin:
            assert (await admin.resend_dead_letters("g", ids=[ids[0]])).done == 1
        await trio.to_thread.run_sync(cluster.brokers[0].kill)
        await trio.to_thread.run_sync(cluster.brokers[0].start)
        async with Admin(cluster.nameserver) as admin:
            assert [letter.resends for letter in await admin.dead_letters("g")] == [1, 0]


async def test_a_slave_gets_the_marks() -> None:
    async with Cluster(slaves=1, options={"brokerRole": "SYNC_MASTER"}) as cluster:
        cluster.create_topic("one", queues=1)
        servers = Servers(cluster.nameserver, cluster.brokers[0].address)
        ids = await killed(servers, b"tea", b"cake")
        async with Admin(cluster.nameserver) as admin:
            assert (await admin.resend_dead_letters("g", ids=[ids[0]])).done == 1
            slave = (await admin.cluster_info()).broker_addr_table["broker-a"].broker_addrs[1]

            async def has_mark() -> bool:
                return await admin.own_max_offset(slave, resent_marks.DLQ_RESENT_TOPIC, 0) == 1

            await waiting.until(has_mark, "the slave has the mark")


async def test_a_resend_that_fails_goes_on_after_what_it_has_sent(cluster: Servers) -> None:
    await killed(cluster, b"tea", b"cake", b"milk")

    def stop_at_third(letter: DeadLetter) -> None:
        if letter.message.body == b"milk":
            raise ZeroDivisionError

    group = Group(cluster)
    async with Admin(cluster.nameserver) as admin, group.consumer:
        with pytest.raises(ZeroDivisionError):
            await admin.resend_dead_letters("g", on_letter=stop_at_third)
        assert (await admin.resend_dead_letters("g")).done == 1
        await until(lambda: len(group.got) == 3)
    assert group.bodies() == [b"cake", b"milk", b"tea"]


@pytest.mark.parametrize("is_chosen", [False, True])
async def test_nothing_is_sent_while_only_slaves_have_the_dead_letters(
    cluster: Servers, monkeypatch: pytest.MonkeyPatch, *, is_chosen: bool
) -> None:
    (tea,) = await killed(cluster, b"tea")
    ask_master = ClientHandle.ask_master

    async def ask(client: ClientHandle, mq: MessageQueue, call: Callable[[Any], Any]) -> Any:
        if mq.topic in ("%DLQ%g", resent_marks.DLQ_RESENT_TOPIC):
            raise RouteNotFound(mq.topic, "broker broker-a has no master in its route")
        return await ask_master(client, mq, call)

    group = Group(cluster)
    async with Admin(cluster.nameserver) as admin, group.consumer:
        monkeypatch.setattr(ClientHandle, "ask_master", ask)
        with pytest.raises(RouteNotFound, match="no master"):
            await admin.resend_dead_letters("g", ids=[tea] if is_chosen else None)
        monkeypatch.undo()
        assert (await admin.resend_dead_letters("g")).done == 1
        await until(lambda: len(group.got) == 1)
    assert [message.properties[RESENT_TIMES] for message in group.got] == ["1"]


async def test_an_offset_that_is_not_stored_ends_the_resend(cluster: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = await killed(cluster, b"tea", b"cake")

    async def refuse(*_: Any, **__: Any) -> None:
        raise BrokerError(ResponseCode.NO_PERMISSION, "no", cluster.broker)

    async with Admin(cluster.nameserver) as admin:
        with monkeypatch.context() as patched:
            patched.setattr(broker_api, "commit_offset", refuse)
            with pytest.raises(BrokerError) as caught:
                await admin.resend_dead_letters("g")
        text = f"Dead letter {first} was sent again, but broker broker-a could not note it"
        assert text in explain(caught.value)
        assert (await admin.resend_dead_letters("g")).done == 2, "the first one once more, as the error says"


async def test_a_broker_that_cannot_remember_is_named(cluster: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    # As of RocketMQ: it has no such topic, and no client can make one.
    monkeypatch.setattr(resent_marks, "DLQ_RESENT_TOPIC", "rmq_sys_OF_NO_BROKER")
    (tea,) = await killed(cluster, b"tea")
    async with Admin(cluster.nameserver) as admin:
        for _ in range(2):
            counts = await admin.resend_dead_letters("g", ids=[tea])
            assert (counts.done, counts.forgetful) == (1, ["broker-a"])
        everything = await admin.resend_dead_letters("g")
        assert (everything.done, everything.forgetful) == (1, []), "offsets are known to all brokers"
        assert (await admin.resend_dead_letters("g", ids=[tea])).skipped == 1


async def test_who_may_not_read_marks_sees_dead_letters_and_resends_them_only_again(
    cluster: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tea,) = await killed(cluster, b"tea")
    pull = PullConsumer.pull

    async def guarded(consumer: PullConsumer, mq: MessageQueue, offset: int, **more: Any) -> PullResult:
        if mq.topic == resent_marks.DLQ_RESENT_TOPIC:
            raise BrokerError(ResponseCode.NO_PERMISSION, "User:shop has no permission", cluster.broker)
        return await pull(consumer, mq, offset, **more)

    monkeypatch.setattr(PullConsumer, "pull", guarded)
    async with Admin(cluster.nameserver) as admin:
        assert [letter.resends for letter in await admin.dead_letters("g")] == [0]
        for choice in ({}, {"ids": [tea]}):
            with pytest.raises(BrokerError, match="no permission"):
                await admin.resend_dead_letters("g", **choice)
        counts = await admin.resend_dead_letters("g", ids=[tea], again=True)
        assert (counts.done, counts.forgetful) == (1, ["broker-a"])


async def test_a_message_that_is_no_mark_is_ignored(cluster: Servers) -> None:
    (tea,) = await killed(cluster, b"tea")
    async with Producer(cluster.nameserver) as producer:
        for body in (b"no mark", b"[]", b'{"times": "x"}', b'{"group": "other", "times": 7}'):
            await producer.send(Message(resent_marks.DLQ_RESENT_TOPIC, body, tags="g"))
    async with Admin(cluster.nameserver) as admin:
        assert [letter.resends for letter in await admin.dead_letters("g")] == [0]
        assert (await admin.resend_dead_letters("g", ids=[tea])).done == 1


async def test_dead_letters_of_a_topic_made_again_are_new(cluster: Servers) -> None:
    await killed(cluster, b"tea")
    group = Group(cluster)
    async with Admin(cluster.nameserver) as admin:
        async with group.consumer:
            assert (await admin.resend_dead_letters("g", matches=lambda letter: True)).done == 1
            await until(lambda: len(group.got) == 1)
        await admin.delete_topic_in_broker(cluster.broker, "%DLQ%g")
        await admin.delete_topic_in_namesrv("%DLQ%g")
        await killed(cluster, b"cake")
        (letter,) = await admin.dead_letters("g")
        assert (letter.message.queue_offset, letter.resends) == (0, 0)


async def test_an_unknown_group_is_named(cluster: Servers, tmp_path: Path) -> None:
    async with Admin(cluster.nameserver) as admin:
        for ask in (
            lambda: admin.resend_dead_letters("nobody"),
            lambda: admin.dead_letters("nobody"),
            lambda: admin.export_dead_letters("nobody", str(tmp_path / "dead.jsonl")),
        ):
            with pytest.raises(UserError, match="no broker knows group nobody"):
                await ask()
        await admin.create_group(cluster.broker, SubscriptionGroupConfig("healthy"))
        assert await admin.dead_letters("healthy") == []
    assert not [name for name in os.listdir(tmp_path) if name.startswith("dead")]


async def test_what_dies_again_says_that_it_was_sent_again(cluster: Servers) -> None:
    await killed(cluster, b"tea")
    async with Admin(cluster.nameserver) as admin:
        await admin.resend_dead_letters("g")
        await killed_again(cluster)
        _, again = await admin.dead_letters("g")
        assert (again.topic, again.resent_times, again.deliveries) == ("one", 1, 1)
        assert again.failure.reason.startswith("KeyError: 'again'")
        # Its copy that was sent again is no end: it has all attempts before it once more.
        assert (await admin.resend_dead_letters("g")).done == 1


async def killed_again(cluster: Servers) -> None:
    def fail(message: MessageExt) -> None:
        raise KeyError("again")

    async with consumer(cluster, fail, retry=AT_ONCE) as made:
        await until(lambda: made.failed == 1 and made.cached == 0)


async def test_a_group_that_consumes_in_order_needs_the_topic(cluster: Servers) -> None:
    await killed(cluster, b"tea")
    group = Group(cluster, orderly=True)
    async with Admin(cluster.nameserver) as admin, group.consumer as made:
        await until(lambda: len([mq for mq in made.queues if mq.topic == "one"]) == 1)
        with pytest.raises(UserError, match="consumes in order"):
            await admin.resend_dead_letters("g")
        assert (await admin.resend_dead_letters("g", to_topic=True)).done == 1
        await until(lambda: len(group.got) == 1)
    assert group.got[0].topic == "one" and "RETRY_TOPIC" not in group.got[0].properties
    async with PullConsumer(cluster.nameserver) as reader:
        (mq,) = await reader.message_queues("one")
        assert await reader.max_offset(mq) == 2, "all groups get it"


async def test_what_was_popped_goes_only_to_those_who_get_it(cluster: Servers) -> None:
    async with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
        await admin.create_group(cluster.broker, SubscriptionGroupConfig("g", retry_max_times=1))
        await producer.send(Message("one", b"tea"))
        async with SimpleConsumer(
            cluster.nameserver, group="g", subscriptions={"one": "*"}, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as popping:
            for _ in range(2):
                (message,) = await popping.receive(1, 30_000)
                await popping.change_invisible_time(message, 0)
            await until_known(admin, "%DLQ%g")
            with pytest.raises(UserError, match=r"do not read its retry topic, .*--all-groups"):
                await admin.resend_dead_letters("g")

        async def has_letter() -> bool:
            return bool(await admin.dead_letters("g"))

        # The topic is made before the dead letter is stored there.
        await waiting.until(has_letter, "the dead letter is there")
        with pytest.raises(UserError, match=r"was popped, .*--all-groups"):
            await admin.resend_dead_letters("g")
        group = Group(cluster)
        async with group.consumer:
            assert (await admin.resend_dead_letters("g")).done == 1, "nothing was taken for sent before"
            # The pops are committed each second: until then who pulls gets the message from its topic, too.
            await until(lambda: any("DLQ_RESENT_TIMES" in message.properties for message in group.got))
        (again,) = [message for message in group.got if "DLQ_RESENT_TIMES" in message.properties]
        assert "1ST_POP_TIME" not in again.properties


async def test_a_rate_spaces_what_is_sent(autojump_clock: trio.testing.MockClock) -> None:
    at: list[float] = []

    class TimedResending(Resending):
        async def _send(self, letter: DeadLetter) -> None:
            at.append(trio.current_time())

        async def _check_master(self, letter: DeadLetter) -> None:
            """There is no broker."""

    async with trio.open_nursery():
        client, remembered = ClientHandle("127.0.0.1:1"), []

        async def remember(letter: DeadLetter) -> None:
            remembered.append(letter)

        sending = TimedResending(client, "g", 4.0, None, remember, to_topic=False, dry_run=False)
        letters = [DeadLetter("g", MessageExt(b"", 0, ""))] * 5
        began = trio.current_time()
        await sending.resend(letters[:3])
        await sending.resend(letters[3:])
    assert [time - began for time in at] == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
    assert remembered == letters


@pytest.mark.parametrize(("rate", "error"), [(0, ValueError), (-1, ValueError), ("fast", TypeError), (True, TypeError)])
async def test_a_rate_must_be_one(rate: Any, error: type[Exception]) -> None:
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(error, match="rate must be"):
            await admin.resend_dead_letters("g", rate=rate)


async def test_files_have_the_messages_and_their_stories(cluster: Servers, tmp_path: Path) -> None:
    first, _ = await killed(cluster, b"tea", b"\xff\x00".hex().encode())
    lines, table = tmp_path / "dead.jsonl", tmp_path / "dead.parquet"
    async with Admin(cluster.nameserver) as admin:
        counts = await admin.export_dead_letters("g", str(lines))
        assert (counts.read, counts.done) == (2, 2)
        assert (await admin.export_dead_letters("g", str(table))).done == 2
        by_name = tmp_path / "whatever"
        await admin.export_dead_letters("g", str(by_name), file_format="parquet", ids=[first])
        (dead, _) = await admin.dead_letters("g")
        with pytest.raises(InvalidArgument, match="file_format must be one of jsonl, parquet, not 'csv'"):
            await admin.export_dead_letters("g", str(lines), file_format="csv")
        with pytest.raises(UserError, match="cannot be written: No such file or directory"):
            await admin.export_dead_letters("g", str(tmp_path / "no" / "x.jsonl"))
    row, other = [json.loads(line) for line in lines.read_text().splitlines()]
    assert (row["group"], row["originTopic"], row["msgId"], row["body"]) == ("g", "one", first, "tea")
    assert row["failReason"] == dead.failure.reason and row["failTime"] == dead.failure.time_ms
    assert other["body"] == "ff00"
    found = pq.read_table(table).to_pylist()
    assert [one["body"] for one in found] == [b"tea", b"ff00"]
    tea = found[0]
    assert (tea["group"], tea["originTopic"], tea["msgId"], tea["keys"]) == ("g", "one", first, "k-tea")
    assert tea["failReason"] == dead.failure.reason and tea["failClient"] == dead.failure.client
    assert round(tea["failTime"].timestamp() * 1000) == dead.failure.time_ms
    assert round(tea["storeTimestamp"].timestamp() * 1000) == dead.message.store_timestamp
    assert dict(tea["properties"])["RETRY_TOPIC"] == "one"
    assert pq.read_table(by_name).num_rows == 1


@pytest.mark.parametrize("odd", [2**63 - 1, -(2**63), 1_700_000_000_000_000_000])
async def test_odd_numbers_of_one_message_do_not_keep_the_others_out_of_a_table(tmp_path: Path, odd: int) -> None:
    story = {FAIL_REASON: "why", FAIL_TIME: "9" * 18, RESENT_TIMES: "9" * 5_000}
    made = [
        Stored(born_timestamp=odd, store_timestamp=odd, properties=encode_properties(story).encode()).encode(),
        Stored(queue_offset=1).encode(),
    ]
    letters = [DeadLetter("g", message) for message in decode_messages(b"".join(made))]
    table = tmp_path / "dead.parquet"
    async with DeadLetterFile(str(table), "parquet") as rows:
        await rows.write(letters)
    found = pq.read_table(table).to_pylist()
    assert [one["bornTimestamp"] is None for one in found] == [True, False]
    assert found[0]["failTime"] is None and found[0]["resentTimes"] == 0


async def test_a_file_that_is_not_whole_does_not_stay(cluster: Servers, tmp_path: Path) -> None:
    await killed(cluster, b"tea")

    def fail(letter: DeadLetter) -> bool:
        raise ZeroDivisionError

    async with Admin(cluster.nameserver) as admin:
        with pytest.raises(ZeroDivisionError):
            await admin.export_dead_letters("g", str(tmp_path / "dead.jsonl"), matches=fail)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("dead")]


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
@pytest.mark.parametrize("fails_before", [False, True])
async def test_a_file_that_does_not_fit_on_the_disk_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str, fails_before: bool
) -> None:
    kind = dead_letter_files.JsonLines if file_format == "jsonl" else dead_letter_files.Parquet
    close = kind.close

    def full(rows: Any) -> None:
        close(rows)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kind, "close", full)
    with pytest.raises(ZeroDivisionError if fails_before else UserError, match=r"first|No space left"):
        async with DeadLetterFile(str(tmp_path / "dead"), file_format):
            if fails_before:
                raise ZeroDivisionError("first")
    assert os.listdir(tmp_path) == []


async def test_the_blocking_admin_has_them_too(cluster: Servers) -> None:
    await killed(cluster, b"tea")

    def ask() -> tuple[int, str]:
        with blocking.Admin(cluster.nameserver) as admin:
            (letter,) = admin.dead_letters("g")
            return admin.resend_dead_letters("g").done, letter.topic

    assert await trio.to_thread.run_sync(ask) == (1, "one")
