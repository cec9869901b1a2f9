"""What a producer sees when servers die, freeze, restart or stop: no failed send, nothing acknowledged lost."""

from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
import trio

from skylark import Message, MessageQueue, Producer, PullConsumer
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk import suspects
from skylark.sdk.producer import lane
from skylark.sdk.producer.wire import send_request
from tests.e2e.load import check_acknowledged, stored, under_load
from tests.support.daemons import make_topic, running, start, until_registered, until_route
from tests.support.waiting import until

TOPIC = "load"
# Longer than any restart takes on a busy machine.
PATIENT_MS = 60_000
CONFIG = TopicConfig(TOPIC, 4, 4)


async def test_a_namesrv_that_restarts_empty_costs_no_send(tmp_path: Path) -> None:
    async with running(tmp_path, brokers=2) as cluster:
        await make_topic(cluster, CONFIG)
        (namesrv,) = cluster.namesrvs
        async with under_load(cluster.nameserver, TOPIC) as load:
            await load.more(200)
            namesrv.kill()
            await load.more(200)
            namesrv.start()
            await until_route(cluster, TOPIC, ["broker-a", "broker-b"])
            await load.more(200)
        assert load.failures == [] and load.producer.retried == 0
        async with Producer(cluster.nameserver) as newcomer:
            await newcomer.send(Message(TOPIC, b"a client that starts now finds the brokers, too"))
        check_acknowledged(load.acked, await stored(cluster.nameserver, TOPIC))


async def test_one_of_two_masters_killed_costs_no_send(tmp_path: Path) -> None:
    async with running(tmp_path, brokers=2) as cluster:
        await make_topic(cluster, CONFIG)
        victim = cluster.broker("broker-b")
        async with under_load(cluster.nameserver, TOPIC) as load:
            await load.more_from(victim.name, 100)
            victim.kill()
            await load.more(200)
            victim.start()
            await load.more_from(victim.name, 100)
        assert load.failures == []
        assert load.producer.retried > 0
        load.say_worst()
        check_acknowledged(load.acked, await stored(cluster.nameserver, TOPIC))


async def test_one_of_two_masters_frozen_costs_no_send_and_gets_none_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    unanswered: list[str] = []
    answers = suspects.answers

    async def probed(remoting: RemotingClient, addr: str) -> bool:
        found = await answers(remoting, addr)
        if not found:
            unanswered.append(addr)
        return found

    monkeypatch.setattr(suspects, "answers", probed)
    async with running(tmp_path, brokers=2) as cluster:
        await make_topic(cluster, CONFIG)
        other, victim = cluster.brokers
        async with under_load(cluster.nameserver, TOPIC) as load:

            def counted(group: str, queue: MessageQueue, *rest: Any, **named: Any) -> Command:
                # On a busy machine the other one may be slow, too, for a while. Then there is none to prefer.
                if load.producer.brokers.faults.usable(other.addr, trio.current_time() * 1000):
                    asked[queue.broker_name] += 1
                return send_request(group, queue, *rest, **named)

            monkeypatch.setattr(lane, "send_request", counted)
            await load.more_from(victim.name, 100)
            victim.freeze()
            try:
                # Sends in flight to the frozen broker time out there and are stored elsewhere; all others go on.
                await until(lambda: load.producer.retried > 0, "sends to the frozen broker are tried elsewhere")
                await load.more_from_each_sender()
                before, probes = asked[victim.name], unanswered.count(victim.addr)
                await until(lambda: unanswered.count(victim.addr) >= probes + 3, "three probes are not answered")
                assert asked[victim.name] == before
            finally:
                victim.thaw()
            await load.more_from(victim.name, 100)
        assert load.failures == []
        load.say_worst()
        check_acknowledged(load.acked, await stored(cluster.nameserver, TOPIC))


async def test_a_graceful_stop_under_load_costs_no_send(tmp_path: Path) -> None:
    async with running(tmp_path, brokers=2) as cluster:
        await make_topic(cluster, CONFIG)
        victim = cluster.broker("broker-b")
        async with under_load(cluster.nameserver, TOPIC) as load:
            await load.more_from(victim.name, 100)
            victim.terminate()
            await load.more(200)
            victim.wait_stopped()
            await until_registered(cluster, ["broker-a"])
            await load.more(200)
            victim.start()
            await load.more_from(victim.name, 100)
        assert load.failures == []
        assert b"recovered after a crash" not in victim.logged and b"torn" not in victim.logged
        check_acknowledged(load.acked, await stored(cluster.nameserver, TOPIC))


async def test_a_rolling_restart_of_all_brokers_costs_no_send(tmp_path: Path) -> None:
    async with running(tmp_path, brokers=2) as cluster:
        await make_topic(cluster, CONFIG)
        async with under_load(cluster.nameserver, TOPIC, timeout_ms=PATIENT_MS, keyed=True) as load:
            await load.more(200)
            for _ in range(2):
                for broker in cluster.brokers:
                    # The next one goes as soon as this one serves, whatever clients and NameServers know of it.
                    broker.kill()
                    await start(broker)
            await load.more(200)
        assert load.failures == []
        assert load.producer.retried > 0
        load.say_worst()
        check_acknowledged(load.acked, await stored(cluster.nameserver, TOPIC))


async def test_all_brokers_away_at_once_cost_no_send(tmp_path: Path) -> None:
    async with running(tmp_path, brokers=2) as cluster:
        await make_topic(cluster, CONFIG)
        async with under_load(cluster.nameserver, TOPIC, timeout_ms=PATIENT_MS, keyed=True) as load:
            await load.more(200)
            cluster.brokers[0].kill()
            cluster.brokers[1].terminate()
            cluster.brokers[1].wait_stopped()
            await until_registered(cluster, [])
            for broker in cluster.brokers:
                broker.start()
            await load.more_from("broker-a", 100)
            await load.more_from("broker-b", 100)
        assert load.failures == []
        load.say_worst()
        check_acknowledged(load.acked, await stored(cluster.nameserver, TOPIC))


async def test_clients_that_start_before_the_nameserver_work_once_it_is_there(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        await make_topic(cluster, CONFIG)
        (namesrv,) = cluster.namesrvs
        namesrv.kill()
        async with (
            Producer(cluster.nameserver, send_timeout_ms=PATIENT_MS, start_timeout_ms=None) as producer,
            PullConsumer(cluster.nameserver, timeout_ms=PATIENT_MS, start_timeout_ms=None) as consumer,
        ):
            queue = MessageQueue(TOPIC, "broker-a", 0)
            sent = [producer.send(Message(TOPIC, b"queue"), queue=queue)]
            sent.append(producer.send(Message(TOPIC, b"plain")))
            sent.append(producer.send(Message(TOPIC, b"key", sharding_key="k")))
            read: list[bytes] = []

            async def read_one() -> None:
                async for message in consumer.messages(queue, 0):
                    read.append(message.body)
                    return

            async with trio.open_nursery() as nursery:
                for send in sent:
                    nursery.start_soon(_awaited, send)
                nursery.start_soon(read_one)
                remoting = producer.remoting
                await until(lambda: remoting._errors != {}, "the producer finds no NameServer")
                namesrv.start()
            assert len(read) == 1
            assert len(await consumer.message_queues(TOPIC)) == 4


async def _awaited(send: Awaitable[object]) -> None:
    await send
