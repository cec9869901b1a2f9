"""A master and its slave as real processes: disks that are lost, slaves that die, freeze or are slow, reads that go on.

A failure prints its seed; TEST_SEED repeats it, as far as the moments of other processes can be.
"""

import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.daemons import Daemon, free_port
from skylark import Admin, Message, Producer, PullConsumer, SendStatus
from skylark.broker.replication.master_api import MasterClient as BrokerTables
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.requests.replication import PageRequestHeader
from tests.e2e.load import Load, check_acknowledged, check_order, follow, stored
from tests.support.amounts import amount
from tests.support.daemons import NAME, BrokerSet, broker_set, start, started
from tests.support.waiting import until

TOPIC = "replicated"
SENDERS = 20
MIB = 1024 * 1024


# --- the master's disk is lost


async def load_until_the_disk_is_lost(at: BrokerSet, sends: int) -> tuple[Load, int, int]:
    """Senders until the master is killed; the load, and its last word before: lag in bytes, sends acknowledged."""
    async with Producer(at.nameserver, retries=0) as producer, trio.open_nursery() as nursery:
        load = Load(producer, TOPIC)
        for sender in range(SENDERS):
            nursery.start_soon(load.send, sender)
        await until(lambda: len(load.acked) >= sends, f"{sends} sends are acknowledged")
        acked = len(load.acked)
        (row,) = (await at.ha_status()).ha_connection_info
        load.stopping = True
        at.master.kill()
        shutil.rmtree(at.store_of(at.master))
    return load, row.diff, acked


async def read_from_the_slave(at: BrokerSet) -> dict[MessageQueue, list[bytes]]:
    """All that is there, when the slave's queues have all of its log."""
    end = (await at.ha_status(at.slave)).ha_client_runtime_info.max_offset
    async with Admin(at.nameserver) as admin:

        async def all_queued() -> bool:
            return (await admin.broker_runtime_info(at.slave.addr))["commitLogMaxOffset"] == str(end)

        await until(all_queued, "the slave's queues have all of its log")
    return await stored(at.nameserver, TOPIC)


@pytest.mark.fault("disks", "the master's disk is lost", "master-slave")
@pytest.mark.parametrize("rounds", [1, pytest.param(30, marks=pytest.mark.nightly)])
async def test_sync_master_what_was_acknowledged_outlives_the_masters_disk(
    tmp_path: Path, seed: int, rounds: int
) -> None:
    random, acked = Random(seed), 0
    for number in range(rounds):
        home = tmp_path / str(number)
        home.mkdir()
        async with broker_set(home) as at:
            await at.make_topic(TOPIC)
            load, _, _ = await load_until_the_disk_is_lost(at, random.randrange(amount(1_500, 8_000)))
            found = await read_from_the_slave(at)
            check_acknowledged(load.acked, found)
            assert check_order(found) == 0, "something is stored twice"
            acked += len(load.acked)
        shutil.rmtree(home)
    sys.stdout.write(f"{rounds} disks of a master lost, {acked} acknowledged messages, all on the slaves, in order\n")


@pytest.mark.parametrize("rate", [200_000, pytest.param(0, marks=pytest.mark.nightly)])
async def test_async_master_no_more_is_lost_than_the_lag_that_was_reported(tmp_path: Path, rate: int) -> None:
    options = ("--ha-max-transfer-rate", str(rate))
    async with broker_set(tmp_path, "ASYNC_MASTER", master_options=options) as at:
        await at.make_topic(TOPIC)
        load, lag, acked = await load_until_the_disk_is_lost(at, 1_500)
        found = await read_from_the_slave(at)
        assert check_order(found) == 0, "something is stored twice"
        lost = [body for queue, offset, body in load.acked[:acked] if found[queue][offset : offset + 1] != [body]]
        assert any(found.values()), "the slave has nothing"
        queue = next(queue for queue, bodies in found.items() if bodies)
        async with PullConsumer(at.nameserver) as consumer:
            smallest = min([one.store_size async for one in consumer.messages(queue, 0, 1)])
        sys.stdout.write(f"lag {lag} bytes, lost {len(lost)} of {acked} messages: {len(lost) * smallest} bytes\n")
        assert len(lost) * smallest <= lag
        if rate:
            assert lost, "the limit of the rate has no effect"


async def test_the_slave_is_made_the_master_of_what_is_left(tmp_path: Path) -> None:
    async with broker_set(tmp_path) as at:
        await at.make_topic(TOPIC)
        load, _, _ = await load_until_the_disk_is_lost(at, 500)
        # The machines change their parts: the machine that lost its disk begins anew, as the slave.
        at.slave.terminate()
        await trio.to_thread.run_sync(at.slave.wait_stopped)
        changed = replace(at, master=as_master(at.slave), slaves=[as_slave(at.master)])
        async with started(changed.master, changed.slave):
            await changed.until_in_sync(1)
            async with Producer(at.nameserver) as producer:
                last = await producer.send(Message(TOPIC, b"goes on"))
            found = await stored(at.nameserver, TOPIC)
            check_acknowledged([*load.acked, (last.queue, last.queue_offset, b"goes on")], found)
            await changed.until_caught_up()
            changed.master.kill()
            assert await read_from_the_slave(changed) == found


