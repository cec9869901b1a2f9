"""The tasks of the elections while the Controller stops."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import trio
import trio.testing

from skylark.mqcommon.clock import SystemClock
from skylark.namesrv.controller.elections import Elections
from skylark.namesrv.controller.options import ControllerOptions
from skylark.namesrv.controller.replicas import BrokerSet, Replicas
from skylark.namesrv.controller.view import View
from skylark.remoting.net.transport import Transport
from skylark.remoting.raft.group import Group


class LedAtTheEnd(trio.abc.Instrument):
    """A group that tells of a new leader when the last task of a nursery has ended, before the nursery's block ends."""

    def __init__(self) -> None:
        self.told = 0
        self.errors: list[Exception] = []
        self._observer: Callable[[bool], None] | None = None

    def on_leadership(self, observer: Callable[[bool], None]) -> None:
        self._observer = observer

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        assert self._observer is not None
        if task.parent_nursery is None or task.parent_nursery.child_tasks:
            return
        self.told += 1
        try:
            self._observer(True)
        except RuntimeError as error:  # trio would only log the error of an instrument
            self.errors.append(error)


async def no_connection(host: str, port: int) -> Transport:
    raise OSError("nobody listens")


def nobody_is_told(elected: BrokerSet) -> None:
    raise AssertionError(f"{elected.name}: no broker has registered")


async def test_a_leader_that_is_told_while_the_controller_stops_starts_no_task_in_a_closed_nursery() -> None:
    group, holder = LedAtTheEnd(), SimpleNamespace(options=ControllerOptions())
    view = View(holder, cast(Group, group), Replicas(), SystemClock())
    elections = Elections(view, no_connection, nobody_is_told)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(elections.run)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(group)
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(group)
    assert group.told >= 2, "after a task of the elections, and after the elections"
    assert group.errors == []
