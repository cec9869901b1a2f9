"""The processes of one consumer group, and what they were given."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from mqcommon.message.queue import MessageQueue
from scripts.daemons import ROOT
from sdk import PullConsumer, SkylarkError
from tests.e2e.chaos.delivery import Look, Member, parse
from tests.support.waiting import until

STOP_TIMEOUT_S = 60


class Group:
    """A group whose members come and go."""

    def __init__(self, nameserver: str, topic: str, name: str, home: Path, *, orderly: bool) -> None:
        self.name = name
        self.orderly = orderly
        self.looks: list[Look] = []
        self._nameserver = nameserver
        self._topic = topic
        self._home = home
        self._processes: list[subprocess.Popen[bytes]] = []
        self._started_ns: list[int] = []
        self._killed: set[int] = set()
        self._told: set[int] = set()

    # --- processes

    def start(self) -> None:
        """One more member."""
        number = len(self._processes)
        path = self._path(number)
        path.touch()
        command = [
            sys.executable,
            "-m",
            "tests.e2e.chaos.consumer",
            self._nameserver,
            self._topic,
            self.name,
            str(path),
        ]
        self._started_ns.append(time.monotonic_ns())
        with path.with_suffix(".log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, "orderly" if self.orderly else "concurrent"], cwd=ROOT, stdout=log, stderr=log
                )
            )

    @property
    def running(self) -> list[int]:
        """The members that were neither killed nor stopped."""
        return [number for number, process in enumerate(self._processes) if process.poll() is None]

    def kill(self, number: int) -> None:
        """kill -9."""
        self._killed.add(number)
        self._processes[number].kill()
        self._processes[number].wait()

    async def stop(self, numbers: Iterable[int] = ()) -> None:
        """SIGTERM; they finish what they have begun, commit and leave. Without ``numbers`` all of them."""
        told = list(numbers) or self.running
        self._told.update(told)
        processes = [self._processes[number] for number in told]
        for process in processes:
            process.send_signal(signal.SIGTERM)
        await until(lambda: all(p.poll() is not None for p in processes), "consumers stop", STOP_TIMEOUT_S)

    def failures(self) -> list[str]:
        """Members that ended without being told to, and what they logged last."""
        return [
            f"consumer {number} of {self.name} ended with {process.returncode}:\n{self.log(number)[-3000:]}"
            for number, process in enumerate(self._processes)
            if number not in self._killed and process.poll() and not self._was_early(number)
        ]

    def _was_early(self, number: int) -> bool:
        """Whether it was stopped before it handled signals."""
        return number in self._told and self._processes[number].returncode == -signal.SIGTERM

    def log(self, number: int) -> str:
        return self._path(number).with_suffix(".log").read_text("utf-8", errors="replace")

    def end(self) -> None:
        """Leave no process behind."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    # --- what they got

    @property
    def members(self) -> list[Member]:
        return [
            Member(started, parse(self._path(number).read_bytes())) for number, started in enumerate(self._started_ns)
        ]

    def bodies(self) -> set[str]:
        """Each message that any member got."""
        return {got.body for member in self.members for got in member.deliveries}

    async def look(self, reader: PullConsumer, queues: Iterable[MessageQueue]) -> None:
        """Note the group's committed offsets, as far as the brokers answer."""
        for mq in queues:
            try:
                committed = await reader.committed_offset(mq)
            except SkylarkError:
                continue
            self.looks.append(Look(time.monotonic_ns(), (mq.broker_name, mq.queue_id), committed or 0))

    def _path(self, number: int) -> Path:
        return self._home / f"{self.name}-{number}.got"
