"""Whole brokers of a set: a read of a damaged block is answered whole, and the block is right again."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio.testing

from skylark.broker.healing.serving import REQUESTS_A_SECOND, LogServing
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.sums.block_sums import BlockSum
from skylark.broker.store.sums.sum_rows import decode_rows, encode_rows
from skylark.broker.tasks import block_sealing
from skylark.mqcommon.errors import BrokerError, RequestRefused
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.healing import (
    LOG_SUMS,
    READ_LOG,
    LogSumsRequestHeader,
    ReadLogRequestHeader,
)
from skylark.remoting.protocol.signature import Credentials
from tests.broker.healing.test_entry_files import scrubbed
from tests.broker.replication.autoswitch.test_set import controlled, is_in_sync, leads
from tests.broker.replication.dledger.groups import started
from tests.broker.replication.dledger.test_damage import runtime_info
from tests.broker.replication.sets import SLAVE, Running, broker, namesrv
from tests.broker.running import pull_request
from tests.broker.security.accounts.acl_files import ADMIN, SECRET, write
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

FILE = 16 * 1024
FIRST = f"/store/commitlog/{0:020d}"
BODIES = [bytes([65 + number]) * 1500 for number in range(24)]


@pytest.fixture(autouse=True)
def seals_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sealing, "INTERVAL_S", 0.02)


async def sums_of(running: Running, rows: bytes = b"") -> list[BlockSum | None]:
    """The sums of a broker's first two files."""
    answer = await call(Remote(running.client, running.addr, 5_000), LOG_SUMS, LogSumsRequestHeader(0, 2 * FILE), rows)
    return decode_rows(answer.body())


async def until_sealed(*brokers: Running) -> None:
    for running in brokers:

        async def is_sealed(running: Running = running) -> bool:
            return None not in await sums_of(running)

        await until(is_sealed, f"{running.addr} has sealed its first files")


async def fill(master: Running, *others: Running) -> bytes:
    await master.send("topic", *BODIES)
    await until(lambda: all(other.log() == master.log() for other in others), "the logs are equal")
    await until_sealed(master, *others)
    return master.log()


async def attested(one: Running, other: Running) -> None:
    """Have each attest the sums of the other, as a slave does after a while."""
    for asked, asking in ((one, other), (other, one)):
        sums = await sums_of(asked, encode_rows(await sums_of(asking)))
        assert all(each is not None and each.is_attested for each in sums)


def damage(running: Running) -> None:
    """A property of a message, which no checksum of RocketMQ covers, and a body."""
    log = running.log()
    for at in (log.index(BODIES[2]) + 1600, log.index(BODIES[4]) + 700):
        running.fs.damage(FIRST, at, b"\xff\x00\xff")


@asynccontextmanager
async def master_and_slave(**options: Any) -> AsyncIterator[tuple[Running, Running]]:
    async with (
        namesrv() as addr,
        broker(namesrv_addr=addr, **options) as master,
        broker(namesrv_addr=addr, **options, **SLAVE) as slave,
    ):
        yield master, slave


async def damage_alone(running: Running) -> None:
    """A property in a sealed block is damaged, and nobody has another copy."""
    await running.send("topic", *BODIES)
    await until_sealed(running)
    flip_property(running)


def flip_property(running: Running) -> None:
    running.fs.flip(FIRST, running.log().index(BODIES[2]) + 1600)


async def test_a_broker_without_replicas_skips_a_damaged_message_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with namesrv() as addr, broker(namesrv_addr=addr) as alone, broker() as without_namesrv:
        for running in (alone, without_namesrv):
            await damage_alone(running)
            assert await running.has("topic", len(BODIES) - 1) == [*BODIES[:2], *BODIES[3:]]
    assert caplog.text.count("nobody else has a copy") == 2


