"""Junk of every type in every field of every request: a code, no traceback, and the connection serves on."""

from pathlib import Path
from typing import Any

import pytest
import trio

from skylark.namesrv.config_handlers import build_slow_handlers
from skylark.namesrv.handlers import build_handlers
from skylark.remoting.protocol.command import CBOR, JSON
from tests.namesrv.peer import serve
from tests.support.junk import Junk

GOOD: dict[str, Any] = {
    "namespace": "ns", "key": "k", "value": "v", "brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911",
    "clusterName": "C", "cluster": "C", "haServerAddr": "127.0.0.1:10912", "brokerId": "0", "topic": "T",
}  # fmt: skip
VERSION = {"timestamp": 1, "counter": 2, "stateVersion": 0}
TOPIC = {
    "topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0, "order": False, "attributes": {"a": "b"},
}  # fmt: skip
BODIES: dict[int, Any] = {
    103: {
        "topicConfigSerializeWrapper": {"dataVersion": VERSION, "topicConfigTable": {"T": TOPIC, "T2": TOPIC}},
        "filterServerList": ["127.0.0.1:1"],
    },
    217: {"queueDatas": [{"brokerName": "broker-a", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}]},
    318: b"orderMessageEnable=true\n",
    322: VERSION,
}  # fmt: skip


@pytest.mark.parametrize("codec", [JSON, CBOR])
async def test_every_request_answers_junk_with_a_code(
    codec: int, nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = await serve(nursery, tmp_path)
    state = served.namesrv.state
    junk = Junk((await served.peer()).stream, GOOD, BODIES, monkeypatch, caplog)
    codes = sorted({**build_handlers(state), **build_slow_handlers(state), 103: None, 104: None})
    thrown = {code: await junk.throw(code, codec) for code in codes}
    assert sum(thrown.values()) > 700
