import logging
import os
from pathlib import Path

import trio

from skylark.mqcommon.options.conf_file import load_conf
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.dialect import loads
from skylark.remoting.protocol.requests.routes import (
    DELETE_KV_CONFIG,
    GET_KV_CONFIG,
    GET_KVLIST_BY_NAMESPACE,
    GET_NAMESRV_CONFIG,
    GET_ROUTEINFO_BY_TOPIC,
    PUT_KV_CONFIG,
    UPDATE_NAMESRV_CONFIG,
)
from tests.namesrv.peer import Peer, Served, serve

ORDER = "ORDER_TOPIC_CONFIG"


async def put(peer: Peer, namespace: str, key: str, value: str) -> None:
    ext = {"namespace": namespace, "key": key, "value": value}
    assert (await peer.ask(PUT_KV_CONFIG.code, ext)).code == 0


async def get(peer: Peer, namespace: str, key: str) -> str | None:
    answer = await peer.ask(GET_KV_CONFIG.code, {"namespace": namespace, "key": key})
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        assert answer.remark == f"No config item, Namespace: {namespace} Key: {key}"
        return None
    assert answer.code == 0
    assert answer.ext is not None
    value: str = answer.ext["value"]
    return value


async def test_kv_config_survives_a_restart(nursery: trio.Nursery, tmp_path: Path) -> None:
    peer = await (await serve(nursery, tmp_path)).peer()
    assert await get(peer, "ns", "k") is None
    await put(peer, "ns", "k", "v")
    await put(peer, "ns", "k2", "v2")
    answer = await peer.ask(DELETE_KV_CONFIG.code, {"namespace": "ns", "key": "k2"})
    assert (answer.code, answer.ext) == (0, None)
    assert await get(peer, "ns", "k") == "v"
    again = await (await serve(nursery, tmp_path)).peer()
    assert await get(again, "ns", "k") == "v"
    assert await get(again, "ns", "k2") is None
    await peer.stream.aclose()
    await again.stream.aclose()


async def test_a_namespace_is_listed(peer: Peer) -> None:
    answer = await peer.ask(GET_KVLIST_BY_NAMESPACE.code, {"namespace": "ns"})
    assert (answer.code, answer.remark) == (ResponseCode.QUERY_NOT_FOUND, "No config item, Namespace: ns")
    await put(peer, "ns", "k", "v")
    answer = await peer.ask(GET_KVLIST_BY_NAMESPACE.code, {"namespace": "ns"})
    assert loads(answer.body) == {"table": {"k": "v"}}


async def test_a_change_that_cannot_be_written_is_refused(peer: Peer, tmp_path: Path) -> None:
    await put(peer, "ns", "k", "v")
    (tmp_path / "kvConfig.json.lock").mkdir()  # whoever changes the file must have a file here
    for code, value in ((PUT_KV_CONFIG.code, "w"), (DELETE_KV_CONFIG.code, "")):
        answer = await peer.ask(code, {"namespace": "ns", "key": "k", "value": value})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert answer.remark.startswith("not changed, the file could not be written: ")
        assert await get(peer, "ns", "k") == "v"


async def test_order_conf_reaches_brokers_and_clients(nursery: trio.Nursery, tmp_path: Path) -> None:
    served = await serve(nursery, tmp_path, order_message_enable=True)
    peer = await served.peer()
    await put(peer, ORDER, "t1", "broker-a:4")
    answer = await peer.register()
    assert loads(answer.body) == {"table": {"t1": "broker-a:4"}}
    for topic, conf in (("t1", "broker-a:4"), ("t2", None)):
        answer = await peer.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": topic})
        assert loads(answer.body).get("orderTopicConf") == conf
    await peer.stream.aclose()