async def test_a_broker_whose_replica_is_away_or_may_be_has_readers_wait(caplog: pytest.LogCaptureFixture) -> None:
    async with namesrv() as addr, broker(namesrv_addr=addr) as master, broker(namesrv_addr=addr, **SLAVE) as slave:
        await fill(master, slave)
        await attested(master, slave)
    # Its NameServer is away, or knows nothing of the slave: the sums do.
    async with namesrv() as other, broker(master.fs, namesrv_addr=other) as again:
        flip_property(again)
        answer = await again.client.invoke(again.addr, pull_request("topic", 0), 5_000)
        assert answer.code == ResponseCode.SYSTEM_BUSY
    async with broker(namesrv_addr="127.0.0.1:1") as unsure, broker() as left_alone:
        async with broker(**SLAVE, ha_master_address=left_alone.broker.ha_addr) as slave:
            await left_alone.send("topic", b"one")
            await until(lambda: slave.log() == left_alone.log(), "a plain slave was connected")
        for running in (unsure, left_alone):
            await damage_alone(running)
            answer = await running.client.invoke(running.addr, pull_request("topic", 0), 5_000)
            assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "nobody else has a copy" not in caplog.text


async def test_a_slave_that_knows_only_the_ha_address_of_its_master_is_healed_by_it() -> None:
    """The master says at the beginning of the link where it takes requests."""
    secret = {"ha_shared_secret": "a secret"}
    async with (
        broker(**secret) as master,
        broker(**secret, **SLAVE, ha_master_address=master.broker.ha_addr) as slave,
    ):
        log = await fill(master, slave)
        damage(slave)
        assert await slave.has("topic", len(BODIES)) == BODIES, "with the topic, which it copies from there, too"
        assert slave.log() == log


async def test_a_start_names_a_file_of_sums_that_is_gone_and_a_scrub_makes_it_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with broker() as running:
        await running.send("topic", *BODIES)
        await until_sealed(running)
    path = f"/store/sums/{0:020d}"
    running.fs.remove(path)
    async with broker(running.fs) as again:
        assert f"{path} is missing: something has removed" in caplog.text
        assert (await runtime_info(again))["sumFilesLost"] == "1"
        assert (await scrubbed(again)).problem_count == 0
        assert (await runtime_info(again))["sumFilesLost"] == "0"
        await until_sealed(again)


@pytest.mark.parametrize("is_masters", [True, False])
async def test_a_read_of_a_damaged_block_is_answered_whole_and_mends_the_log(is_masters: bool) -> None:
    async with master_and_slave() as (master, slave):
        log = await fill(master, slave)
        bad = master if is_masters else slave
        damage(bad)
        assert bad.log() != log
        assert await bad.bodies("topic") == BODIES
        assert bad.log() == log and bad.fs.read_direct(FIRST, 0, FILE) == log[:FILE]
        assert bad.fs.listdir("/store/damaged") == [f"{0:020d}.disk"]
        assert slave.log() == master.log()


async def test_two_replicas_whose_copies_of_a_block_are_both_damaged_heal_each_other() -> None:
    async with master_and_slave() as (master, slave):
        log = await fill(master, slave)
        await attested(master, slave)
        damage(master)
        for at in (log.index(BODIES[5]) + 1600, log.index(BODIES[6]) + 10):
            slave.fs.damage(FIRST, at, b"\xff\x00\xff")
        assert await master.bodies("topic") == BODIES == await slave.bodies("topic")
        assert slave.log() == log == master.log()


async def test_a_member_of_a_group_is_healed_by_the_others() -> None:
    async with namesrv() as addr, started(namesrv_addr=addr) as group:
        leader = await group.leader()
        log = await fill(leader, *group.others(leader))
        damage(leader)
        assert await leader.bodies("topic") == BODIES
        assert leader.log() == log


async def test_a_master_that_controllers_elected_is_healed_by_its_slave() -> None:
    async with controlled() as brokers, brokers.broker() as master:
        await leads(master)
        async with brokers.broker() as slave:
            await is_in_sync(master, 1)
            log = await fill(master, slave)
            damage(master)
            assert await master.bodies("topic") == BODIES
            assert master.log() == log == slave.log()


