"""mqadmin's commands about Controllers, against Controllers on loopback."""

import orjson
import pytest
import trio
from click.testing import CliRunner, Result

from skylark.mqadmin.cli import mqadmin
from tests.namesrv.controller.controllers import NAME, StandIn, open_controllers, open_stand_in


async def run(*arguments: str) -> Result:
    return await trio.to_thread.run_sync(lambda: CliRunner().invoke(mqadmin, arguments))


async def run_json(*arguments: str) -> object:
    result = await run(*arguments, "--output", "json")
    assert result.exit_code == 0, result.stderr
    return orjson.loads(result.stdout)


async def make_set(at: str, first: StandIn, second: StandIn) -> None:
    await first.join(at)
    await first.elect(at, 1)
    await second.join(at)
    await first.alter(at, [1, 2], 1)


async def test_sets_are_shown_changed_and_cleaned() -> None:
    async with open_controllers("n0") as controllers, open_stand_in() as first, open_stand_in() as second:
        at = await controllers.leader_addr()
        await make_set(at, first, second)
        shown = (await run("getSyncStateSet", "-a", at, "-b", NAME)).stdout
        assert f"#brokerName\t{NAME}\n#MasterBrokerId\t1\n#MasterAddr\t{first.addr}\n#MasterEpoch\t1\n" in shown
        assert f"InSyncReplica:\tReplicaIdentity{{brokerName='{NAME}', brokerId=2," in shown
        elected = (await run("electMaster", "-a", at, "-b", "2", "--brokerName", NAME)).stdout
        assert elected.splitlines() == [
            f"#BrokerName\t{NAME}", f"#BrokerMasterAddr\t{second.addr}", "#MasterEpoch\t2", "#SyncStateSetEpoch\t3",
        ]  # fmt: skip
        refused = await run("cleanBrokerMetadata", "-a", at, "-bn", NAME, "-b", "1")
        assert "is still alive, clean up failure" in refused.stderr
        cleaned = await run_json("cleanBrokerMetadata", "-a", at, "-bn", NAME, "-b", "1", "-l")
        assert cleaned == {"brokerIds": [1], "brokerName": NAME, "ok": True}
        unknown = await run("getSyncStateSet", "-a", at, "-b", "broker-x")
        assert (unknown.exit_code, "the Controllers know no set broker-x" in unknown.stderr) == (1, True)


async def test_controllers_are_shown_and_changed() -> None:
    async with open_controllers("n0") as controllers:
        at = await controllers.leader_addr()
        told = (await run("getControllerMetaData", "-a", at)).stdout
        lines = ["", "#ControllerGroup\tgroup1", "#ControllerLeaderId\tn0", f"#ControllerLeaderAddress\t{at}"]
        assert told.splitlines() == [*lines, f"#Peer:\tn0:{at}"]
        changed = await run("updateControllerConfig", "-a", at, "-k", "brokerHeartbeatTimeout", "-v", "4000")
        assert changed.stdout == f"update controller config success![{at}]\n"
        assert "4000" in (await run("getControllerConfig", "-a", at)).stdout
        members = await run_json("controllerMembers", "-a", at)
        assert members == {"leader": "n0", "learners": {}, "voters": {"n0": at}}
        refused = await run("controllerMembers", "-a", at, "--remove", "n0")
        assert "n0 is the only voter: add another one first" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["controllerMembers", "-a", "127.0.0.1:1", "--remove", "a", "--transfer", "b"], "give only one of --add"),
        (["cleanBrokerMetadata", "-a", "127.0.0.1:1", "-bn", "x", "-b", "one"], "-b one is not a list of ids"),
        (["electMaster", "-a", "127.0.0.1:1", "-b", "1", "--brokerName", "x"], "no leader of the Controllers was"),
    ],
)
async def test_mistakes_are_explained(arguments: list[str], error: str) -> None:
    result = await run(*arguments)
    assert (result.exit_code, error in result.stderr) == (1, True)
