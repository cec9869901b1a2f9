"""Forked daemons behave as executed ones."""

import os
import select
import signal
from pathlib import Path

import pytest

from scripts.daemons import Daemon, DaemonFailed, broker_daemon, execute, namesrv_daemon, wait_ready
from tests.support.warm_daemons import Forked, WarmDaemons

WAYS = {"executed": execute, "forked": Daemon.launch}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Daemon, "launch", WAYS[request.param])
    return str(request.param)


def test_a_daemon_serves_in_a_session_of_its_own_until_sigterm(way: str, tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    namesrv.start()
    try:
        wait_ready([namesrv])
        assert isinstance(namesrv._process, Forked) == (way == "forked")
        assert namesrv.runs
        assert namesrv.exit_code is None
        assert os.getsid(namesrv.pid) == namesrv.pid
        namesrv.terminate()
        namesrv.wait_stopped()
        assert namesrv.exit_code == 0
    finally:
        if namesrv.runs:
            namesrv.kill()


def test_a_killed_daemon_has_the_exit_code_of_its_signal(way: str, tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    namesrv.start()
    namesrv.kill()
    assert namesrv.exit_code == -signal.SIGKILL


def test_what_is_wrong_with_the_environment_is_in_the_log(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_INIT_AUTHENTICATION_USER", "no JSON")
    broker = broker_daemon(tmp_path, "broker-a", "127.0.0.1:1")
    broker.start()
    with pytest.raises(DaemonFailed, match=r"exit code 1:\n(.|\n)*initAuthenticationUser"):
        broker.wait_stopped()


def test_a_forked_daemon_ends_with_the_process_of_the_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    warm = WarmDaemons()
    monkeypatch.setattr(Daemon, "launch", warm.start)
    namesrv = namesrv_daemon(tmp_path)
    namesrv.start()
    ended = os.pidfd_open(namesrv.pid)
    warm.close()
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)
