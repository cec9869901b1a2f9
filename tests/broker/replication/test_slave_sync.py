"""The metadata of a slave: of a Skylark master at once on change, of a Java one by interval, never of a wrong one."""

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio

from skylark.broker.admin.access_control import UserHandlers
from skylark.broker.meta.topics import NO_DRAIN, Drain
from skylark.broker.observe.stats import BrokerStats
from skylark.broker.replication import slave_sync as slave_sync_module
from skylark.broker.replication.copied_deletions import CopiedDeletions
from skylark.broker.replication.known_master import KnownMaster, MasterAddress
from skylark.broker.replication.slave_sync import SlaveSync
from skylark.broker.security.users.guard import Logins
from skylark.broker.tasks.delete_topics import TopicRemoval
from skylark.broker.tasks.persist import Persister
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.limits import ServerLimits
from skylark.remoting.net.server import Server
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.auth import UserInfo
from skylark.remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO
from skylark.remoting.protocol.requests.groups import MessageRequestMode, SubscriptionGroupConfig
from skylark.remoting.protocol.requests.offsets import (
    GET_ALL_CONSUMER_OFFSET,
    DelayOffsetTable,
    GetAllConsumerOffsetResponseHeader,
)
from skylark.remoting.protocol.requests.replication import WATCH_METADATA
from skylark.remoting.protocol.requests.topics import (
    GET_ALL_TOPIC_CONFIG,
    LogicQueueMappingItem,
    TopicConfig,
    TopicConfigTable,
    TopicQueueMappingDetail,
)
from tests.broker.desk import Desk
from tests.broker.meta.support import MetadataDir, options
from tests.broker.meta.test_mirror import tables, versions
from tests.broker.replication.test_watch_metadata import watch_of
from tests.broker.security.users.rows import acl, entry, user
from tests.broker.store.support import put
from tests.sdk.fakes import Fake, serving
from tests.support.waiting import DEADLINE_S, until
from tests.tidy.tree import ROOT


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_sync_module, "INTERVAL_MS", 20)
    monkeypatch.setattr(slave_sync_module, "PAUSE_S", 0.002)
    monkeypatch.setattr(slave_sync_module, "OFFSETS_FACTOR", 0)
    monkeypatch.setattr(slave_sync_module, "RETRY_S", 0.02)


