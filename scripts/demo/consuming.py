"""A group of three processes consumes the flights. One of them is killed, and the others take over its queues."""

import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from scripts.daemons import POLL_S, ROOT, DaemonFailed
from scripts.demo.flights import Carrier
from scripts.demo.progress import Progress

GROUP = "flights_consumers"
MEMBERS = 3
KILL_AT = 0.4
# Without any new message for this time, the group is stuck.
SILENCE_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20


@dataclass
class Consumed:
    """The messages that the group has written so far. A message may be written more than once; it counts once."""

    carriers: dict[str, Carrier] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    rows: int = 0

    def count(self, lines: list[str]) -> None:
        """Add lines of one consumer."""
        self.rows += len(lines)
        for line in lines:
            message_id, code, delay = line.split(",")
            if message_id in self.ids:
                continue
            self.ids.add(message_id)
            carrier = self.carriers.setdefault(code, Carrier())
            carrier.flights += 1
            if delay:
                carrier.departed += 1
                carrier.delay_minutes += int(delay)


class Member:
    """One process of the group, and the file that it writes."""

    def __init__(self, nameserver: str, topic: str, home: Path, number: int) -> None:
        self.name = f"consumer-{number}"
        self.rows = 0
        self._result = home / f"{self.name}.csv"
        self._result.touch()
        self._log = home / f"{self.name}.log"
        self._read = 0
        command = [sys.executable, "-m", "scripts.demo.consumer", "--nameserver", nameserver, "--topic", topic]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--group", GROUP, "--result", str(self._result)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def new_lines(self) -> list[str]:
        """The whole lines that were written since the last call; a killed process may leave part of one."""
        with self._result.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        lines = whole.decode().splitlines()
        self.rows += len(lines)
        return lines

    def failure(self) -> str:
        """The end of the log of a process that ended by itself; "" while it runs."""
        if self.process.poll() is None:
            return ""
        return f"{self.name} ended with exit code {self.process.returncode}:\n{self._log.read_text('utf-8')[-4000:]}"


class Consuming:
    """The group; leaving the context stops its processes."""

    def __init__(self, nameserver: str, topic: str, home: Path, total: int) -> None:
        self.members = [Member(nameserver, topic, home, number) for number in range(1, MEMBERS + 1)]
        self.consumed = Consumed()
        self._total = total
        self._killed: Member | None = None
        self._progress = Progress("consumed", total)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running = [member for member in self.members if member.process.poll() is None]
        for member in running:
            member.process.terminate()
        for member in running:
            try:
                member.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
                if error is None:
                    raise DaemonFailed(f"{member.name} did not stop within {STOP_TIMEOUT_S} s") from None

    def run(self) -> Consumed:
        """Wait until the group has consumed everything; kill one member on the way. DaemonFailed when it is stuck."""
        consumed, started = self.consumed, time.monotonic()
        latest = started
        while len(consumed.ids) < self._total:
            before = len(consumed.ids)
            for member in self.members:
                consumed.count(member.new_lines())
                if member is not self._killed and (failure := member.failure()):
                    raise DaemonFailed(failure)
            now = time.monotonic()
            if len(consumed.ids) > before:
                latest = now
            elif now - latest > SILENCE_TIMEOUT_S:
                raise DaemonFailed(
                    f"the group got no new message for {SILENCE_TIMEOUT_S:.0f} s, after {before:,} of {self._total:,}"
                )
            if self._killed is None and len(consumed.ids) >= KILL_AT * self._total:
                self._kill()
            self._progress.update(len(consumed.ids))
            time.sleep(POLL_S)
        self._progress.update(len(consumed.ids))
        self._progress.done(f"in {time.monotonic() - started:.1f} s")
        return consumed

    def _kill(self) -> None:
        victim = next((member for member in self.members if member.rows), self.members[0])
        victim.process.kill()
        victim.process.wait()
        self._killed = victim
        self._progress.say(
            f"kill -9 {victim.name} (pid {victim.process.pid}) after its {victim.rows:,} messages;"
            " the others take over its queues"
        )
