"""A group of brokers in one process: who accepts messages, what a switch keeps, and who is kept out."""

import errno
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
import trio

from skylark.broker.broker import Broker
from skylark.broker.commands.dledger_store import init_group
from skylark.broker.options import BrokerOptions
from skylark.broker.replication.dledger import log_disk
from skylark.broker.tasks import flush
from skylark.broker.writing.durability import NO_MAJORITY
from skylark.broker.writing.elected import Elected
from skylark.mqcommon.errors import ConfigError
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.brokers import DELETE_EXPIRED_COMMITLOG, GET_BROKER_HA_STATUS, HARuntimeInfo
from skylark.remoting.protocol.requests.raft import (
    RAFT_MEMBERS,
    RAFT_STATUS,
    RaftMembers,
    RaftMembersRequestHeader,
    RaftStatusRequestHeader,
)
from skylark.remoting.protocol.requests.topics import UPDATE_AND_CREATE_TOPIC, CreateTopicRequestHeader
from tests.broker.replication.dledger.groups import NAME, Group, group, started
from tests.broker.replication.sets import Running, broker
from tests.broker.running import SMALL, send_request
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

BODIES = [b"%d" % number for number in range(50)]


async def create_topic(member: Running, topic: str) -> None:
    answer = await member.client.invoke(member.addr, topic_request(topic), 5_000)
    assert answer.code == ResponseCode.SUCCESS, answer


def topic_request(topic: str) -> Command:
    header = CreateTopicRequestHeader(topic, "TBW102", 1, 1, 6, "SINGLE_TAG", False)
    return UPDATE_AND_CREATE_TOPIC.command(header)


async def test_one_member_accepts_messages_and_all_get_them() -> None:
    async with started() as made:
        leader = await made.leader()
        await leader.send("topic", *BODIES)
        for member in made.members.values():
            assert await member.has("topic", len(BODIES)) == BODIES
        assert sorted(member.broker.role.now.broker_id for member in made.members.values())[0] == 0
        for name, member in made.members.items():
            if member is not leader:
                assert member.broker.role.now.broker_id == int(name[1:]) + 1
                answer = await member.client.invoke(member.addr, send_request("topic", b"x", n=NAME), 5_000)
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await made.until_equal()


async def test_a_leader_that_dies_is_replaced_and_comes_back() -> None:
    async with started() as made:
        first = await made.leader()
        await first.send("topic", *BODIES)
        (name,) = [name for name, member in made.members.items() if member is first]
        left = first.kill()
        second = await made.leader(but=first)
        await second.send("topic", b"later")
        back = await made.start(name, left)
        assert await back.has("topic", len(BODIES) + 1) == [*BODIES, b"later"]
        await made.until_equal()