async def test_brokers_with_access_control_ask_with_their_inner_credentials(tmp_path: Path) -> None:
    root = Credentials("admin-account", SECRET)
    accounts: dict[str, Any] = {
        "acl_enable": True,
        "acl_file": write(tmp_path / "plain_acl.yml", ADMIN),
        "inner_client_authentication_credentials": json.dumps(
            {"accessKey": root.access_key, "secretKey": root.secret_key}
        ),
    }
    async with (
        namesrv() as addr,
        broker(namesrv_addr=addr, **accounts) as master,
        broker(namesrv_addr=addr, **accounts, **SLAVE) as slave,
        open_client(credentials=root) as client,
    ):
        for running in (master, slave):
            running.client = client
        log = await fill(master, slave)
        damage(master)
        assert await master.bodies("topic") == BODIES
        assert master.log() == log


async def test_a_replica_attests_the_sums_of_another_and_says_which_bytes_are_damaged() -> None:
    async with master_and_slave() as (master, slave):
        log = await fill(master, slave)
        first, second = await sums_of(slave)
        assert first is not None and second is not None
        assert await sums_of(master, encode_rows([first, None])) == [BlockSum(first.crc, True), second]
        server = Remote(master.client, master.addr, 5_000)
        answer = await call(server, READ_LOG, ReadLogRequestHeader(FILE - 100, 200, 0))
        assert answer.body() == log[FILE - 100 : FILE], "of one file"
        header = answer.header()
        assert (header.crc, header.is_attested) == (first.crc, True) and 2 * FILE <= header.limit <= len(log)
        damage(master)
        answer = await call(server, READ_LOG, ReadLogRequestHeader(0, FILE, 0))
        assert answer.body() != log[:FILE] and not answer.header().is_current
        await until(lambda: master.log() == log, "what was asked for is healed")


async def test_a_slave_that_follows_nobody_says_that_its_log_may_not_be_the_sets() -> None:
    async with master_and_slave() as (master, slave):
        await fill(master, slave)

        async def is_current(running: Running) -> bool:
            server = Remote(running.client, running.addr, 5_000)
            return (await call(server, READ_LOG, ReadLogRequestHeader(0, 8, -1))).header().is_current

        assert await is_current(master) and await is_current(slave)
        master.kill()

        async def is_alone() -> bool:
            return not await is_current(slave)

        await until(is_alone, "the slave has lost its master")


@pytest.mark.parametrize(
    ("start", "size", "text"),
    [(-1, 5, "not read"), (0, 0, "not read"), (0, 1 << 21, "not read"), (1 << 40, 5, "not in the confirmed log")],
)
async def test_bytes_that_are_not_there_are_refused(start: int, size: int, text: str) -> None:
    async with broker() as alone:
        await alone.send("topic", b"one")
        with pytest.raises(BrokerError, match=text):
            await call(Remote(alone.client, alone.addr, 5_000), READ_LOG, ReadLogRequestHeader(start, size, -1))


@pytest.mark.parametrize(
    ("start", "end", "rows"), [(5, 5, b""), (-5, 5, b""), (0, 1 << 40, b""), (0, FILE, b"xxxx"), (0, FILE, bytes(10))]
)
async def test_sums_that_are_none_are_refused(start: int, end: int, rows: bytes) -> None:
    async with broker() as alone:
        with pytest.raises(BrokerError) as refused:
            await call(Remote(alone.client, alone.addr, 5_000), LOG_SUMS, LogSumsRequestHeader(start, end), rows)
        assert refused.value.code == ResponseCode.INVALID_PARAMETER


async def test_who_asks_too_often_is_told_to_wait(mock_clock: trio.testing.MockClock) -> None:
    log = CommitLog(MemoryFiles(), "/log", FILE)
    serving = LogServing(log, lambda: 0, lambda blocks: None, lambda: True)
    one, other = (cast(Channel, SimpleNamespace(remote=f"10.0.0.{number}:5")) for number in (1, 2))
    request = LOG_SUMS.command(LogSumsRequestHeader(0, FILE))
    for _ in range(REQUESTS_A_SECOND):
        serving.sums(one, request)
    with pytest.raises(RequestRefused) as refused:
        serving.sums(one, request)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    serving.sums(other, request)
    mock_clock.jump(1.0)
    serving.sums(one, request)