class SkylarkMaster:
    """The handlers that slaves ask, over the network."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.meta = self.desk.meta
        self.watch = watch_of(self.meta.metadata)
        self.asked: list[int] = []
        self.serve()

    def serve(self) -> None:
        """Serve with the present handlers."""
        handlers = {**self.desk.all_handlers, **self.watch.handlers()}
        self.server = Server({code: self._noting(code, handler) for code, handler in handlers.items()})

    def _noting(self, code: int, handler: Any) -> Any:
        def noted(channel: Any, request: Command) -> Any:
            self.asked.append(code)
            return handler(channel, request)

        return noted


@asynccontextmanager
async def serving_master(master: SkylarkMaster, port: int = 0) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        yield await nursery.start(master.server.serve, "127.0.0.1", port)
        nursery.cancel_scope.cancel()


@dataclass
class Slave:
    meta: MetadataDir
    known: KnownMaster
    log_end: int = 0
    #: An item each time that it asks again where its master is.
    asked_again: list[int] = field(default_factory=list)
    #: What was removed from its store.
    deleted: list[tuple[str, int | None]] = field(default_factory=list)
    deletions: CopiedDeletions = field(init=False)
    sync: SlaveSync = field(init=False)

    def follow(self, addr: str, by: str = "ns") -> None:
        self.known.reported(by, MasterAddress(addr, "127.0.0.1:1"))


@asynccontextmanager
async def slave(online: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint) -> AsyncIterator[Slave]:
    meta, known = MetadataDir(options(broker_id=1, broker_role="SLAVE")), KnownMaster()
    persister = Persister(meta.metadata, meta.options)
    meta.journal.on_append = persister.appended
    copied = Slave(meta, known)

    async def delete_messages(topic: str, before: int | None) -> int:
        copied.deleted.append((topic, before))
        return copied.log_end

    removal = TopicRemoval(
        meta.metadata, BrokerStats(meta.clock), persister.wait, delete_messages, lambda: (0, copied.log_end),
        lambda topic, before: False,
    )  # fmt: skip
    copied.deletions = CopiedDeletions(meta.topics, removal, lambda: copied.log_end)
    copied.sync = SlaveSync(known, meta.metadata, persister, lambda: copied.log_end, copied.deletions, online)
    known.on_change.append(copied.sync.master_moved)
    known.ask_again = lambda: copied.asked_again.append(1)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(persister.run)
            nursery.start_soon(copied.sync.run)
            yield copied
            nursery.cancel_scope.cancel()


def fill(meta: MetadataDir) -> None:
    meta.topics.put(TopicConfig("T", 3, 5, 6, attributes={"message.type": "FIFO"}))
    stretches = {0: [LogicQueueMappingItem(0, 1, "broker-a")]}
    mapping = TopicQueueMappingDetail("S", bname="broker-a", epoch=7, hosted_queues=stretches)
    meta.topics.put_static(TopicConfig("S", 2, 2), mapping)
    meta.groups.put(SubscriptionGroupConfig("g", retry_max_times=3))
    meta.offsets.commit("g", "T", 2, 77)
    meta.offsets.append_changed(meta.offsets.pop_changed())
    meta.metadata.delay_offsets.put(DelayOffsetTable({1: 5}, DataVersion(0, 1, 1)))


@contextmanager
def writes(meta: MetadataDir) -> Iterator[list[int]]:
    appended: list[int] = []
    wake = meta.journal.on_append

    def noted() -> None:
        appended.append(1)
        wake()

    meta.journal.on_append = noted
    yield appended
    meta.journal.on_append = wake


async def test_all_tables_come_at_once_when_the_master_is_known(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    master = SkylarkMaster()
    fill(master.meta)
    async with serving_master(master) as addr, slave() as copy:
        copy.follow(addr)
        await until(lambda: copy.sync.rounds == 1)
        assert tables(copy.meta) == tables(master.meta)
        assert versions(copy.meta) == versions(master.meta)
    copy.meta.kill()
    assert tables(copy.meta) == tables(master.meta)
    assert caplog.text.count(f"metadata copied from master {addr}") == 1


async def test_a_change_comes_while_nothing_else_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_sync_module, "INTERVAL_MS", 60_000)
    master = SkylarkMaster()
    async with serving_master(master) as addr, slave() as copy:
        copy.follow(addr)
        await until(lambda: len(master.watch) == 1)
        master.asked.clear()
        with writes(copy.meta) as written:
            master.meta.topics.put(TopicConfig("T", 3, 5))
            await until(lambda: copy.meta.topics.get("T") is not None and len(master.watch) == 1)
            assert len(written) == 2  # the topic, and the version
        assert master.asked == [GET_ALL_TOPIC_CONFIG.code, WATCH_METADATA.code]
        master.meta.groups.put(SubscriptionGroupConfig("g"))
        await until(lambda: copy.meta.groups.get("g") is not None)
        master.meta.topics.delete("T")
        await until(lambda: copy.meta.topics.get("T") is None)
        await until(lambda: len(master.watch) == 1)
        master.meta.offsets.commit("g", "T", 0, 7)
        master.watch.tick()
        await until(lambda: copy.meta.offsets.query("g", "T", 0) == 7)
        await until(lambda: len(master.watch) == 1)
        assert versions(copy.meta) == versions(master.meta)


async def test_a_drain_that_began_or_ended_while_the_slave_was_away_is_copied() -> None:
    master = SkylarkMaster()
    async with serving_master(master) as addr, slave() as copy:
        master.meta.topics.drain.put(Drain(5_000, 40_000))
        registered = copy.meta.topics.changes.count
        copy.follow(addr)
        await until(lambda: copy.sync.rounds == 1)
        assert copy.meta.topics.drain.value == Drain(5_000, 40_000)
        assert copy.meta.topics.changes.since(registered) is None  # NameServers must get the permissions of all topics
        master.meta.topics.drain.put(NO_DRAIN)
        master.meta.topics.changed()
        await until(lambda: copy.meta.topics.drain.value == NO_DRAIN)


async def test_offsets_that_changed_are_copied_alone_and_all_of_them_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master = SkylarkMaster()
    for number in range(100):
        master.meta.offsets.commit("g", f"T{number}", 0, number)
    asked: list[bool] = []
    answer = master.desk.all_handlers[GET_ALL_CONSUMER_OFFSET.code]

    def noted(channel: Any, request: Command) -> Any:
        answered = answer(channel, request)
        asked.append(GetAllConsumerOffsetResponseHeader.from_ext(answered.ext).is_part)
        return answered

    master.desk.handlers[GET_ALL_CONSUMER_OFFSET.code] = noted
    master.serve()
    async with serving_master(master) as addr, slave() as copy:
        copy.follow(addr)

        async def commit(offset: int) -> None:
            await until(lambda: len(master.watch) == 1)
            master.meta.offsets.commit("g", "T7", 0, offset)
            master.watch.tick()
            await until(lambda: copy.meta.offsets.query("g", "T7", 0) == offset)

        await commit(1_000)
        await commit(1_001)
        assert asked == [False, True, True]
        copy.meta.offsets.commit("stray", "T7", 0, 5)  # of a client that took the slave for its master
        monkeypatch.setattr(slave_sync_module, "WHOLE_S", -1)
        await commit(1_002)
        assert asked == [False, True, True, False]
        # What the master lacks goes last.
        await until(lambda: copy.meta.offsets.table() == master.meta.offsets.table())
        monkeypatch.setattr(slave_sync_module, "WHOLE_S", 60)
        await until(lambda: len(master.watch) == 1)
        finish(master.meta.offsets.remove_topic("T9"))
        master.watch.tick()
        await until(lambda: copy.meta.offsets.table() == master.meta.offsets.table())


async def test_topics_do_not_wait_for_the_pause_after_a_long_copy_of_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_sync_module, "OFFSETS_FACTOR", 1e9)
    master = SkylarkMaster()
    fill(master.meta)
    async with serving_master(master) as addr, slave() as copy:
        copy.follow(addr)
        await until(lambda: copy.meta.offsets.query("g", "T", 2) == 77)
        master.meta.offsets.commit("g", "T", 2, 78)
        for number in range(3):
            master.meta.topics.put(TopicConfig(f"New{number}"))
            await until(lambda: copy.meta.topics.all() == master.meta.topics.all())
        assert copy.meta.offsets.query("g", "T", 2) == 77
        assert master.asked.count(GET_ALL_CONSUMER_OFFSET.code) == 1
        monkeypatch.setattr(copy.sync, "_offsets_from", 0)
        await until(lambda: len(master.watch) == 1)
        master.watch.tick()
        await until(lambda: copy.meta.offsets.query("g", "T", 2) == 78)


async def test_a_master_that_is_away_is_asked_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first, second = SkylarkMaster(), SkylarkMaster()
    fill(second.meta)
    async with slave() as copy:
        async with serving_master(first) as addr:
            copy.follow(addr)
            await until(lambda: copy.sync.rounds >= 1)
        before = tables(copy.meta)
        await until(lambda: len(copy.asked_again) >= 3)
        assert tables(copy.meta) == before
        assert not copy.known.is_reachable  # whatever NameServers say
        async with serving_master(second, int(addr.rpartition(":")[2])):
            await until(lambda: tables(copy.meta) == tables(second.meta) and copy.known.is_reachable)
            assert caplog.text.count("metadata not copied from master") == 1
            assert caplog.text.count("metadata copied from master") == 2


async def test_nothing_is_copied_from_a_master_that_is_not_online() -> None:
    """A slave that acted has offsets which the master is about to get."""
    master, state, waits = SkylarkMaster(), [trio.Event()], [0]
    fill(master.meta)

    async def online() -> None:
        waits[0] += 1
        await state[0].wait()

    async with serving_master(master) as addr, slave(online) as copy:
        copy.meta.offsets.commit("g", "T", 2, 99)
        copy.follow(addr)
        await until(lambda: waits[0] == 1)
        assert master.asked == []
        state[0].set()
        await until(lambda: copy.meta.offsets.query("g", "T", 2) == 77)
        # It goes while it holds the question; what it answers is not taken over.
        await until(lambda: len(master.watch) == 1)
        state[0] = trio.Event()
        copy.meta.offsets.commit("g", "T", 2, 99)
        waited = waits[0]
        master.meta.offsets.commit("g", "T", 2, 78)
        master.watch.tick()
        await until(lambda: waits[0] == waited + 1)
        assert copy.meta.offsets.query("g", "T", 2) == 99
        state[0].set()
        await until(lambda: copy.meta.offsets.query("g", "T", 2) == 78)


async def test_another_master_is_followed() -> None:
    first, second = SkylarkMaster(), SkylarkMaster()
    fill(second.meta)
    async with serving_master(first) as addr1, serving_master(second) as addr2, slave() as copy:
        copy.follow(addr1)
        await until(lambda: copy.sync.rounds >= 1)
        copy.follow(addr2)
        await until(lambda: tables(copy.meta) == tables(second.meta))


async def test_nothing_is_copied_from_a_master_that_lost_its_disk(caplog: pytest.LogCaptureFixture) -> None:
    master = SkylarkMaster()
    async with serving_master(master) as addr, slave() as copy:
        fill(copy.meta)
        before = tables(copy.meta)
        copy.log_end = 1_000
        copy.follow(addr)
        await until(lambda: len(copy.asked_again) >= 3)
        assert tables(copy.meta) == before
        assert set(master.asked) == {GET_BROKER_RUNTIME_INFO.code}
        assert "its log ends at 0, but this slave's at 1000" in caplog.text
        while master.desk.store.log.end < 1_000:
            put(master.desk.store, "T", 0, bytes(100))
        await until(lambda: copy.sync.rounds >= 1)


async def test_tables_that_cannot_be_written_are_copied_later(caplog: pytest.LogCaptureFixture) -> None:
    master = SkylarkMaster()
    fill(master.meta)
    async with serving_master(master) as addr, slave() as copy:
        copy.meta.fs.capacity = copy.meta.fs.used()
        copy.follow(addr)
        await until(lambda: len(copy.asked_again) >= 2)
        assert "no room" in caplog.text
        copy.meta.fs.capacity = 1 << 40
        await until(lambda: tables(copy.meta) == tables(master.meta))


def golden(file: str, code: int) -> bytes:
    """The body of a Java broker's answer."""
    for line in (ROOT / "tests/golden/wire" / file).read_text().splitlines():
        frame = json.loads(line)
        if frame["name"].startswith(f"{code}.RESP_code0"):
            raw = bytes.fromhex(frame["hex"])
            return raw[8 + (int.from_bytes(raw[4:8]) & 0xFFFFFF) :]
    raise AssertionError(f"{file} has no answer to {code}")


