"""A master and its slave that run for long: small files, cleaning, topics made again, a slave that restarts.

Nothing is lost or made up, and neither memory nor descriptors grow. CI runs some lives of a topic, ``--nightly``
20 minutes of them.
"""

import os
import sys
from pathlib import Path

import pytest
import trio

from scripts.daemons import Daemon, stop
from skylark import Admin, Message, Producer, PullConsumer
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.load import Load, whole
from tests.support.daemons import NAME, BrokerSet, broker_set, start, until_route
from tests.support.waiting import until
from tests.support.warm_daemons import warm

FORGETFUL = (sys.executable, "-m", "tests.support.forgetful_broker")
OPTIONS = ("--delete-commit-log-files-interval", "1")
STEADY = "steady"
SENDERS = 8
SEND_TIMEOUT_MS = 120_000
# Steady messages in each life: the log gets a new file.
SENDS, BODY_BYTES = 500, 2_000
LIVES_IN_CI = 4
NIGHTLY_S = 20 * 60
# Before this many lives memory may still grow: caches fill.
WARM_UP = 3
RSS_SLACK_KIB = 30 * 1024
DESCRIPTORS_SLACK = 50


class Soak:
    """`live` once for each life of the topic that is deleted and made again."""

    def __init__(self, at: BrokerSet, producer: Producer, load: Load) -> None:
        self._at = at
        self._producer = producer
        self._load = load
        self._lives = 0
        self._first: dict[str, tuple[int, int]] = {}

    async def live(self) -> None:
        topic, at = f"again-{self._lives % 2}", self._at
        await at.until_in_sync(1)
        async with Admin(at.nameserver) as admin:
            for daemon in (at.master, at.slave):
                await admin.delete_expired_commit_log(daemon.addr)
            await admin.create_topic(at.master.addr, TopicConfig(topic, 2, 2))
            await until_route(at.cluster, topic, [NAME])
            for number in range(300):
                await self._producer.send(Message(topic, b"%d/%d" % (self._lives, number)))
            if self._lives % 3 == 1:
                at.slave.kill()
            await self._load.more(SENDS)
            await admin.delete_topic_in_broker(at.master.addr, topic)
            if not at.slave.runs:
                await start(at.slave)
        self._lives += 1
        if self._lives >= WARM_UP:
            for daemon in (at.master, at.slave):
                self._check_size(daemon)

    def _check_size(self, daemon: Daemon) -> None:
        size = rss_and_descriptors(daemon.pid)
        # A slave that was restarted begins anew.
        rss, descriptors = self._first.setdefault(f"{daemon.name} {daemon.pid}", size)
        assert size[0] < rss + RSS_SLACK_KIB, f"{daemon.name} had {rss} KiB and has {size[0]}"
        assert size[1] < descriptors + DESCRIPTORS_SLACK, f"{daemon.name} had {descriptors} descriptors, has {size[1]}"


def rss_and_descriptors(pid: int) -> tuple[int, int]:
    """KiB of memory of its own, without files' pages; open descriptors."""
    status = Path(f"/proc/{pid}/status").read_text()
    rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    return rss, len(os.listdir(f"/proc/{pid}/fd"))


async def soak(home: Path, lives: int, seconds: float = 0) -> None:
    """Run for at least ``lives`` lives, and for at least ``seconds``."""
    async with broker_set(home, "ASYNC_MASTER", options=OPTIONS, program=FORGETFUL) as at:
        await at.make_topic(STEADY)
        # A try that times out on a slow machine stores a message that nobody hears of: it would look like a gap.
        patient = Producer(at.nameserver, send_timeout_ms=SEND_TIMEOUT_MS)
        async with patient as producer, trio.open_nursery() as nursery:
            load = Load(producer, STEADY, body_bytes=BODY_BYTES)
            for sender in range(SENDERS):
                nursery.start_soon(load.send, sender)
            run = Soak(at, producer, load)
            ends = trio.current_time() + seconds
            while lives > 0 or trio.current_time() < ends:
                await run.live()
                lives -= 1
            load.stopping = True
        assert load.failures == []
        assert load.producer.retried == 0
        await check_whole(at, load)
        for daemon in (at.master, at.slave):
            await until_cleaned(at, daemon)
        assert stop([at.slave, at.master]) == []
        for daemon in (at.slave, at.master):
            await verify(at.store_of(daemon))


async def until_cleaned(at: BrokerSet, daemon: Daemon) -> None:
    """The oldest file is gone; on a fast machine it may not have been old enough before."""
    oldest = at.store_of(daemon) / "commitlog" / ("0" * 20)
    async with Admin(at.nameserver) as admin:

        async def cleaned() -> bool:
            await admin.delete_expired_commit_log(daemon.addr)
            return not oldest.exists()

        await until(cleaned, f"{daemon.name} removes old files")


async def check_whole(at: BrokerSet, load: Load) -> None:
    """Each queue gave its offsets in order, without a gap; the slave has all that the master has."""
    async with PullConsumer(at.nameserver) as consumer, Admin(at.nameserver) as admin:
        last: dict[MessageQueue, dict[int, bytes]] = {}
        for queue, offset, body in load.acked:
            last.setdefault(queue, {})[offset] = body
        for queue, acked in last.items():
            end = await consumer.max_offset(queue)
            assert sorted(acked) == list(range(end)), f"a gap in {queue}"
            start, found = await whole(consumer, queue)
            assert found == [acked[offset] for offset in range(start, end)]

        async def same() -> bool:
            infos = [await admin.broker_runtime_info(daemon.addr) for daemon in (at.master, at.slave)]
            return infos[0]["commitLogMaxOffset"] == infos[1]["commitLogMaxOffset"]

        await until(same, "the slave has all that the master has")


async def verify(store: Path) -> None:
    """Queues and index are as the log says."""
    conf = store.parent / "small.conf"
    conf.write_text("mappedFileSizeCommitLog=1048576\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n")
    command = [warm("broker"), "verifyStore", str(store), "-c", str(conf)]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_a_soak_in_short(tmp_path: Path) -> None:
    await soak(tmp_path, LIVES_IN_CI)


@pytest.mark.nightly
async def test_a_soak_of_20_minutes(tmp_path: Path) -> None:
    await soak(tmp_path, WARM_UP + 1, NIGHTLY_S)
