"""docs/how/architecture.md names the functions through which a send, a pop and the end of a transaction pass.

Those are on the call stack when a record is appended, messages are read, or an answer begins to wait or is sent.
"""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.command import Command
from tests.broker.running import running, send_request

ROOT = Path(__file__).parents[2]
#: The last function of each stack that counts, and where stacks begin: at a frame from the socket, or at an fsync.
LAST = ("MessageStore.put", "read_queue", "LogWaits.wait", "Channel.reply")
FIRST = ("Server._dispatch", "LogWaits.advance")
POP = {
    "consumerGroup": "g", "topic": "t", "queueId": 0, "maxMsgNums": 1, "invisibleTime": 60_000, "pollTime": 0,
    "bornTime": 0, "initMode": 0,
}  # fmt: skip


class Stacks:
    """Notes the functions while it is the profiler."""

    def __init__(self) -> None:
        self.functions: dict[str, None] = {}

    def __call__(self, frame: FrameType | None, event: str, argument: Any) -> None:
        if event != "call" or frame is None or frame.f_code.co_qualname not in LAST:
            return
        stack: list[str] = []
        while frame is not None and (not stack or stack[-1] not in FIRST):
            if frame.f_code.co_filename.startswith((f"{ROOT}/skylark/broker", f"{ROOT}/skylark/remoting")):
                stack.append(frame.f_code.co_qualname.partition(".<locals>")[0])
            frame = frame.f_back
        if stack[-1] in FIRST:
            self.functions.update(dict.fromkeys(reversed(stack)))


async def end_request(client: RemotingClient, addr: str) -> Command:
    """37 for a half that was sent just now."""
    properties = "TRAN_MSG\x01true\x02PGROUP\x01g\x02"
    half = (await client.invoke(addr, send_request("t", b"x", properties=properties, f=4))).ext or {}
    fields = {"tranStateTableOffset": half["queueOffset"], "commitLogOffset": int(half["msgId"][16:], 16)}
    return Command(37, {"producerGroup": "g", "commitOrRollback": 8, "fromTransactionCheck": False, **fields})


@pytest.mark.parametrize(("what", "most"), [("send", 9), ("pop", 10), ("end", 10)])
async def test_a_request_passes_the_functions_that_its_way_names(what: str, most: int) -> None:
    stacks = Stacks()
    async with running(flush_disk_type="SYNC_FLUSH") as (client, addr):
        for earlier in (send_request("t", b"x"), send_request("t", b"y"), Command(200050, dict(POP))):
            await client.invoke(addr, earlier)
        requests = {"send": send_request("t", b"x"), "pop": Command(200050, dict(POP))}
        request = requests.get(what) or await end_request(client, addr)
        sys.setprofile(stacks)
        answer = await client.invoke(addr, request)
        sys.setprofile(None)
    assert answer.code == 0, answer.remark
    named = set(re.findall(r"`([\w.]+)`", (ROOT / "docs/how/architecture.md").read_text()))
    names = {name for each in named for name in (each, each.rpartition(".")[2])}
    assert [each for each in stacks.functions if each.rpartition(".")[2] not in names] == []
    assert len(stacks.functions) <= most
