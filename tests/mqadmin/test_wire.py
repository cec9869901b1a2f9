"""mqadmin over real sockets: the SDK's own clients, a NameServer of ours, brokers with tables in memory."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from skylark.mqadmin.cli import mqadmin
from tests.namesrv.peer import Served, serve
from tests.sdk.fakes import FakeBroker, FakeNamesrv, serving


@pytest.fixture
async def served(nursery: trio.Nursery, tmp_path: Path) -> Served:
    return await serve(nursery, tmp_path)


async def run(namesrv: str, *arguments: str) -> Result:
    """mqadmin has an event loop of its own, so it runs in a thread."""
    call = partial(CliRunner().invoke, mqadmin, [*arguments, "-n", namesrv], prog_name="mqadmin")
    return await trio.to_thread.run_sync(call)


async def output(namesrv: str, *arguments: str) -> Any:
    result = await run(namesrv, *arguments, "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


async def test_what_a_nameserver_knows(served: Served) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:10911", "t1", "t2")
    assert (await run(served.address, "topicList")).stdout == "t1\nt2\n"
    route = await output(served.address, "topicRoute", "-t", "t1")
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:10911"}
    assert (await run(served.address, "topicClusterList", "-t", "t1")).stdout == "DefaultCluster\n"
    await peer.stream.aclose()


async def test_write_permission_of_a_broker(served: Served) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:10911", "t1", "t2")
    wiped = await run(served.address, "wipeWritePerm", "-b", "broker-a")
    assert wiped.stdout == f"wipe write perm of broker[broker-a] in name server[{served.address}] OK, 2\n"
    assert (await output(served.address, "topicRoute", "-t", "t1"))["queueDatas"][0]["perm"] == 4
    assert "OK, 2" in (await run(served.address, "addWritePerm", "-b", "broker-a")).stdout
    assert (await output(served.address, "topicRoute", "-t", "t1"))["queueDatas"][0]["perm"] == 6
    await peer.stream.aclose()


async def test_options_and_values_of_a_nameserver(served: Served) -> None:
    [shown] = await output(served.address, "getNamesrvConfig")
    assert shown["namesrvAddr"] == served.address
    assert "listenPort" in shown["config"]
    assert (await run(served.address, "updateKvConfig", "-s", "n", "-k", "k", "-v", "v")).exit_code == 0
    assert (await run(served.address, "deleteKvConfig", "-s", "n", "-k", "k")).exit_code == 0


async def test_an_option_that_nobody_knows(served: Served) -> None:
    result = await run(served.address, "updateNamesrvConfig", "-k", "noSuchOption", "-v", "1")
    assert result.exit_code == 1
    assert f"{served.address} refused" in result.stderr
    assert result.stderr.count("\n") == 1


async def test_one_of_two_nameservers_is_away(served: Served) -> None:
    result = await run(f"{served.address};127.0.0.1:1", "updateKvConfig", "-s", "n", "-k", "k", "-v", "v")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot connect to 127.0.0.1:1" in result.stderr


async def test_messages_of_a_broker() -> None:
    async with serving(FakeBroker()) as broker, serving(FakeNamesrv()) as namesrv:
        broker.put("t", 1, b"one", b"two", TAGS="A")
        namesrv.add("t", broker)
        result = await run(namesrv.addr, "consumeMessage", "-t", "t")
        assert result.exit_code == 0, result.stderr
        assert [line.rsplit("BODY: ")[-1] for line in result.stdout.splitlines() if "BODY" in line] == ["one", "two"]
        assert broker.asked(34) == []  # no heartbeat: reading with a tool makes no group
        missing = await run(namesrv.addr, "queryMsgByOffset", "-t", "t", "-b", "broker-a", "-i", "1", "-o", "2")
        assert "has no message at offset 2; it has 0 to 1" in missing.stderr


async def test_a_broker_that_does_not_know_the_request() -> None:
    async with serving(FakeBroker()) as broker, serving(FakeNamesrv()) as namesrv:
        namesrv.add("t", broker)
        result = await run(namesrv.addr, "brokerStatus", "-b", broker.addr)
        assert result.exit_code == 1
        assert f"{broker.addr} refused with code 3" in result.stderr
        assert "check that the address is the address of the server that this command asks" in result.stderr
