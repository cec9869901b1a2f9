"""Groups of nodes on loopback: they begin, write, read, fail, and come back with and without their disks."""

from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from skylark.mqcommon.raft.errors import ChangeRefused, NotLeader
from skylark.remoting.protocol.requests.raft import RAFT_MESSAGES, RaftMessagesHeader
from tests.remoting.raft.nodes import GROUP, TIMEOUT_MS, RunningNode, open_nodes
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until


async def test_three_nodes_write_and_read() -> None:
    async with open_nodes("n0", "n1", "n2") as nodes:
        await nodes.start("n0", "n1", "n2")
        assert await nodes.write("a") == 1

        async def read(leader: RunningNode) -> list[str]:
            await leader.node.read(TIMEOUT_MS)
            return leader.texts.texts

        assert await nodes.ask_leader(read) == ["a"]
        await nodes.agree(["a"])


async def test_a_follower_names_the_leader() -> None:
    async with open_nodes("n0", "n1", "n2") as nodes:
        await nodes.start("n0", "n1", "n2")
        await nodes.write("a")
        followers = [each.node for each in nodes.running.values() if not each.node.is_leader]
        await until(lambda: bool(followers[0].leader), "a leader is known")
        with pytest.raises(NotLeader, match=f"ask {followers[0].leader}"):
            await followers[0].propose(b"b", TIMEOUT_MS)
        assert followers[0].leader_addr == nodes.peers[followers[0].leader]


async def test_a_new_group_waits_for_all_of_its_nodes() -> None:
    async with open_nodes("n0", "n1", "n2") as nodes:
        await nodes.start("n0", "n1")
        first = nodes.running["n0"].node
        assert (first.term, first.members.voters) == (0, {})
        await nodes.start("n2")
        await nodes.leader()
        assert set(first.members.voters) == {"n0", "n1", "n2"}


async def test_a_pause_of_the_machine_changes_no_leader() -> None:
    async with open_nodes("n0", "n1", "n2") as nodes:
        await nodes.start("n0", "n1", "n2")
        await nodes.write("0")
        leader = (await nodes.leader()).name
        await nodes.agree(["0"])
        seen = {name: list(node.leaders) for name, node in nodes.running.items()}
        for number in range(1, 11):
            nodes.clock.pause(60_000)
            await nodes.write(str(number))
        await nodes.agree([str(number) for number in range(11)])
        assert {name: node.leaders for name, node in nodes.running.items()} == seen
        assert {leaders[-1] for leaders in seen.values()} == {leader}


async def test_another_node_takes_over() -> None:
    async with open_nodes("n0", "n1", "n2") as nodes:
        await nodes.start("n0", "n1", "n2")
        await nodes.write("a")
        first = (await nodes.leader()).name
        await nodes.stop(first)
        await nodes.write("b")
        await nodes.start(first)
        await nodes.agree(["a", "b"])


async def test_all_nodes_crash_and_remember() -> None:
    async with open_nodes("n0", "n1", "n2") as nodes:
        await nodes.start("n0", "n1", "n2")
        for text in "abc":
            await nodes.write(text)
        for name in nodes.peers:
            nodes.disks[name] = nodes.disks[name].killed()
            await nodes.stop(name)
        await nodes.start("n0", "n1", "n2")
        await nodes.agree(["a", "b", "c"])


async def test_a_node_without_its_disk_gets_another_id_and_becomes_a_voter_again() -> None:
    async with open_nodes("n0", "n1", "n2") as nodes:
        await nodes.start("n0", "n1", "n2")
        await nodes.write("a")
        await nodes.stop("n1")
        nodes.disks["n1"] = MemoryFiles()
        await nodes.start("n1")
        node = nodes.running["n1"].node
        await until(lambda: node.node in node.members.voters and "n1" not in node.members.voters, "n1 is replaced")
        assert node.node.startswith("n1.")
        await nodes.write("b")
        await nodes.agree(["a", "b"])
        assert len(node.members.voters) == 3


OUT = "takes no part in its group any more"