def as_master(slave: Daemon) -> Daemon:
    options = ("--broker-role", "SYNC_MASTER", "--broker-id", "0", "--ha-listen-port", str(free_port()))
    return replace(slave, command=[*slave.command, *options])


def as_slave(master: Daemon) -> Daemon:
    return replace(master, command=[*master.command, "--broker-role", "SLAVE", "--broker-id", "1"])


# --- the slave dies, freezes, is slow


# Six hundred of these are more than a master may grow by, and a slave that gets 200 kB a second is behind them.
LARGE_BYTES = 20_000


class Sends:
    """Sends one after the other from some tasks, and counts how they were answered."""

    def __init__(self, producer: Producer, body_bytes: int = 1_000) -> None:
        self.answers: Counter[SendStatus] = Counter()
        self.bodies: list[bytes] = []
        self.stopping = False
        self._producer = producer
        self._body_bytes = body_bytes

    async def run(self, sender: int) -> None:
        number = 0
        while not self.stopping:
            body = f"load/{sender}/{number}".encode().ljust(self._body_bytes)
            result = await self._producer.send(Message(TOPIC, body))
            self.answers[result.status] += 1
            self.bodies.append(body)
            number += 1

    async def answered(self, status: SendStatus, count: int = 50) -> None:
        wanted = self.answers[status] + count
        await until(lambda: self.answers[status] >= wanted, f"{count} sends are answered {status.name}")


def patient_producer(at: BrokerSet) -> Producer:
    """A producer that sends each message once, and accepts any outcome."""
    return Producer(at.nameserver, accept_weaker=True, send_timeout_ms=30_000, retries=0)


async def nothing_is_missing(at: BrokerSet, sends: Sends) -> None:
    """Whatever the answers were: the messages are on the master, and in the end on the slave."""
    found = await stored(at.nameserver, TOPIC)
    assert sorted(body for queue in found.values() for body in queue) == sorted(sends.bodies)
    await at.until_caught_up()
    at.master.kill()
    assert await read_from_the_slave(at) == found


async def test_a_slave_that_is_killed_costs_its_answers_and_comes_back(tmp_path: Path) -> None:
    async with broker_set(tmp_path) as at:
        await at.make_topic(TOPIC)
        async with patient_producer(at) as producer, trio.open_nursery() as nursery:
            sends = Sends(producer)
            for sender in range(SENDERS):
                nursery.start_soon(sends.run, sender)
            await sends.answered(SendStatus.SEND_OK)
            at.slave.kill()
            await sends.answered(SendStatus.SLAVE_NOT_AVAILABLE)
            weak = sends.answers[SendStatus.SEND_OK]
            await sends.answered(SendStatus.SLAVE_NOT_AVAILABLE)
            assert sends.answers[SendStatus.SEND_OK] == weak
            at.slave.start()
            await sends.answered(SendStatus.SEND_OK)
            sends.stopping = True
        await nothing_is_missing(at, sends)


async def test_a_frozen_slave_costs_the_slave_timeout_then_counts_no_more_then_comes_back(tmp_path: Path) -> None:
    options = ("--ha-housekeeping-interval", "2000", "--ha-send-heartbeat-interval", "500", "--slave-timeout", "300")
    async with broker_set(tmp_path, options=options) as at:
        await at.make_topic(TOPIC)
        async with patient_producer(at) as producer, trio.open_nursery() as nursery:
            sends = Sends(producer, LARGE_BYTES)
            for sender in range(SENDERS):
                nursery.start_soon(sends.run, sender)
            await sends.answered(SendStatus.SEND_OK, 300)
            before = at.master.anonymous_bytes()
            at.slave.freeze()
            try:
                await sends.answered(SendStatus.FLUSH_SLAVE_TIMEOUT)
                # The master takes a slave that is silent for gone.
                await sends.answered(SendStatus.SLAVE_NOT_AVAILABLE, 1_000)
                sys.stdout.write(f"the master grew by {(at.master.anonymous_bytes() - before) / MIB:.1f} MiB\n")
                assert at.master.anonymous_bytes() < before + 8 * MIB
            finally:
                at.slave.thaw()
            await sends.answered(SendStatus.SEND_OK, 300)
            sends.stopping = True
        assert sends.answers.keys() == {
            SendStatus.SEND_OK, SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE
        }  # fmt: skip
        await nothing_is_missing(at, sends)


