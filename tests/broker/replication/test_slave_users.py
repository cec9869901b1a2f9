"""Users and policies of a slave: those of its master, if it may copy them."""

from collections.abc import Iterator

import pytest

from broker.admin.access_control import UserHandlers
from broker.replication import slave_sync as slave_sync_module
from broker.security.users.guard import Logins
from remoting.net.channel import Channel
from remoting.protocol.command import Command
from remoting.protocol.requests.topics import TopicConfig
from tests.broker.replication.test_slave_sync import SkylarkMaster, serving_master, slave, until
from tests.broker.security.users.rows import acl, entry, user


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_sync_module, "INTERVAL_MS", 20)
    monkeypatch.setattr(slave_sync_module, "PAUSE_S", 0.002)
    monkeypatch.setattr(slave_sync_module, "RETRY_S", 0.02)


class Allowing(Logins):
    """Takes every request as one that a super user signed, or none."""

    allows = True

    def is_by_super(self, channel: Channel, request: Command) -> bool:
        return self.allows


@pytest.fixture
def master() -> Iterator[SkylarkMaster]:
    found = SkylarkMaster()
    users, acls = found.meta.metadata.users, found.meta.metadata.acls
    part = UserHandlers(users, acls, Allowing(users, acls), found.meta.options, found.desk.durable)
    found.desk.step_handlers |= part.step_handlers()
    found.serve()
    for table in (users, acls):
        table.on_change.append(found.watch.changed)
    yield found
    Allowing.allows = True


async def test_they_come_and_go_with_the_masters(master: SkylarkMaster) -> None:
    users, acls = master.meta.metadata.users, master.meta.metadata.acls
    async with serving_master(master) as addr, slave() as copy:
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


async def test_a_slave_that_may_not_copy_them_copies_the_rest(
    master: SkylarkMaster, caplog: pytest.LogCaptureFixture
) -> None:
    Allowing.allows = False
    master.meta.metadata.users.put(user("anna"))
    master.meta.topics.put(TopicConfig("T"))
    async with serving_master(master) as addr, slave() as copy:
        copy.follow(addr)
        await until(lambda: copy.sync.rounds == 1)
        assert copy.meta.topics.get("T") is not None
        assert not copy.meta.metadata.users.all()
    assert caplog.text.count("users and policies not copied from master") == 1
    assert "set innerClientAuthenticationCredentials in the slave" in caplog.text
