"""Which Controller is asked, and a change of the SyncStateSet that no Controller has answered."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from skylark.broker.replication.autoswitch import controllers as module
from skylark.broker.replication.autoswitch.controllers import Controllers
from skylark.broker.replication.autoswitch.leading import Leading
from skylark.broker.writing.elected import Elected
from skylark.mqcommon.errors import ConnectFailed, NoController, RequestTimeout
from skylark.remoting.protocol.requests.controller import GetMetaDataResponseHeader, SyncStateSet

A, B, C = "a:1", "b:1", "c:1"


@pytest.mark.parametrize(
    ("failed", "answers", "found"),
    [
        ("", {A: False, B: True, C: None}, B),
        (A, {A: True, B: True}, B),
        (A, {A: True, B: None}, A),
        (A, {A: True, B: C}, C),
        (A, {B: A}, A),
        ("", {B: C}, C),
        ("", {A: None, B: False}, ""),
    ],
)
async def test_a_controller_that_failed_as_the_leader_is_asked_only_when_no_other_leads(
    failed: str, answers: dict[str, bool | str | None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``answers``: whether a Controller leads, whom it names, or None for no answer."""

    async def call(addr: str, what: object) -> Any:
        await trio.lowlevel.checkpoint()
        answer = answers.get(addr)
        if answer is None:
            raise ConnectFailed(addr, "refused")
        named = answer if isinstance(answer, str) else None
        header = GetMetaDataResponseHeader(controller_leader_address=named, is_leader=answer is True)
        return SimpleNamespace(header=lambda: header)

    monkeypatch.setattr(module, "Remote", lambda client, addr, timeout_ms: addr)
    monkeypatch.setattr(module, "call", call)
    client: Any = None
    group = Controllers(client, (A, B, C))
    group.leads(failed)
    group.lost(failed)
    if found:
        assert await group._find() == group.leader == found
    else:
        with pytest.raises(NoController):
            await group._find()


async def test_a_change_of_the_set_is_asked_for_again_until_it_is_answered(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[list[int]] = []
    done = trio.Event()

    async def ask(wanted: SyncStateSet) -> SyncStateSet:
        asked.append(wanted.sync_state_set)
        if len(asked) < 3:
            raise RequestTimeout(A, 1001, 3_000)
        done.set()
        return SyncStateSet(wanted.sync_state_set, wanted.sync_state_set_epoch + 1)

    unused: Any = None
    leading = Leading(Elected(trio.current_time), lambda: 0, 5.0, ask, unused, unused)
    nursery.start_soon(leading.run)
    leading.begin(1, 1, [1, 2], 5)
    await done.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert asked == [[1]] * 3
    assert caplog.text.count("no decision on the SyncStateSet 1, asked again") == 2
    await trio.sleep(60)
    assert len(asked) == 3, "the set is as it should be"
