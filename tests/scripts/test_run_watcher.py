"""A run of tests leaves neither processes nor files behind, however it ends."""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import termios
from array import array
from pathlib import Path

import pytest

from scripts import run_watcher
from scripts.daemons import ROOT
from scripts.run_watcher import remove
from tests.support.waiting import until_true

# A test that tells the numbers of its processes through a pipe and then hangs: one is forked from the process of warm
# daemons, one executed in a session of its own, and one forked from the test.
TEST = """
import json, os, select, subprocess, sys
from scripts.daemons import namesrv_daemon, wait_ready

def test_it(tmp_path):
    namesrv = namesrv_daemon(tmp_path)
    namesrv.start()
    wait_ready([namesrv])
    hang = "import select; select.select([], [], [])"
    executed = subprocess.Popen([sys.executable, "-c", hang], start_new_session=True)
    forked = os.fork()
    if forked == 0:
        os.setsid()
        select.select([], [], [])
    with open({pipe!r}, "w") as pipe:
        json.dump([os.getpid(), namesrv.pid, executed.pid, forked], pipe)
    select.select([], [], [])
"""


@pytest.mark.parametrize(("sent", "processes"), [(signal.SIGKILL, "1"), (signal.SIGTERM, "0"), (signal.SIGINT, "0")])
def test_all_processes_end_with_the_run_and_its_files_are_gone(
    tmp_path: Path, sent: signal.Signals, processes: str
) -> None:
    pipe, temporary, test = tmp_path / "pipe", tmp_path / "t", tmp_path / "test_it.py"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    temporary.mkdir()
    test.write_text(TEST.format(pipe=str(pipe)))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:xdist",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-n",
        processes,
        str(test),
    ]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as run:
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        assert poll.poll(60_000), "the test tells its processes"
        ended = {pid: os.pidfd_open(pid) for pid in json.loads(os.read(reading, 4096))}
        os.close(reading)
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        # Among them the watcher, which ends last.
        ended |= {int(pid): os.pidfd_open(int(pid)) for pid in children}
        assert len(os.listdir(temporary)) == 1
        run.send_signal(sent)
    for pid, handle in ended.items():
        assert select.select([handle], [], [], 60)[0], pid
        os.close(handle)
    assert os.listdir(temporary) == []


def test_a_fork_that_tells_its_number_after_the_end_of_the_run_ends_too(tmp_path: Path) -> None:
    """A busy machine may let a process run so late after its fork."""
    folder = tmp_path / "run"
    folder.mkdir()
    forked = subprocess.Popen([sys.executable, "-c", "import select; select.select([], [], [])"])
    watcher = subprocess.Popen(
        [sys.executable, "-IS", run_watcher.__file__, str(os.getpid()), "_NO_SUCH_MARK", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert watcher.stdin is not None
    watcher.stdin.write(run_watcher.END_NOW + b"\n")
    pipe = watcher.stdin.fileno()
    until_true(lambda: not _unread(pipe))
    left_behind, _ = watcher.communicate(b"%d\n" % forked.pid)
    try:
        assert left_behind.startswith(b"%d: " % forked.pid) and not folder.exists()
    finally:
        forked.kill()
        forked.wait()


def _unread(pipe: int) -> int:
    """How many bytes are in the pipe."""
    amount = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, amount)
    return amount[0]


def test_what_a_test_has_mounted_goes_with_the_folder(tmp_path: Path) -> None:
    """A run that is interrupted does not come to its umount."""
    folder = tmp_path / "run"
    outer = folder / "disk"
    outer.mkdir(parents=True)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(outer)], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    inner = outer / "another"
    inner.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(inner)], check=True)
    (inner / "file").write_text("left")
    remove(str(folder))
    assert not folder.exists() and str(folder) not in Path("/proc/mounts").read_text()
