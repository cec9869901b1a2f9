"""scripts/quickstart --console: from nothing to the answer why a group lags."""

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import trio

from scripts.daemons import ROOT
from tests.support.waiting import DEADLINE_S, until


def test_the_quickstart_shows_why_a_group_lags(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "scripts.demo", "--console", "--console-port", "0", "--namesrv-ports", "0,0",
        "--broker-ports", "0,0", "--dir", str(tmp_path),
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        try:
            address = next(line.split()[-1] for line in run.stdout if "the console:" in line)

            async def ask() -> None:
                # Without TLS no certificates of authorities have to be loaded.
                async with httpx.AsyncClient(base_url=address, timeout=60, verify=False) as client:

                    async def says_why() -> bool:
                        try:
                            found = (await client.get("/api/groups/shop")).json()
                        except httpx.ConnectError:  # the console does not listen yet
                            return False
                        return "No consumer is connected." in found.get("reasons", ())

                    await until(says_why, "the console says why the group lags")

            trio.run(ask)
            run.send_signal(signal.SIGINT)
            assert "everything is stopped" in run.stdout.read()
            assert run.wait(DEADLINE_S) == 0
        finally:
            if run.poll() is None:
                run.kill()