def java_master(file: str) -> Fake:
    """A Java broker, with a topic of ours."""
    master = Fake()
    master.json_only = True
    for code in (28, 43, 45, 201):
        body = golden(file, code)
        master.on(code, lambda request, body=body: request.respond(body=body))  # type: ignore[misc]
    topics = TopicConfigTable(DataVersion(0, 7, 7), {"WireTopic": TopicConfig("WireTopic", 4, 4)})
    master.on(21, lambda request: topics)
    return master


@pytest.mark.parametrize("file", ["admin_4.9.8.jsonl", "admin_5.3.3.jsonl"])
async def test_a_java_master_is_asked_by_interval(file: str) -> None:
    master = java_master(file)
    async with serving(master), slave() as copy:
        copy.follow(master.addr)
        await until(lambda: copy.sync.rounds >= 1)
        assert copy.meta.offsets.query("wire_push_cg", "WireTopic", 0) == 1
        assert copy.meta.groups.get("wire_push_cg") is not None
        assert copy.meta.metadata.delay_offsets.table.offset_table == {1: 1, 3: 1}
        assert copy.meta.topics.get("WireTopic") == TopicConfig("WireTopic", 4, 4)
        assert copy.meta.groups.data_version.counter >= 4
        with writes(copy.meta) as written:
            rounds = copy.sync.rounds
            await until(lambda: copy.sync.rounds >= rounds + 3)
            assert written == []
        assert not master.asked(WATCH_METADATA.code)
        master.on(21, lambda request: TopicConfigTable(DataVersion(0, 1, 1), {"U": TopicConfig("U")}))
        await until(lambda: copy.meta.topics.get("WireTopic") is None)