async def test_a_slow_link_costs_the_slave_timeout_and_no_memory(tmp_path: Path) -> None:
    options = ("--ha-max-transfer-rate", "200000", "--slave-timeout", "300")
    async with broker_set(tmp_path, master_options=options) as at:
        await at.make_topic(TOPIC)
        async with patient_producer(at) as producer, trio.open_nursery() as nursery:
            sends = Sends(producer, LARGE_BYTES)
            for sender in range(4 * SENDERS):
                nursery.start_soon(sends.run, sender)
            await sends.answered(SendStatus.FLUSH_SLAVE_TIMEOUT)
            before = at.master.anonymous_bytes()
            await sends.answered(SendStatus.FLUSH_SLAVE_TIMEOUT, 600)
            sys.stdout.write(f"the master grew by {(at.master.anonymous_bytes() - before) / MIB:.1f} MiB\n")
            assert at.master.anonymous_bytes() < before + 8 * MIB
            async with Admin(at.nameserver) as admin:
                await admin.update_broker_config(at.master.addr, {"haMaxTransferRate": "0"})
            await sends.answered(SendStatus.SEND_OK)
            sends.stopping = True
        await nothing_is_missing(at, sends)


# --- reads without the master


async def test_reads_go_on_from_the_slave_and_lose_and_skip_nothing_when_the_master_is_back(tmp_path: Path) -> None:
    async with broker_set(tmp_path) as at:
        await at.make_topic(TOPIC, 1)
        queue = MessageQueue(TOPIC, NAME, 0)
        first, second, third = ([b"%d" % n for n in range(start, start + 500)] for start in (0, 500, 1000))
        async with Producer(at.nameserver) as producer:
            await producer.send_many(TOPIC, [*first, *second])
        async with PullConsumer(at.nameserver, group="g") as consumer:
            assert [one.body async for one in consumer.messages(queue, 0, 500)] == first
            await consumer.commit_offset(queue, 300)
            await until_committed_on_the_slave(at, queue, 300)
            at.master.kill()
            # It goes on where it is, from the slave; what it commits waits for the master.
            assert [one.body async for one in consumer.messages(queue, 500, 1000)] == second
            await consumer.commit_offset(queue, 800)
            assert await consumer.committed_offset(queue) == 800
        # It ends before the master is back: the next one begins at what the slave copied, and sees some again.
        async with PullConsumer(at.nameserver, group="g") as consumer:
            assert await consumer.committed_offset(queue) == 300
            assert [one.body async for one in consumer.messages(queue, 300, 1000)] == [*first, *second][300:]
            await consumer.commit_offset(queue, 1000)
            await start(at.master)
            await at.until_in_sync(1)
            async with Producer(at.nameserver) as producer:
                for body in third:
                    await producer.send(Message(TOPIC, body))
            assert [one.body async for one in consumer.messages(queue, 1000, 1500)] == third
            await until_committed(at, queue, 1000)
        assert (await stored(at.nameserver, TOPIC))[queue] == [*first, *second, *third]


async def until_committed(at: BrokerSet, queue: MessageQueue, offset: int) -> None:
    """Whoever asks is told so."""
    async with PullConsumer(at.nameserver, group="g") as other:

        async def is_there() -> bool:
            return await other.committed_offset(queue) == offset

        await until(is_there, f"offset {offset} is committed")


async def until_committed_on_the_slave(at: BrokerSet, queue: MessageQueue, offset: int) -> None:
    async with open_client() as client:

        async def is_there() -> bool:
            told = await BrokerTables(client, at.slave.addr).consumer_offsets(None, PageRequestHeader())
            return told.table.offset_table.get(f"{queue.topic}@g", {}).get(queue.queue_id) == offset

        await until(is_there, f"the slave has offset {offset}")


async def test_a_reader_under_load_sees_everything_once_through_the_masters_death(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with broker_set(tmp_path) as at:
        await at.make_topic(TOPIC)
        async with Producer(at.nameserver) as producer, PullConsumer(at.nameserver) as consumer:
            load, read = Load(producer, TOPIC), dict[MessageQueue, list[bytes]]()
            async with trio.open_nursery() as nursery:
                for queue in await consumer.message_queues(TOPIC):
                    read[queue] = []
                    nursery.start_soon(follow, consumer, queue, read[queue])
                async with trio.open_nursery() as senders:
                    for sender in range(SENDERS):
                        senders.start_soon(load.send, sender)
                    await load.more(300 + random.randrange(amount(700, 2_000)))
                    at.master.kill()
                    await until(lambda: len(load.failures) > 0, "sends fail: there is no other master")
                    at.master.start()
                    await load.more_from(NAME, 500)
                    load.stopping = True
                found = await stored(at.nameserver, TOPIC)
                await until(lambda: all(len(read[queue]) >= len(found[queue]) for queue in found), "all of it is read")
                nursery.cancel_scope.cancel()
        assert read == found
        check_acknowledged(load.acked, found)
