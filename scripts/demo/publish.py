"""Publishes the flights from many tasks at once, and kills a master and starts it again meanwhile."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import trio

from scripts.daemons import POLL_S, READY_TIMEOUT_S, Daemon, DaemonFailed
from scripts.demo.progress import Progress
from skylark import Message, Producer, SendFailed, SendResult

KILL_AT, RESTART_AT = 0.4, 0.6
SEND_TIMEOUT_MS = 30_000


@dataclass
class Published:
    """The results of the sends."""

    sent: int = 0
    # Sends that needed more than one try; sends that no try could store.
    retried: int = 0
    failures: list[SendFailed] = field(default_factory=list)
    worst_s: float = 0.0
    seconds: float = 0.0
    # Messages acknowledged by the master that was killed: before the kill, and after it was back.
    before_kill: int = 0
    after_restart: int = 0
    by_broker: Counter[str] = field(default_factory=Counter)

    def count(self, result: SendResult, seconds: float) -> None:
        self.sent += 1
        self.retried += result.tries > 1
        self.worst_s = max(self.worst_s, seconds)
        self.by_broker[result.queue.broker_name] += 1


class Publishing:
    """One run: ``victim`` is killed and started again on the way."""

    def __init__(self, messages: Iterator[Message], total: int, victim: Daemon) -> None:
        self._messages = messages
        self._total = total
        self._victim = victim
        self._progress = Progress("published", total)
        self.published = Published()

    async def run(self, nameserver: str, tasks: int) -> Published:
        """Send everything; returns when each message has its result."""
        started = time.perf_counter()
        # A long timeout: a busy machine must not make a send fail.
        patient = Producer(nameserver, group="flights_producer", send_timeout_ms=SEND_TIMEOUT_MS)
        async with patient as producer, trio.open_nursery() as everything:
            everything.start_soon(self._kill_and_restart)
            async with trio.open_nursery() as senders:
                for _ in range(tasks):
                    senders.start_soon(self._send, producer)
        published = self.published
        published.seconds = time.perf_counter() - started
        published.after_restart = published.by_broker[self._victim.name] - published.before_kill
        self._progress.done(f"in {published.seconds:.1f} s")
        return published

    async def _send(self, producer: Producer) -> None:
        published = self.published
        for message in self._messages:
            started = time.perf_counter()
            try:
                result = await producer.send(message)
            except SendFailed as error:
                published.failures.append(error)
                continue
            published.count(result, time.perf_counter() - started)
            self._progress.update(published.sent)

    async def _kill_and_restart(self) -> None:
        victim, published = self._victim, self.published
        await self._reached(KILL_AT)
        victim.kill()
        published.before_kill = published.by_broker[victim.name]
        self._progress.say(f"kill -9 {victim.name} (pid {victim.pid}) after {published.sent:,} sends")
        await self._reached(RESTART_AT)
        victim.start()
        started = time.perf_counter()
        with trio.move_on_after(READY_TIMEOUT_S) as waiting:
            await _until(victim.ready)
        if waiting.cancelled_caught:
            raise DaemonFailed(f"{victim.name} is not ready after {READY_TIMEOUT_S} s")
        ready_s = time.perf_counter() - started
        self._progress.say(f"{victim.name} serves again: recovered and ready {ready_s:.2f} s after its start")

    async def _reached(self, share: float) -> None:
        published = self.published
        await _until(lambda: published.sent + len(published.failures) >= share * self._total)


async def _until(reached: Callable[[], bool]) -> None:
    while True:
        if reached():
            return
        await trio.sleep(POLL_S)