async def test_a_java_master_that_never_delayed_a_message_has_no_delay_offsets() -> None:
    master = java_master("admin_4.9.8.jsonl")
    master.on(45, lambda request: request.respond(1, "No delay offset in this broker"))
    async with serving(master), slave() as copy:
        copy.follow(master.addr)
        await until(lambda: copy.sync.rounds >= 1)
        assert copy.meta.metadata.delay_offsets.table == DelayOffsetTable()


async def test_an_answer_that_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    master = java_master("admin_4.9.8.jsonl")
    master.on(21, lambda request: request.respond(body=b"{nonsense"))
    async with serving(master), slave() as copy:
        before = tables(copy.meta)
        copy.follow(master.addr)
        await until(lambda: len(copy.asked_again) >= 2)
        assert tables(copy.meta) == before
    assert "metadata not copied from master" in caplog.text


async def test_large_tables_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_sync_module, "PAUSE_FACTOR", 0)
    limit, master = 65_536, SkylarkMaster()
    handlers = {**master.desk.all_handlers, **master.watch.handlers()}
    master.server = Server(handlers, limits=ServerLimits(max_frame_bytes=limit))
    monkeypatch.setattr("skylark.broker.meta.offset_handlers.PAGE_OFFSETS", 500)
    for number in range(1_500):
        master.meta.topics.put(TopicConfig(name := f"T{number}".ljust(120, "x"), 4, 4))
        master.meta.groups.put(SubscriptionGroupConfig(f"g{number}"))
        for queue_id in range(4):
            master.meta.offsets.commit("g", name, queue_id, number)
    async with serving_master(master) as addr, slave() as copied:
        copied.meta.offsets.commit("gone", "T", 0, 5)
        copied.follow(addr)
        await until(lambda: tables(copied.meta)[:3] == tables(master.meta)[:3])
        master.meta.topics.delete("T7".ljust(120, "x"))
        master.meta.offsets.commit("g", "T8".ljust(120, "x"), 0, 77)
        await until(lambda: copied.meta.topics.all() == master.meta.topics.all() and len(master.watch) == 1)
        master.watch.tick()
        await until(lambda: copied.meta.offsets.table() == master.meta.offsets.table())