async def test_an_acknowledged_topic_survives_its_leader() -> None:
    async with started() as made:
        leader = await made.leader()
        await create_topic(leader, "made")
        leader.kill()
        second = await made.leader(but=leader)
        await second.send("made", b"taken")  # no topic is made by a send: its default topic is unknown
        request = send_request("unknown", b"", n=NAME, c="none")
        assert (await second.client.invoke(second.addr, request, 5_000)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_tools_see_how_far_members_are() -> None:
    async with started() as made:
        leader = await made.leader()
        await leader.send("topic", *BODIES)

        async def ha_status() -> HARuntimeInfo:
            answer = await leader.client.invoke(leader.addr, Command(GET_BROKER_HA_STATUS.code), 5_000)
            return decode_body(HARuntimeInfo, answer.body, answer.codec)

        async def all_are_shown() -> bool:
            rows = (await ha_status()).ha_connection_info
            return [row.slave_ack_offset for row in rows] == [leader.log_end] * 2

        await until(all_are_shown, "both followers have everything")
        status = await ha_status()
        assert (status.master, status.in_sync_slave_nums) == (True, 2)
        made.others(leader)[0].kill()

        async def one_is_left() -> bool:
            return len((await ha_status()).ha_connection_info) == 1

        await until(one_is_left, "the killed one is not shown any more")


async def test_a_leader_that_stops_hands_over() -> None:
    async with started() as made:
        leader = await made.leader()
        await leader.send("topic", *BODIES)
        leader.broker.stop()
        second = await made.leader(but=leader)
        assert leader.broker.role.now.follows
        assert await second.has("topic", len(BODIES)) == BODIES


async def members_request(member: Running, action: str, **more: str) -> RaftMembers:
    request = RAFT_MEMBERS.command(RaftMembersRequestHeader(action, **more))
    answer = await member.client.invoke(member.addr, request, 5_000)
    assert answer.code == ResponseCode.SUCCESS, answer
    return decode_body(RaftMembers, answer.body, answer.codec)


async def test_an_administrator_lets_another_one_lead() -> None:
    async with started() as made:
        leader = await made.leader()
        await leader.send("topic", *BODIES)
        members = await members_request(leader, "list")
        assert sorted(members.voters) == ["n0", "n1", "n2"]
        to = next(name for name in made.members if name != members.leader)
        assert (await members_request(leader, "transfer", node=to)).leader in (to, "")
        assert await made.leader() is made.members[to]
        await made.members[to].send("topic", b"later")
        assert await leader.has("topic", len(BODIES) + 1) == [*BODIES, b"later"]


async def test_a_preferred_leader_leads_again_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("skylark.broker.replication.dledger.member.PREFER_S", 0.02)
    async with started(preferred_leader_ids="n1") as made:
        preferred = made.members["n1"]
        await until(lambda: preferred.broker.role.now.is_master, "n1 leads")
        left = preferred.kill()
        caplog.clear()
        second = await made.leader(but=preferred)
        await second.send("topic", *BODIES)
        # Not while it is away: messages are refused until a leader that hands over gives up.
        assert "handing the leadership over" not in caplog.text
        back = await made.start("n1", left)
        await until(lambda: back.broker.role.now.is_master, "n1 leads again")
        assert await back.has("topic", len(BODIES)) == BODIES
        await made.until_equal()


async def test_a_leader_whose_disk_is_failing_hands_over_to_a_member_whose_disk_is_sound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("skylark.broker.replication.dledger.member.PREFER_S", 0.02)
    disks: list[Elected] = []
    unsound: set[str] = set()

    def new_elected(clock: Callable[[], float]) -> Elected:
        disks.append(Elected(clock))
        return disks[-1]

    monkeypatch.setattr("skylark.broker.broker.Elected", new_elected)
    async with started(preferred_leader_ids="n0") as made:
        first, _, third = made.members.values()
        for name, elected in zip(made.members, disks, strict=True):
            elected.has_sound_disk = partial(lambda name: name not in unsound, name)
        await until(lambda: first.broker.role.now.is_master, "n0 leads")
        await (await made.leader()).send("topic", *BODIES)
        unsound |= {"n0", "n1"}
        await until(lambda: third.broker.role.now.is_master, "n2 leads, though n0 is preferred")
        await (await made.leader()).send("topic", b"later")
        assert "the disk of this leader is failing" in caplog.text
        unsound.clear()
        await until(lambda: first.broker.role.now.is_master, "n0 leads again")
        assert await first.has("topic", len(BODIES) + 1) == [*BODIES, b"later"]


async def test_a_fourth_member_is_added_and_another_one_removed() -> None:
    async with group("n0", "n1", "n2", "n3") as made:
        for name in ("n0", "n1", "n2"):
            await made.start(name, d_leger_peers=made.peers_of("n0", "n1", "n2"))
        leader = await made.leader()
        await leader.send("topic", *BODIES)
        fourth = await made.start("n3")
        new: dict[str, str] = {}

        async def is_added() -> bool:
            header = RaftMembersRequestHeader("add", address=f"127.0.0.1:{made.port('n3')}")
            answer = await leader.client.invoke(leader.addr, RAFT_MEMBERS.command(header), 5_000)
            if answer.code == ResponseCode.SUCCESS:
                new.update(decode_body(RaftMembers, answer.body, answer.codec).learners)
            return answer.code == ResponseCode.SUCCESS

        await until(is_added, "n3 has begun, and is added")
        assert [name.partition(".")[0] for name in new] == ["n3"]

        async def votes() -> bool:
            return set(new) <= set((await members_request(leader, "list")).voters)

        await until(votes, "n3 is a voter")
        other = next(name for name, member in made.members.items() if member not in (leader, fourth))
        assert other not in (await members_request(leader, "remove", node=other)).voters
        await leader.send("topic", b"later")
        assert await fourth.has("topic", len(BODIES) + 1) == [*BODIES, b"later"]


async def test_without_a_majority_a_topic_is_not_acknowledged() -> None:
    async with started() as made:
        leader = await made.leader()
        for other in made.others(leader):
            other.kill()
        answer = await leader.client.invoke(leader.addr, topic_request("made"), 10_000)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "the change may be lost" in (answer.remark or "")


async def test_consumers_see_committed_messages_only() -> None:
    async with started() as made:
        leader = await made.leader()
        await leader.send("topic", b"committed")
        await leader.has("topic", 1)
        for other in made.others(leader):
            other.kill()
        answers: list[Command] = []

        async def send() -> None:
            answers.append(await leader.client.invoke(leader.addr, send_request("topic", b"alone", n=NAME), 10_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await until(lambda: bool(answers), "the send was answered")
        assert (answers[0].code, answers[0].remark) == (ResponseCode.SYSTEM_ERROR, NO_MAJORITY)
        assert await leader.bodies("topic") == [b"committed"]


async def test_with_sync_flush_all_may_lose_power_at_once() -> None:
    random = Random(3)
    async with started(flush_disk_type="SYNC_FLUSH") as made:
        leader = await made.leader()
        await leader.send("topic", *BODIES)
        disks = {name: member.fs.crash(random) for name, member in made.members.items()}
        for member in made.members.values():
            member.scope.cancel()
        for name, disk in disks.items():
            await made.start(name, disk)
        leader = await made.leader()
        assert await leader.has("topic", len(BODIES)) == BODIES


async def test_a_member_with_an_empty_disk_gets_a_log_whose_beginning_was_deleted() -> None:
    # Files are deleted when the test asks for it.
    cleaning = {"file_reserved_time": 0, "clean_resource_interval": 3_600_000, "delete_commit_log_files_interval": 1}
    async with started(**cleaning) as made:
        leader = await made.leader()
        await leader.send("topic", *[bytes(1_000)] * 60)
        await made.until_equal()
        (name,) = [name for name, member in made.members.items() if member is made.others(leader)[0]]
        made.members[name].kill()
        await delete_first_files(leader)
        new = await made.start(name, MemoryFiles())
        await leader.send("topic", b"last")
        await until(lambda: new.fs.listdir("/store/commitlog") == leader.fs.listdir("/store/commitlog"), "equal files")
        await until(lambda: new.log() == leader.log(), "the new member has what the leader has")
        assert new.fs.listdir("/store/commitlog")[0] != "00000000000000000000"


async def delete_first_files(member: Running) -> None:
    """Delete the first files, as the cleaner does when messages are expired."""
    before = member.fs.listdir("/store/commitlog")[0]
    request = Command(DELETE_EXPIRED_COMMITLOG.code)
    assert (await member.client.invoke(member.addr, request, 5_000)).code == ResponseCode.SUCCESS
    await until(lambda: member.fs.listdir("/store/commitlog")[0] != before, "files are deleted")


async def test_a_member_that_cannot_write_queues_takes_no_entries_until_it_can(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flush, "CHECKPOINT_INTERVAL_S", 0.02)
    monkeypatch.setattr(log_disk, "FULL_PAUSE_S", 0.02)
    async with started(flush_interval_commit_log=20, flush_commit_log_thorough_interval=20) as made:
        leader = await made.leader()
        await leader.send("topic", b"first")
        await made.until_equal()
        follower = made.others(leader)[0]
        for operation in ("open", "create", "allocate", "write"):
            follower.fs.faults.fail(operation, times=1_000_000, code=errno.ENOSPC, path_part="/consumequeue/")
        await leader.send("topic", b"second")
        await until(lambda: "entries of consume queues cannot be written" in caplog.text, "its checkpoint fails")
        await leader.send("topic", *BODIES)
        await until(lambda: "entries of the leader are not taken" in caplog.text, "it takes none")
        assert BODIES[-1] not in await follower.bodies("topic")
        follower.fs.faults.clear()
        assert await follower.has("topic", 2 + len(BODIES)) == [b"first", b"second", *BODIES]
        await made.until_equal()
        assert "after_turn failed" not in caplog.text


# --- strangers


async def status_code(made: Group, name: str) -> int:
    async with open_client() as client:
        request = RAFT_STATUS.command(RaftStatusRequestHeader(NAME))
        return (await client.invoke(f"127.0.0.1:{made.port(name)}", request, 5_000)).code


async def test_with_a_secret_only_members_are_heard() -> None:
    async with group(ha_shared_secret="theirs") as made:
        for name in ("n0", "n1"):
            await made.start(name)
        stranger = await made.start("n2", ha_shared_secret="guessed")
        # A new group begins when all of it were there.
        assert await status_code(made, "n0") == ResponseCode.NO_PERMISSION
        stranger.kill()
        await made.start("n2")
        leader = await made.leader()
        await leader.send("topic", b"x")
        assert await status_code(made, "n0") == ResponseCode.NO_PERMISSION


# --- stores of the other kind


async def test_a_members_store_is_refused_without_the_mode_and_an_ordinary_store_with_it() -> None:
    fs = MemoryFiles()
    async with broker(fs) as ordinary:
        await ordinary.send("topic", b"x")
    async with group("n0") as made:
        with pytest.raises(ConfigError, match="broker dledger-init /store"):
            await run_alone(made, fs)
        init_group(fs, "/store", "n0", f"127.0.0.1:{made.port('n0')}")
        with pytest.raises(ConfigError, match="is the store of a member of a DLedger group"):
            await Broker(BrokerOptions(**SMALL), fs=fs).run()


async def run_alone(made: Group, fs: MemoryFiles) -> None:
    options = {"enable_dleger_commit_log": True, "d_leger_peers": made.peers, "d_leger_self_id": "n0"}
    await Broker(BrokerOptions(**{**SMALL, **options}), fs=fs).run()


async def test_an_ordinary_store_becomes_the_first_of_a_group_and_a_member_an_ordinary_broker_again() -> None:
    fs = MemoryFiles()
    async with broker(fs, broker_name=NAME) as ordinary:
        await ordinary.send("topic", *BODIES)
        await ordinary.send("large", *[bytes(3_000)] * 20)
    async with group() as made:
        assert init_group(fs, "/store", "n0", f"127.0.0.1:{made.port('n0')}") > 1
        first = await made.start("n0", fs)
        leader = await made.leader()
        assert leader is first
        for name in ("n1", "n2"):
            await made.start(name)
        await leader.send("topic", b"in the group")
        for member in made.members.values():
            assert await member.has("topic", len(BODIES) + 1) == [*BODIES, b"in the group"]
        await made.until_equal()
    left = made.members["n1"].fs
    for path in left.paths():
        if path.startswith("/store/dledger/"):
            left.remove(path)
    async with broker(left, broker_name=NAME) as ordinary:
        await ordinary.send("topic", b"alone again")
        assert await ordinary.bodies("topic") == [*BODIES, b"in the group", b"alone again"]
