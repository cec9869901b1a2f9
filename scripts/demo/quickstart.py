"""The six stages of the quickstart.

The exit code is 0 only when no send failed, and the consumers and Spark agree with the CSV.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import cached_property
from pathlib import Path

import trio

from scripts.daemons import BIN, POLL_S, ROOT, DaemonFailed, broker_daemon, in_use, namesrv_daemon, stop, wait_ready
from scripts.demo.consuming import Consuming
from scripts.demo.flights import Carrier, airline_names, carriers_of_csv, flight_messages
from scripts.demo.options import Options, parse
from scripts.demo.picture import report_html
from scripts.demo.progress import wait_shown
from scripts.demo.publish import Publishing
from scripts.demo.report import Differs, compare, first_of, show_carriers
from scripts.demo.rolling import RollingDemo
from scripts.demo.stages import Stages
from scripts.demo.switching import SwitchingDemo
from skylark import Admin, SkylarkError

TOPIC = "flights"
CLUSTER = "DefaultCluster"
# Small files, so that the demo fits on a full laptop: what a broker writes here is about 250 MB.
SMALL = (
    "--mapped-file-size-commit-log", str(64 * 1024 * 1024),
    "--mapped-file-size-consume-queue", str(20_000 * 20),
    "--max-hash-slot-num", "500000",
    "--max-index-num", "1000000",
)  # fmt: skip
REGISTERED_TIMEOUT_S = 20


class Quickstart:
    """One run, with its data in ``home``."""

    def __init__(self, options: Options, home: Path) -> None:
        self._options = options
        self._home = home
        self._stages = Stages()
        self._report: Path | None = None
        self.namesrvs = [
            namesrv_daemon(home, f"namesrv-{number}", port, "-c", "conf/namesrv.conf")
            for number, port in enumerate(options.namesrv_ports, 1)
        ]
        self.nameserver = ";".join(namesrv.addr for namesrv in self.namesrvs)
        self.brokers = [
            broker_daemon(home, name, self.nameserver, port, "-c", f"conf/2m-noslave/{name}.properties", *SMALL)
            for name, port in zip(("broker-a", "broker-b"), options.broker_ports, strict=True)
        ]

    def run(self) -> None:
        """Run the stages in order. Raises Differs, DaemonFailed or SkylarkError when one of them fails."""
        try:
            with self._stages.stage("1. two NameServers and two masters"):
                self._start()
            with self._stages.stage("2. topic flights on both masters"):
                self._create_topic()
            with self._stages.stage("3. publish, with a master killed meanwhile"):
                self._publish()
            with self._stages.stage("4. consume, with one of three consumers killed"):
                self._consume()
            if self._options.spark:
                with self._stages.stage("5. Spark"):
                    self._spark()
            else:
                print("\n5. Spark: left out")
        finally:
            try:
                with self._stages.stage("6. graceful stop"):
                    self._stop()
            finally:
                # The cluster is stopped also when the reader of the output has gone.
                stop([*self.brokers, *self.namesrvs])
        self._show_stages()

    # --- the stages

    def _start(self) -> None:
        for daemons, flag in ((self.namesrvs, "--namesrv-ports"), (self.brokers, "--broker-ports")):
            if taken := [daemon.port for daemon in daemons if in_use(daemon.port)]:
                raise DaemonFailed(f"port {taken[0]} is in use; choose others with {flag} (0 takes a free one)")
        for daemon in [*self.namesrvs, *self.brokers]:
            daemon.start()
        wait_ready([*self.namesrvs, *self.brokers])
        for daemon in [*self.namesrvs, *self.brokers]:
            print(f"  {daemon.name} serves at {daemon.addr} (pid {daemon.pid})")
        for namesrv in self.namesrvs:
            trio.run(self._until, namesrv.addr, _both_masters, "both masters")
        print(f"  both masters are registered with both NameServers; logs and data: {self._home}")

    @cached_property
    def _carriers(self) -> dict[str, Carrier]:
        """The statistics that the group and Spark have to find."""
        return carriers_of_csv()

    @property
    def _flights(self) -> int:
        return sum(carrier.flights for carrier in self._carriers.values())

    def _create_topic(self) -> None:
        self._mqadmin("updateTopic", "-c", CLUSTER, "-t", TOPIC)
        for namesrv in self.namesrvs:
            trio.run(self._until, namesrv.addr, _topic_on_both, f"topic {TOPIC} on both masters")
        self._mqadmin("clusterList")
        self._mqadmin("topicRoute", "-t", TOPIC)

    def _publish(self) -> None:
        victim = self.brokers[1]
        publishing = Publishing(flight_messages(TOPIC), self._flights, victim)
        try:
            published = trio.run(publishing.run, self.nameserver, self._options.tasks)
        except BaseExceptionGroup as group:
            raise first_of(group) from None
        share = ", ".join(f"{name} {count:,}" for name, count in sorted(published.by_broker.items()))
        print(f"  stored by {share}")
        before, after = published.before_kill, published.after_restart
        print(f"  {victim.name} stored {before:,} before its kill -9, and {after:,} since it is back")
        print(f"  failed sends: {len(published.failures):,}")
        print(f"  sends retried elsewhere: {published.retried:,}")
        print(f"  worst send: {published.worst_s * 1000:,.0f} ms")
        if published.failures:
            raise Differs(f"{len(published.failures):,} sends failed; the first: {published.failures[0]}")

    def _consume(self) -> None:
        with Consuming(self.nameserver, TOPIC, self._home, self._flights) as group:
            consumed = group.run()
            for member in group.members:
                print(f"  {member.name} consumed {member.rows:,}")
        duplicates = compare("the group consumed", consumed.rows, consumed.carriers, self._carriers)
        print(f"  consumed again, as the killed consumer had not committed them: {duplicates:,}")
        print("  flights, departures and delays of all carriers agree with the CSV")

    def _spark(self) -> None:
        result = self._home / "spark-result.json"
        job = [sys.executable, "-m", "scripts.demo.spark_job", "--nameserver", self.nameserver, "--topic", TOPIC]
        env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        with (self._home / "spark.log").open("wb") as log:
            process = subprocess.Popen([*job, "--result", str(result)], cwd=ROOT, env=env, stdout=log, stderr=log)
            wait_shown("Spark reads all queues of the topic", process)
        if process.returncode:
            raise DaemonFailed(f"the Spark job failed:\n{(self._home / 'spark.log').read_text('utf-8')[-4000:]}")
        found = json.loads(result.read_text("utf-8"))
        names = airline_names()
        carriers = show_carriers(found, names)
        # Beside the folder, which is removed at the end.
        self._report = self._home.with_suffix(".html")
        self._report.write_text(report_html(found, carriers, names), encoding="utf-8")
        duplicates = compare("Spark found", found["rows"], carriers, self._carriers)
        print(f"  duplicates that the retries made: {duplicates:,}")
        print("  flights, departures and delays of all carriers agree with the CSV")

    def _stop(self) -> None:
        problems = stop(reversed(self.brokers)) + stop(self.namesrvs)
        for problem in problems:
            print(f"  {problem}")
        if problems:
            raise DaemonFailed("not everything stopped gracefully")
        print("  brokers and NameServers stopped")

    # --- parts

    def _mqadmin(self, *arguments: str) -> None:
        command = ["mqadmin", *arguments, "-n", self.nameserver]
        print(f"  $ {shlex.join(command)}")
        run = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True)
        for line in (run.stdout + run.stderr).splitlines():
            print(f"    {line}".rstrip())
        if run.returncode:
            raise DaemonFailed(f"mqadmin {arguments[0]} failed with exit code {run.returncode}")

    async def _until(self, namesrv: str, reached: Callable[[Admin], Awaitable[bool]], what: str) -> None:
        """Ask one NameServer again and again until ``reached``."""
        with trio.move_on_after(REGISTERED_TIMEOUT_S):
            async with Admin(namesrv) as admin:
                while True:
                    if await reached(admin):
                        return
                    await trio.sleep(POLL_S)
        raise DaemonFailed(f"NameServer {namesrv} does not know {what} after {REGISTERED_TIMEOUT_S} s")

    def _show_stages(self) -> None:
        self._stages.show()
        if self._report is not None:
            print(f"pictures of delays and throughput: {self._report.resolve().as_uri()}")


async def _both_masters(admin: Admin) -> bool:
    try:
        return len((await admin.cluster_info()).broker_addr_table) == 2
    except SkylarkError:
        return False


async def _topic_on_both(admin: Admin) -> bool:
    try:
        return len((await admin.topic_route(TOPIC)).broker_datas) == 2
    except SkylarkError:
        return False


def _make_home(parent: Path | None) -> Path:
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="skylark-quickstart-", dir=parent))


def main() -> int:
    options = parse()
    try:
        home = _make_home(options.directory)
    except OSError as error:
        print(
            f"quickstart: no folder can be made in {options.directory or tempfile.gettempdir()}:"
            f" {error.strerror}; choose another with --dir",
            file=sys.stderr,
        )
        return 1
    try:
        if options.console:
            # The console needs an extra that the other shows do without.
            from scripts.demo.console import ConsoleDemo

            ConsoleDemo(options, home).run()
        elif options.rolling:
            RollingDemo(options, home).run()
        else:
            (SwitchingDemo if options.controller or options.dledger else Quickstart)(options, home).run()
    except (Differs, DaemonFailed, SkylarkError) as error:
        print(f"\nquickstart: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nquickstart: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Otherwise the interpreter would also report the error when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("quickstart: nobody reads its output any more; everything is stopped", file=sys.stderr)
        return 1
    finally:
        if not options.keep:
            shutil.rmtree(home)
    if options.keep:
        print(f"data and logs stay in {home}")
    return 0