async def test_delay_offsets_wait_until_the_log_has_the_messages_that_they_stand_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slave_sync_module, "LOG_WAIT_S", 0.001)
    master = SkylarkMaster()
    put(master.desk.store, "T", 0, b"delivered")
    master.meta.metadata.delay_offsets.put(DelayOffsetTable({1: 5}, DataVersion(0, 1, 1)))
    async with serving_master(master) as addr, slave() as copy:
        copy.follow(addr)
        await until(lambda: copy.sync.rounds >= 2)
        assert copy.meta.metadata.delay_offsets.table.offset_table == {}
        copy.log_end = master.desk.store.log.end
        await until(lambda: copy.meta.metadata.delay_offsets.table.offset_table == {1: 5})


async def test_a_change_is_copied_and_nothing_else() -> None:
    master = SkylarkMaster()
    modes = master.meta.metadata.request_modes
    modes.on_change.append(master.watch.changed)
    async with serving_master(master) as addr, slave() as copy:
        copy.follow(addr)
        await until(lambda: copy.sync.rounds >= 1)
        master.asked.clear()
        modes.put(MessageRequestMode("g", "T"))
        await until(lambda: copy.meta.metadata.request_modes.all() == modes.all())
        copy.meta.kill()
        assert copy.meta.metadata.request_modes.all() == modes.all()
        assert 402 in master.asked and 21 not in master.asked


async def test_modes_of_consumption_are_copied_from_rocketmq_5() -> None:
    master = java_master("admin_5.3.3.jsonl")
    body = b'{"messageRequestModeMap":{"T":{"g":{"consumerGroup":"g","mode":"POP","popShareQueueNum":8}}}}'
    master.on(402, lambda request: request.respond(body=body))
    async with serving(master), slave() as copy:
        copy.follow(master.addr)
        await until(lambda: copy.sync.rounds >= 3)
        assert copy.meta.metadata.request_modes.by_topic() == {"T": {"g": MessageRequestMode("g", "T", "POP", 8)}}
        assert copy.meta.metadata.request_modes.data_version.counter == 1, "the others found nothing new"


async def test_rocketmq_4_is_asked_once() -> None:
    """It does not know the request, and logs an error."""
    master = java_master("admin_4.9.8.jsonl")
    async with serving(master), slave() as copy:
        copy.follow(master.addr)
        await until(lambda: copy.sync.rounds >= 3)
        assert len(master.asked(402)) == 1
        assert copy.meta.metadata.request_modes.by_topic() == {}


