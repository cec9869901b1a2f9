"""The command ``controller``: its health page."""

import logging
import re
from functools import partial
from pathlib import Path

import pytest
import trio

from skylark.namesrv.controller.cli import _serve
from skylark.namesrv.controller.options import ControllerDaemonOptions
from skylark.remoting.net.sockets import HeldPort
from tests.support.scrape import get
from tests.support.waiting import until


async def test_a_controller_has_a_health_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    port = HeldPort("127.0.0.1", 0, "listenPort")
    options = ControllerDaemonOptions(
        controller_d_leger_peers=f"n0-127.0.0.1:{port.port}",
        controller_d_leger_self_id="n0",
        controller_store_path=str(tmp_path),
        health_port=0,
    )
    stopping, ready = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(_serve, options, stopping, lambda text: ready.set()))
        await until(lambda: "health at" in caplog.text, "the page")
        found = re.search(r"health at http://(\S+)/healthz, /readyz", caplog.text)
        assert found
        await ready.wait()
        assert await get(found[1], "/healthz") == (200, "ok\n")
        while (page := await get(found[1], "/readyz")) != (200, "ok\n"):
            assert page == (503, "the group has no leader\n")
        stopping.set()
    port.release()
