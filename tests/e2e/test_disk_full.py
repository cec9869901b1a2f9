"""A disk of 80 MiB filled under load: refusals with a code, no crash, no loss, and sends again when there is room."""

import shutil
from pathlib import Path

import trio

from scripts.daemons import Daemon
from skylark import Admin, Message, Producer, PullConsumer, SendFailed
from skylark.mqcommon.errors import BrokerError, RequestTimeout
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.load import Acked, check_acknowledged, stored, whole
from tests.support.daemons import SMALL, Cluster, make_topic, running, start, until_route
from tests.support.small_disk import small_disk
from tests.support.waiting import until

DISK_MIB = 80
TOPIC = "full"
QUEUES = 4
SENDERS = 16
BODY_BYTES = 8 * 1024
# Nobody looks at the disk unless asked, so that it gets full to the last block.
OPTIONS = (
    *SMALL,
    "--clean-resource-interval", str(3_600_000),
    "--clean-file-forcibly-enable", "false",
    "--disk-space-clean-forcibly-ratio", "85",
    "--disk-space-warning-level-ratio", "90",
    "--delete-commit-log-files-interval", "1",
)  # fmt: skip


class Filling:
    """Senders that go on until they are refused."""

    def __init__(self, producer: Producer, name: str) -> None:
        self._producer = producer
        self._name = name
        self.acked: list[Acked] = []
        self.refusals: list[SendFailed] = []

    async def run(self) -> None:
        """Send until each sender has been refused."""
        async with trio.open_nursery() as nursery:
            for sender in range(SENDERS):
                nursery.start_soon(self._send, sender)

    async def _send(self, sender: int) -> None:
        for number in range(100_000):
            body = f"{self._name}/{sender}/{number}".encode().ljust(BODY_BYTES)
            try:
                result = await self._producer.send(Message(TOPIC, body))
            except SendFailed as error:
                self.refusals.append(error)
                return
            self.acked.append((result.queue, result.queue_offset, body))

    def check(self) -> None:
        """Check the errors that refused senders got."""
        assert len(self.refusals) == SENDERS
        for refusal in self.refusals:
            # On a busy machine the last try may have had too little time left for an answer.
            assert isinstance(refusal.__cause__, BrokerError | RequestTimeout)
            assert f"answered code {ResponseCode.SERVICE_NOT_AVAILABLE}: service not available now" in str(refusal)
            assert "disk is full" in str(refusal)


async def restarted(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    broker.kill()
    await start(broker)
    await until_route(cluster, TOPIC, [broker.name])


async def check_reads_and_commits(cluster: Cluster, acked: list[Acked], committed: int) -> None:
    """All that was acknowledged is read; offsets are committed."""
    check_acknowledged(acked, await stored(cluster.nameserver, TOPIC))
    queue = acked[0][0]
    async with PullConsumer(cluster.nameserver) as consumer:
        await consumer.commit_offset(queue, committed)
        assert await consumer.committed_offset(queue) == committed


async def room_is_made(cluster: Cluster, broker: Daemon, disk: Path) -> None:
    """Old files may go now, however young; then sends come back by themselves."""

    def roomy() -> bool:
        usage = shutil.disk_usage(disk)
        return usage.used <= 0.85 * (usage.used + usage.free)

    async with Admin(cluster.nameserver) as admin:
        # What grows while it cleans is cleaned in its next round.
        often = {"cleanFileForciblyEnable": "true", "cleanResourceInterval": "1000"}
        await admin.update_broker_config(broker.addr, often)
        await admin.delete_expired_commit_log(broker.addr)
    async with Producer(cluster.nameserver, retries=0) as producer:

        async def taken() -> bool:
            try:
                await producer.send(Message(TOPIC, b"again".ljust(BODY_BYTES)))
            except SendFailed:
                return False
            return True

        await until(taken, "sends are taken again")
    await until(roomy, "the disk is cleaned")
    async with Admin(cluster.nameserver) as admin:
        # Returns when the queues know of it.
        await admin.clean_expired_consume_queue(broker.addr)


async def check_what_is_left(cluster: Cluster, acked: list[Acked]) -> None:
    """Each queue begins later and has all from there on."""
    async with PullConsumer(cluster.nameserver) as consumer:
        for queue in {queue for queue, _, _ in acked}:
            start, found = await whole(consumer, queue)
            sent = {offset: body for of, offset, body in acked if of == queue}
            assert 0 < start <= max(sent)
            assert found[: len(sent) - start] == [sent[offset] for offset in range(start, len(sent))]


async def test_a_disk_that_is_full_refuses_sends_and_nothing_else(tmp_path: Path) -> None:
    with small_disk(tmp_path, DISK_MIB) as disk:
        options = (*OPTIONS, "--store-path-root-dir", str(disk / "store"))
        async with running(tmp_path, options=options) as cluster:
            broker = cluster.brokers[0]
            await make_topic(cluster, TopicConfig(TOPIC, QUEUES, QUEUES))
            async with Producer(cluster.nameserver, retries=0) as producer:
                first = Filling(producer, "first")
                await first.run()
                first.check()
                assert sum(len(body) for *_, body in first.acked) > DISK_MIB * 0.7 * 1024 * 1024
                await check_reads_and_commits(cluster, first.acked, 1)
                pid = broker.pid
                assert broker.runs, broker.log_end()

                await restarted(cluster)
                assert broker.pid != pid
                second = Filling(producer, "second")
                await second.run()
                second.check()
                acked = [*first.acked, *second.acked]
                await check_reads_and_commits(cluster, acked, 2)

            pid = broker.pid
            await room_is_made(cluster, broker, disk)
            await check_what_is_left(cluster, acked)
            assert broker.runs and broker.pid == pid, broker.log_end()
            assert "Traceback" not in broker.log.read_text()
            broker.terminate()
            await trio.to_thread.run_sync(broker.wait_stopped)
