"""A Controller may listen elsewhere than at the address that others know it by."""

from pathlib import Path

import trio

from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import OsFiles
from skylark.namesrv.controller.controller import Controller, Holder
from skylark.namesrv.controller.options import ControllerDaemonOptions
from skylark.remoting.net.sockets import HeldPort
from skylark.remoting.net.tls.options import DaemonTls
from tests.support.waiting import until


async def test_a_controller_whose_own_name_is_not_known_yet_starts(tmp_path: Path) -> None:
    port = HeldPort("127.0.0.1", 0)
    name = f"controller-0.invalid:{port.port}"
    options = ControllerDaemonOptions(
        controller_d_leger_peers=f"n0-{name}",
        controller_d_leger_self_id="n0",
        controller_store_path=str(tmp_path),
        bind_address="127.0.0.1",
    )
    controller = Controller(Holder(options, OsFiles()), SystemClock())
    async with trio.open_nursery() as nursery:
        address = await nursery.start(controller.run, DaemonTls())
        assert address == f"127.0.0.1:{port.port}"
        view = controller.view
        assert view is not None
        await until(lambda: view.group.is_leader, "the Controller leads")
        assert view.group.leader_addr == name, "others are told the name"
        await controller.stop()
        nursery.cancel_scope.cancel()
    port.release()
