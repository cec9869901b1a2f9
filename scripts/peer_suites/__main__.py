"""Run what a peer publishes, its tests or the programs of its README, against Skylark.

    scripts/peers celery|kombu|faststream|node|python

The published package and its tests are installed from PyPI, or npm, into a temporary folder. A NameServer and a broker
are started on free ports of 127.0.0.1 (for clients of RocketMQ 5 also a proxy, for celery also a Redis). The table at
the end says what passed, and what does not apply and why (scripts/peer_suites/known.txt). Exit code 1: a case
failed that is not in that list. Folder and servers go at the end, also after Ctrl-C. docs/reference/peers.md has the
results.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from scripts.daemons import HOST, ROOT, DaemonFailed, broker_daemon, namesrv_daemon, proxy_daemon, reserve, serving
from scripts.peer_suites.peers import PEERS, Peer, Servers
from scripts.peer_suites.results import KNOWN, cases_of, known_of, summary_of, table
from scripts.run_watcher import Watched
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.blocking import Admin

HERE = Path(__file__).parent
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "-qq")
PROGRESS_S = 20
POLL_S = 0.2
TIMEOUT_S = 5400
# A case that hangs ends with a traceback of all threads.
CASE_TIMEOUT_S = 600


class PeerFailed(Exception):
    """A step that does not say anything about Skylark failed; the text says which, and why."""


def step(title: str, command: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a command; show that it lives. Raises PeerFailed with the end of its output."""
    if run(title, command, cwd, environment or os.environ, cwd / "output") != 0:
        raise PeerFailed(f"{title}: failed:\n{end_of(cwd / 'output')}")


def run(title: str, command: Sequence[str], cwd: Path, environment: Mapping[str, str], log: Path) -> int:
    """The exit code of a command whose output goes to ``log``, the last line of which is shown now and then."""
    print(f"{title} ...", flush=True)
    began = told = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        while process.poll() is None:
            time.sleep(POLL_S)
            now = time.monotonic()
            if now > began + TIMEOUT_S:
                raise PeerFailed(f"{title}: no end after {TIMEOUT_S} s:\n{end_of(log)}")
            if now > told + PROGRESS_S:
                told = now
                print(f"  {now - began:.0f} s: {end_of(log, 1)[:120]}", flush=True)
    finally:
        process.kill()
        process.wait()
    print(f"{title}: {time.monotonic() - began:.0f} s", flush=True)
    return process.returncode


def end_of(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def required(program: str, packages: str) -> str:
    """The path of a program. Raises PeerFailed when it is missing."""
    path = shutil.which(program)
    if path is None:
        raise PeerFailed(f"no {program} found, which this peer needs: apt-get install {packages} (Debian, Ubuntu)")
    return path


def install(peer: Peer, folder: Path) -> Path:
    """Put the package and its tests into ``folder``; returns the Python that runs the tests."""
    python = folder / "venv" / "bin" / "python"
    step("making an environment", [sys.executable, "-m", "venv", "venv"], folder)
    # Skylark itself is the tree: editable, so that nothing is built or copied.
    packages = [*(["--editable", f"{ROOT}[{peer.extra}]"] if peer.extra else []), *peer.requirements]
    step(f"installing {peer.package} {peer.version}", [str(python), *PIP, "install", *packages], folder)
    if peer.parts:
        command = [str(python), *PIP, "download", "--no-deps", "--no-binary", peer.package]
        step("getting its source distribution", [*command, f"{peer.package}=={peer.version}"], folder)
        take(peer, folder)
    if peer.is_npm:
        npm = required("npm", "nodejs npm")
        options = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
        step(
            f"installing {peer.package} {peer.version}",
            [npm, "install", "--prefix", str(folder), *options, f"{peer.package}@{peer.version}"],
            folder,
        )
    if peer.cases:
        shutil.copy(HERE / "cases" / peer.cases, folder)
    return python


def take(peer: Peer, folder: Path) -> None:
    """Unpack the tests alone: with the package beside them they would not import the installed package."""
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    for part in peer.parts:
        if not (source / part).exists():
            raise PeerFailed(f"{archive.name} has no {part}: this version does not publish what is run here")
        (source / part).rename(folder / part)


@contextmanager
def servers_of(peer: Peer, folder: Path) -> Iterator[Servers]:
    """The servers that the tests need, running in the block."""
    with ExitStack() as stack:
        namesrv = namesrv_daemon(folder)
        broker = broker_daemon(folder, "broker-a", namesrv.addr)
        stack.enter_context(serving(namesrv, broker))
        with Admin(namesrv.addr) as admin:
            for topic in peer.topics:
                name, _, kind = topic.partition("=")
                admin.create_topic(broker.addr, TopicConfig(name, attributes={"+message.type": kind} if kind else {}))
        proxy = proxy_daemon(folder, "proxy", namesrv.addr) if peer.needs_proxy else None
        if proxy is not None:
            stack.enter_context(serving(proxy))
        redis_port = stack.enter_context(redis(folder)) if peer.needs_redis else 0
        yield Servers(namesrv.addr, proxy.addr if proxy else "", redis_port)


@contextmanager
def redis(folder: Path) -> Iterator[int]:
    """The port of a Redis of its own."""
    port = reserve()
    command = [
        required("redis-server", "redis-server"),
        "--port",
        str(port.number),
        "--bind",
        HOST,
        "--save",
        "",
        "--dir",
        str(folder),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield port.number
    finally:
        process.kill()
        process.wait()


def run_peer(name: str, more: Sequence[str], folder: Path) -> bool:
    """Print the table of a peer; False if a case failed that should pass."""
    peer, report, log = PEERS[name], folder / "report.xml", folder / "pytest.log"
    known = known_of(KNOWN.read_text(encoding="utf-8"), name)
    if peer.needs_redis:
        required("redis-server", "redis-server")  # not only after the install
    python = install(peer, folder)
    with servers_of(peer, folder) as servers:
        path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # cases start programs of the package
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(folder), **peer.environment(servers)}
        command = [
            str(python),
            "-m",
            "pytest",
            "-v",
            "-p",
            "no:cacheprovider",
            f"--timeout={CASE_TIMEOUT_S}",
            f"--junitxml={report}",
            *peer.arguments,
            *more,
        ]
        exit_code = run(f"running {peer.tests}", command, folder, environment, log)
    if not report.exists():
        raise PeerFailed(f"pytest ended with exit code {exit_code} and no report:\n{end_of(log)}")
    summary = summary_of(cases_of(report.read_text(encoding="utf-8")), known)
    print(f"\n{peer.package} {peer.version}: {peer.tests}\n{table(summary)}")
    return summary.is_good


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("pytest", nargs="*", metavar="ARGUMENT", help="for pytest, after --: -- -k chord")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    watched = Watched()
    try:
        is_good = run_peer(options.peer, options.pytest, watched.folder)
    except (PeerFailed, DaemonFailed) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing of it is left")
    finally:
        watched.end(now=True)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