async def test_order_conf_is_not_sent_unless_asked_for(nursery: trio.Nursery, tmp_path: Path) -> None:
    served = await serve(nursery, tmp_path, return_order_topic_config_to_broker=False)
    peer = await served.peer()
    await put(peer, ORDER, "t1", "broker-a:4")
    assert (await peer.register()).body == b""
    answer = await peer.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": "t1"})
    assert "orderTopicConf" not in loads(answer.body)
    await peer.stream.aclose()


async def test_the_config_is_shown(served: Served, peer: Peer) -> None:
    answer = await peer.ask(GET_NAMESRV_CONFIG.code)
    lines = answer.body.decode().splitlines()
    assert "scanNotActiveBrokerInterval=5000" in lines
    assert lines == sorted(lines)


async def test_the_config_changes_at_once_and_in_the_conf_file(nursery: trio.Nursery, tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("# mine\nlistenPort=1\n")
    served = await serve(nursery, tmp_path, config_store_path=str(conf))
    peer = await served.peer()
    answer = await peer.ask(UPDATE_NAMESRV_CONFIG.code, body=b"enableTopicList=false\nwaitSecondsForService=7\n")
    assert (answer.code, answer.remark) == (0, None)
    assert (await peer.ask(224, {"cluster": "c"})).remark == "disable"
    assert conf.read_text() == "# mine\nlistenPort=1\nenableTopicList=false\nwaitSecondsForService=7\n"
    assert load_conf(NamesrvOptions, conf).wait_seconds_for_service == 7
    await peer.stream.aclose()


async def test_without_a_conf_file_a_change_lasts_until_the_stop(served: Served, peer: Peer, tmp_path: Path) -> None:
    assert (await peer.ask(UPDATE_NAMESRV_CONFIG.code, body=b"enableTopicList=false")).code == 0
    assert (await peer.ask(224, {"cluster": "c"})).remark == "disable"
    assert os.listdir(tmp_path) == []


async def test_changes_of_the_config_that_are_refused(served: Served, peer: Peer) -> None:
    before = served.namesrv.state.options
    for body, code, remark in (
        (b"kvConfigPath=/x", 16, "Can not update config in black list."),
        (b"enableTopicList=false\nconfigBlackList=", 16, "Can not update config in black list."),
        (b"\xff\xff", 1, "string2Properties error"),
        (b"a=\\u12", 1, "string2Properties error"),
        (b"enableTopikList=false", 1, "enableTopikList: unknown key; did you mean enableTopicList?"),
        (b"listenPort=1", 1, "listenPort: cannot change while running; set it in the conf file and restart"),
        (b"enableTopicList=" + b"x" * 100_000, 1,
         "the options have 100016 bytes in 0 lines, at most 65536 in 1000 lines are taken"),
        (b"enableTopicList=perhaps", 1, "enableTopicList: 'perhaps' is not a boolean; give true or false"),
    ):  # fmt: skip
        answer = await peer.ask(UPDATE_NAMESRV_CONFIG.code, body=body)
        assert (answer.code, answer.remark) == (code, remark)
    assert served.namesrv.state.options == before
    assert (await peer.ask(UPDATE_NAMESRV_CONFIG.code)).code == 0


async def test_a_config_that_cannot_be_kept_does_not_change(nursery: trio.Nursery, tmp_path: Path) -> None:
    served = await serve(nursery, tmp_path, config_store_path=str(tmp_path / "absent" / "namesrv.conf"))
    peer = await served.peer()
    answer = await peer.ask(UPDATE_NAMESRV_CONFIG.code, body=b"enableTopicList=false")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert served.namesrv.state.options.enable_topic_list
    await peer.stream.aclose()


async def test_levels_of_loggers_change_at_once(peer: Peer) -> None:
    logger = logging.getLogger("skylark_test_config_handlers")
    for text, level in ((f"{logger.name}=ERROR", logging.ERROR), ("", logging.NOTSET)):
        answer = await peer.ask(UPDATE_NAMESRV_CONFIG.code, body=f"logLevels={text}".encode())
        assert (answer.code, logger.level) == (0, level)
