"""The quickstart with --rolling: conf/2m-2s-sync, and each of its four brokers restarted in turn under load.

The exit code is 0 only when no send failed and each acknowledged message is where its acknowledgement said.
"""

from collections import Counter
from pathlib import Path

import trio

from scripts.controller_set import NOT_YET, until
from scripts.daemons import Daemon, DaemonFailed, broker_daemon, namesrv_daemon, stop, wait_ready
from scripts.demo.options import Options
from scripts.demo.progress import Progress
from scripts.demo.report import Differs
from scripts.demo.stages import Stages, run_stage
from scripts.demo.switching import SMALL
from skylark import Admin, Message, Producer, PullConsumer, SendFailed, SendResult
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.topics import TopicConfig

TOPIC = "rolled"
CONF = "conf/2m-2s-sync"
QUEUES = 4
# Sends before the first restart, between restarts, and after the last one.
QUIET_SENDS = 2_000
# Each task waits this long between its sends: sends are many, and yet all messages can be read in seconds.
PAUSE_S = 0.5


class RollingDemo:
    """One run, with its data in ``home``."""

    def __init__(self, options: Options, home: Path) -> None:
        self._home = home
        self._tasks = options.tasks
        self._down_s = options.down_s
        self._stages = Stages()
        self._namesrv = namesrv_daemon(home)
        self._masters = {name: self._broker(name, name) for name in ("broker-a", "broker-b")}
        self._slaves = {name: self._broker(f"{name}-s", name) for name in self._masters}
        self._sending: Sending | None = None

    def run(self) -> None:
        """Run the stages in order. Raises Differs, DaemonFailed or SkylarkError when one of them fails."""
        try:
            with self._stages.stage("1. a NameServer, two masters, a slave of each"):
                self._start()
                run_stage(self._make_topic)
            with self._stages.stage("2. send, with each broker restarted in turn"):
                run_stage(self._send)
            with self._stages.stage("3. read all of it"):
                run_stage(self._read)
            with self._stages.stage("4. graceful stop"):
                self._stop()
        finally:
            for daemon in self._daemons:
                if daemon.runs:
                    daemon.kill()
        self._stages.show()

    @property
    def _daemons(self) -> list[Daemon]:
        """All daemons, in the order in which they are stopped."""
        return [*self._masters.values(), *self._slaves.values(), self._namesrv]

    def _broker(self, conf: str, broker_name: str) -> Daemon:
        options = ("-c", f"{CONF}/{conf}.properties", "--broker-name", broker_name, *SMALL)
        return broker_daemon(self._home, conf, self._namesrv.addr, 0, *options)

    # --- the stages

    def _start(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.start()
        wait_ready(self._daemons)
        for daemon in self._daemons:
            print(f"  {daemon.name} serves at {daemon.addr} (pid {daemon.pid})")

    async def _make_topic(self) -> None:
        async with Admin(self._namesrv.addr) as admin:
            for name in self._masters:
                await self._until_in_sync(admin, name)
                await admin.create_topic(self._masters[name].addr, TopicConfig(TOPIC, QUEUES, QUEUES))

            async def on_both() -> bool:
                try:
                    return len((await admin.topic_route(TOPIC)).queue_datas) == len(self._masters)
                except NOT_YET:
                    return False

            await until(on_both, f"both sets have topic {TOPIC}")
        print(f"  both masters have a slave in sync; logs and data: {self._home}")

    async def _send(self) -> None:
        async with Admin(self._namesrv.addr) as admin, Producer(self._namesrv.addr) as producer:
            sending = self._sending = Sending(producer)
            async with trio.open_nursery() as nursery:
                for _ in range(self._tasks):
                    nursery.start_soon(sending.run)
                await sending.more(QUIET_SENDS)
                for name, master in self._masters.items():
                    for daemon in (self._slaves[name], master):
                        await self._restart(daemon, sending)
                        await self._until_in_sync(admin, name)
                        sending.say(f"{daemon.name} is back, and {name} has its slave in sync")
                        await sending.more(QUIET_SENDS)
                sending.is_over = True
        print(f"  acknowledged by two brokers each: {len(sending.acked):,}; failed sends: {len(sending.failures):,}")
        print(f"  sends with more than one try: {sending.retried:,}; worst send: {sending.worst_s * 1000:,.0f} ms")
        if sending.failures:
            for text, count in Counter(map(str, sending.failures)).most_common(3):
                print(f"  {count:,} times: {text}")
            raise Differs(f"{len(sending.failures):,} sends failed; the first: {sending.failures[0]}")

    async def _read(self) -> None:
        assert self._sending is not None
        acked = self._sending.acked
        found: dict[tuple[str, int, int], bytes] = {}
        progress = Progress("read", len(acked))
        async with PullConsumer(self._namesrv.addr) as consumer:
            for queue in await consumer.message_queues(TOPIC):
                async for message in consumer.messages(queue, 0, await consumer.max_offset(queue)):
                    found[_place(queue, message.queue_offset)] = message.body
                    progress.update(len(found))
        progress.done()
        lost = [place for place, body in acked.items() if found.get(place) != body]
        twice = len(found) - len(set(found.values()))
        print(f"  acknowledged messages that are lost: {len(lost):,}")
        print(f"  stored twice, since the first answer did not come or was a weak one: {twice:,}")
        if lost:
            raise Differs(f"{len(lost):,} acknowledged messages are lost; the first was acknowledged at {lost[0]}")

    def _stop(self) -> None:
        problems = stop(self._masters.values()) + stop(self._slaves.values()) + stop([self._namesrv])
        if problems:
            raise DaemonFailed("\n".join(["not everything stopped gracefully", *problems]))
        print("  brokers and the NameServer stopped")

    # --- parts

    async def _restart(self, daemon: Daemon, sending: "Sending") -> None:
        """Stop a daemon gracefully, leave it down for a while, and start it again."""
        before = sending.ended
        started = trio.current_time()
        await trio.to_thread.run_sync(stop, [daemon])
        sending.say(f"{daemon.name} stopped in {trio.current_time() - started:.1f} s")
        await trio.sleep(self._down_s)
        daemon.start()
        await until(daemon.ready, f"{daemon.name} serves")
        sending.say(f"{daemon.name} started again; {sending.ended - before:,} sends since its stop began")

    async def _until_in_sync(self, admin: Admin, name: str) -> None:
        async def in_sync() -> bool:
            try:
                return (await admin.broker_ha_status(self._masters[name].addr)).in_sync_slave_nums == 1
            except NOT_YET:
                return False

        await until(in_sync, f"the slave of {name} is in sync")


class Sending:
    """Sends from many tasks until ``is_over``, and records where each message was stored."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._next = 0
        self._progress = Progress("sent", 0)
        #: By broker, queue and offset.
        self.acked: dict[tuple[str, int, int], bytes] = {}
        self.failures: list[SendFailed] = []
        self.retried = 0
        self.worst_s = 0.0
        self.is_over = False

    @property
    def ended(self) -> int:
        return len(self.acked) + len(self.failures)

    async def run(self) -> None:
        """One task: one send after the other."""
        while not self.is_over:
            body = b"message %d" % self._next
            self._next += 1
            started = trio.current_time()
            try:
                result = await self._producer.send(Message(TOPIC, body))
            except SendFailed as error:
                self.failures.append(error)
            else:
                self._acknowledged(result, body)
            self.worst_s = max(self.worst_s, trio.current_time() - started)
            await trio.sleep(PAUSE_S)

    async def more(self, count: int) -> None:
        """Return when ``count`` more sends have ended."""
        goal = self.ended + count
        await until(lambda: self.ended >= goal, f"{count:,} more sends")

    def say(self, text: str) -> None:
        """Print a line, with the number of sends so far."""
        self._progress.say(f"{self.ended:,} sends, {len(self.failures):,} failed: {text}")

    def _acknowledged(self, result: SendResult, body: bytes) -> None:
        self.acked[_place(result.queue, result.queue_offset)] = body
        self.retried += result.tries > 1


def _place(queue: MessageQueue, offset: int) -> tuple[str, int, int]:
    return queue.broker_name, queue.queue_id, offset
