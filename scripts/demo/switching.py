"""The quickstart with --controller or --dledger: three brokers, of which the master is killed under load."""

from pathlib import Path

import trio

from scripts.controller_set import ControllerSet, until
from scripts.daemons import DaemonFailed
from scripts.demo.options import Options
from scripts.demo.progress import Progress
from scripts.demo.report import Differs
from scripts.demo.stages import Stages, run_stage
from scripts.dledger_set import DLedgerSet
from skylark import Admin, Message, Producer, PullConsumer, SendFailed, SendResult

TOPIC = "switched"
KILL_AT, RESTART_AT = 0.4, 0.7
SEND_TIMEOUT_MS = 30_000
# Small files, so that the demo fits on a full laptop.
SMALL = ("--mapped-file-size-commit-log", str(64 * 1024 * 1024), "--max-hash-slot-num", "500000",
         "--max-index-num", "1000000")  # fmt: skip


class SwitchingDemo:
    """One run, with its data in ``home``."""

    def __init__(self, options: Options, home: Path) -> None:
        self._home = home
        self._tasks = options.tasks
        self._messages = options.messages
        self._stages = Stages()
        self._set = made = DLedgerSet(home, options=SMALL) if options.dledger else ControllerSet(home, options=SMALL)
        for kind, daemons in (("controller", made.controllers), ("broker", made.brokers)):
            for number, daemon in enumerate(daemons):
                # Options that must differ from the conf files on this machine are on the command line already.
                folder = "dledger" if options.dledger else "controller"
                daemon.command = [*daemon.command, "-c", f"conf/{folder}/{kind}-n{number}.conf"]
        self._sending: Sending | None = None

    def run(self) -> None:
        """Run the stages in order. Raises Differs, DaemonFailed or SkylarkError when one of them fails."""
        try:
            controllers = "three Controllers, " if self._set.controllers else ""
            with self._stages.stage(f"1. a NameServer, {controllers}three brokers"):
                self._set.start()
                run_stage(self._start)
            with self._stages.stage("2. send, with the master killed meanwhile"):
                run_stage(self._send)
            with self._stages.stage("3. read all of it"):
                run_stage(self._read)
            with self._stages.stage("4. graceful stop"):
                self._stop()
        finally:
            self._set.end()
        self._stages.show()

    # --- the stages

    async def _start(self) -> None:
        for daemon in self._set.daemons:
            print(f"  {daemon.name} serves at {daemon.addr} (pid {daemon.pid})")
        async with Admin(self._set.nameserver) as admin:
            master = await self._set.until_in_sync(admin)
            leader = await self._set.leading_controller(admin)
            epoch = await self._set.epoch(admin)
            await self._set.make_topic(admin, TOPIC)
        if self._set.controllers:
            print(f"  {leader.name if leader else 'no Controller'} leads the Controllers")
        print(
            f"  {master.name} is the master of {epoch}; all three brokers have all messages;"
            f" logs and data: {self._home}"
        )

    async def _send(self) -> None:
        made = self._set
        async with Admin(made.nameserver) as admin, Producer(made.nameserver, send_timeout_ms=SEND_TIMEOUT_MS) as sdk:
            sending = self._sending = Sending(sdk, self._messages)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._kill_and_restart, admin, sending)
                for _ in range(self._tasks):
                    nursery.start_soon(sending.run)
            sending.progress.done()
            await made.until_in_sync(admin)
        print(f"  acknowledged: {len(sending.acked):,}; failed sends: {len(sending.failures):,}")
        print(f"  worst send: {sending.worst_s * 1000:,.0f} ms")
        print(f"  acknowledged again {sending.again_s * 1000:,.0f} ms after the kill -9 of the master")
        if sending.failures:
            raise Differs(f"{len(sending.failures):,} sends failed; the first: {sending.failures[0]}")

    async def _kill_and_restart(self, admin: Admin, sending: "Sending") -> None:
        made = self._set
        victim = await made.until_master(admin)
        await sending.reached(KILL_AT)
        epoch = await made.epoch(admin)
        victim.kill()
        killed_at = sending.mark_kill()
        sending.progress.say(
            f"kill -9 {victim.name}, the master of {epoch} (pid {victim.pid}), after {sending.ended:,} sends"
        )
        master = await made.until_master(admin, but=victim)
        took_s = trio.current_time() - killed_at
        epoch = await made.epoch(admin)
        sending.progress.say(
            f"{master.name} took over: elected in {epoch}, and routed to, {took_s * 1000:,.0f} ms after the kill"
        )
        await sending.reached(RESTART_AT)
        await made.start_broker(victim)
        await made.until_in_sync(admin)
        sending.progress.say(f"{victim.name} is back: it follows {master.name}, and has all messages")

    async def _read(self) -> None:
        assert self._sending is not None
        found: dict[tuple[int, int], bytes] = {}
        progress = Progress("read", self._messages)
        async with PullConsumer(self._set.nameserver) as consumer:
            for queue in await consumer.message_queues(TOPIC):
                async for message in consumer.messages(queue, 0, await consumer.max_offset(queue)):
                    found[queue.queue_id, message.queue_offset] = message.body
                    progress.update(len(found))
        progress.done()
        lost = [place for place, body in self._sending.acked.items() if found.get(place) != body]
        twice = len(found) - len(set(found.values()))
        print(f"  acknowledged messages that are lost: {len(lost):,}")
        print(f"  stored twice, since the first try had no answer: {twice:,}")
        if lost:
            queue_id, offset = lost[0]
            raise Differs(f"{len(lost):,} acknowledged messages are lost; the first: {offset} of queue {queue_id}")

    def _stop(self) -> None:
        if problems := self._set.stop():
            raise DaemonFailed("\n".join(["not everything stopped gracefully", *problems]))
        print(f"  brokers{', Controllers' if self._set.controllers else ''} and the NameServer stopped")


class Sending:
    """Sends ``total`` messages from many tasks, and records where each was stored."""

    def __init__(self, producer: Producer, total: int) -> None:
        self._producer = producer
        self._total = total
        self._next = 0
        # By queue and offset.
        self.acked: dict[tuple[int, int], bytes] = {}
        self.failures: list[SendFailed] = []
        self.worst_s = 0.0
        #: From the kill to the first acknowledgement that the dead master cannot have sent.
        self.again_s = 0.0
        self._killed_at = 0.0
        self.progress = Progress("sent", total)

    @property
    def ended(self) -> int:
        return len(self.acked) + len(self.failures)

    async def run(self) -> None:
        """One task: one send after the other."""
        while self._next < self._total:
            number, self._next = self._next, self._next + 1
            body = b"message %d" % number
            started = trio.current_time()
            try:
                result = await self._producer.send(Message(TOPIC, body))
            except SendFailed as error:
                self.failures.append(error)
            else:
                self._acknowledged(result, body, started)
            self.progress.update(self.ended)

    def mark_kill(self) -> float:
        """Record when the master was killed."""
        self._killed_at = trio.current_time()
        return self._killed_at

    async def reached(self, share: float) -> None:
        """Wait until this share of all messages is sent."""
        await until(lambda: self.ended >= share * self._total, f"{share:.0%} of the messages are sent")

    def _acknowledged(self, result: SendResult, body: bytes, started: float) -> None:
        now = trio.current_time()
        self.acked[result.queue.queue_id, result.queue_offset] = body
        self.worst_s = max(self.worst_s, now - started)
        if self._killed_at and not self.again_s and (started >= self._killed_at or result.tries > 1):
            self.again_s = now - self._killed_at