class Allowing(Logins):
    """Logins by which every request counts as signed by a super user, or no request does."""

    allows = True

    def super_of(self, channel: Channel, request: Command) -> UserInfo | None:
        return user("boss", "Super") if self.allows else None


@pytest.fixture
def guarded_master() -> Iterator[SkylarkMaster]:
    found = SkylarkMaster()
    users, acls = found.meta.metadata.users, found.meta.metadata.acls
    settings = replace(found.meta.options, plain_passwords_to="boss")
    part = UserHandlers(users, acls, Allowing(users, acls, settings.plain_codes), settings, found.desk.durable)
    found.desk.step_handlers |= part.step_handlers()
    found.serve()
    for table in (users, acls):
        table.on_change.append(found.watch.changed)
    yield found
    Allowing.allows = True


async def test_users_come_and_go_with_the_masters(guarded_master: SkylarkMaster) -> None:
    users, acls = guarded_master.meta.metadata.users, guarded_master.meta.metadata.acls
    async with serving_master(guarded_master) as addr, slave() as copy:
        ours = copy.meta.metadata
        ours.users.put(user("of-the-slave"))
        copy.follow(addr)
        await until(lambda: copy.sync.rounds >= 1)
        assert set(ours.users.all()) == {"of-the-slave"}, "a master that never had a user is not asked"
        users.put(user("anna"))
        acls.put(acl("anna", entry("*", "All")))
        await until(lambda: ours.users.all() == users.all() and ours.acls.all() == acls.all())
        users.delete("anna")
        acls.delete("User:anna")
        await until(lambda: not ours.users.all() and not ours.acls.all())
        assert (ours.users.data_version, ours.acls.data_version) == (users.data_version, acls.data_version)


async def test_a_slave_that_may_not_copy_users_copies_the_rest(
    guarded_master: SkylarkMaster, caplog: pytest.LogCaptureFixture
) -> None:
    Allowing.allows = False
    guarded_master.meta.metadata.users.put(user("anna"))
    guarded_master.meta.topics.put(TopicConfig("T"))
    async with serving_master(guarded_master) as addr, slave() as copy:
        copy.follow(addr)
        await until(lambda: copy.sync.rounds == 1)
        assert copy.meta.topics.get("T") is not None
        assert not copy.meta.metadata.users.all()
    assert caplog.text.count("users and policies not copied from master") == 1
    assert "set innerClientAuthenticationCredentials in the slave" in caplog.text


async def test_deletions_wait_for_the_log_and_are_begun_when_this_broker_leads() -> None:
    """Also of a Java master: its table lacks the topic, so all is old that was here before the question."""
    master = SkylarkMaster()
    put(master.desk.store, "T", 0, b"old")
    end = master.desk.store.log.end
    for name, log_end in (("T", end - 30), ("Late", end + 100)):
        master.meta.topics.deletions.begin(name)
        master.meta.topics.deletions.finish(name, log_end)
    async with serving_master(master) as addr, slave() as copy:
        copy.log_end = end
        copy.follow(addr)
        await until(lambda: copy.deletions._due == {"Late": end + 100})
        assert copy.deleted == [("T", end - 30)]
        copy.meta.topics.put(TopicConfig("Gone"))
        copy.deletions.missing({}, end - 10)
        assert copy.deletions.lead(end)
        assert copy.meta.topics.deletions.unfinished() == [("Late", end, False), ("Gone", end - 10, False)]
        # The new master's log may be another one.
        copy.meta.topics.deletions.log_is_cut(end - 5)
        assert set(copy.meta.topics.deletions.all()) == {"T", "Gone"}
        copy.meta.topics.deletions.log_starts_at(end - 30)
        assert set(copy.meta.topics.deletions.all()) == {"Gone"}


async def test_marks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.meta.topic_deletions.MAX_MARKS", 2)
    meta = MetadataDir()
    for number in (3, 1, 2):
        meta.topics.deletions.begin(f"T{number}")
        meta.topics.deletions.finish(f"T{number}", number)
    meta.topics.deletions.log_starts_at(0)
    meta.journal.replace(meta.metadata.state())
    meta.kill()
    assert meta.topics.deletions.finished() == {"T3": 3, "T2": 2}
    # The log lost its end with the power.
    meta.topics.deletions.log_was_found(2)
    meta.kill()
    assert meta.topics.deletions.finished() == {"T3": 2, "T2": 2}