async def test_a_node_that_lacks_what_is_committed_says_so_once_and_takes_no_part(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody has put back an older copy of its directory, and nothing on its disk tells."""
    texts = ["a"]

    def sees_that_or_has_all(node: RunningNode) -> bool:
        return OUT in caplog.text or node.texts.texts == texts

    async with open_nodes("n0", "n1", "n2") as nodes:
        await nodes.start("n0", "n1", "n2")
        await nodes.write("a")
        # On a busy machine another node may lead meanwhile, which does not know what this one has acknowledged.
        while OUT not in caplog.text:
            await nodes.agree(texts)
            name = next(each.name for each in nodes.running.values() if not each.node.is_leader)
            await nodes.stop(name)
            disk = nodes.disks[name]
            copies = {path: disk.read(path) for path in disk.paths() if not path.endswith("/lock")}
            await nodes.start(name)
            texts.append(f"b{len(texts)}")
            await nodes.write(texts[-1])
            await nodes.agree(texts)
            await nodes.stop(name)
            for path, data in copies.items():
                disk.overwrite(path, data)
            await nodes.start(name)
            await until(partial(sees_that_or_has_all, nodes.running[name]), "it sees that, or has all again")
        term = nodes.running[name].node.term
        await nodes.write("c")
        others = [each for each in nodes.running.values() if each.name != name]
        await until(lambda: all(each.texts.texts == [*texts, "c"] for each in others), "the others go on")
        assert nodes.running[name].node.term == term and not nodes.running[name].texts.texts
        assert caplog.text.count(OUT) == 1


async def test_snapshots_make_the_log_short_and_bring_a_late_node_up() -> None:
    async with open_nodes("n0", "n1", "n2", snapshot_entries=10, kept_entries=2) as nodes:
        await nodes.start("n0", "n1", "n2")
        await nodes.write("t")
        await nodes.agree(["t"])
        await nodes.stop("n2")
        texts = ["t"] + [f"t{number}" for number in range(50)]
        for text in texts[1:]:
            await nodes.write(text)
        await nodes.start("n2")
        await nodes.agree(texts)
        for name in nodes.peers:
            await nodes.stop(name)
        await nodes.start("n0", "n1", "n2")
        await nodes.agree(texts)


async def test_the_leadership_is_handed_over() -> None:
    async with open_nodes("n0", "n1", "n2") as nodes:
        await nodes.start("n0", "n1", "n2")
        seen: list[bool] = []

        async def hand_over(leader: RunningNode) -> str:
            to = next(name for name in nodes.peers if name != leader.name)
            nodes.running[to].node.on_leadership(seen.append)
            await leader.node.transfer(to, TIMEOUT_MS)
            return to

        to = await nodes.ask_leader(hand_over)
        await until(lambda: True in seen, f"{to} leads")


async def test_many_proposals_share_an_fsync() -> None:
    async with open_nodes("n0") as nodes:
        await nodes.start("n0")
        leader = await nodes.leader()
        before = nodes.disks["n0"].calls["sync"]
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(leader.node.propose, b"%d" % number, TIMEOUT_MS)
        assert sorted(leader.texts.texts, key=int) == [str(number) for number in range(100)]
        assert nodes.disks["n0"].calls["sync"] - before < 50


async def test_a_node_that_the_conf_does_not_name_is_added_and_becomes_a_voter() -> None:
    async with open_nodes("n0", "n1", "n2") as nodes:
        everybody = dict(nodes.peers)
        del nodes.peers["n1"], nodes.peers["n2"]
        await nodes.start("n0")
        await nodes.write("a")
        nodes.peers = everybody
        await nodes.start("n2")
        newcomer = nodes.running["n2"].node
        await until(lambda: newcomer.node.startswith("n2."), "n2 has an id")

        async def added() -> bool:
            with suppress(ChangeRefused):  # n2 has its id some turns of the loop before it begins.
                assert await nodes.running["n0"].node.add(everybody["n2"], TIMEOUT_MS) == newcomer.node
                return True
            return False

        await until(added, "n2 is added")
        await until(lambda: newcomer.node in newcomer.members.voters, "n2 is a voter")
        await nodes.write("b")
        await nodes.agree(["a", "b"])


async def test_messages_that_cannot_be_read_are_said_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    async with open_nodes("n0") as nodes:
        await nodes.start("n0")
        await nodes.write("a")
        node = nodes.running["n0"].node
        assert node.problem == ""
        request = RAFT_MESSAGES.oneway(RaftMessagesHeader(GROUP, "n1", "a:1"))
        request.body = b"torn"
        channel: Any = SimpleNamespace(remote="a:1")
        for _ in range(3):
            assert node.handlers()[RAFT_MESSAGES.code](channel, request) is None
        assert node.problem.startswith("messages of n1 are refused: ")
        assert caplog.text.count("messages of n1 are refused") == 1
