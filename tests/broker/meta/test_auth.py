"""Users and policies: kept by the journal, and by slaves, in files that only their owner can read."""

import os
import stat
from pathlib import Path

from skylark.broker.meta.metadata import Metadata
from skylark.mqcommon.disk.files import OsFiles
from skylark.remoting.net.steps import finish
from tests.broker.meta.support import MetadataDir, options
from tests.broker.security.users.rows import acl, entry, user
from tests.support.clock import ManualClock


def fill(meta: MetadataDir) -> None:
    for name in ("anna", "bob"):
        meta.metadata.users.put(user(name))
        meta.metadata.acls.put(acl(name, entry("Topic:T", "Pub"), default=(entry("Group:*", "Sub"),)))
    meta.metadata.users.delete("bob")
    meta.metadata.acls.delete("User:bob")


def rows(meta: MetadataDir) -> tuple[object, object]:
    return dict(meta.metadata.users.all()), dict(meta.metadata.acls.all())


def test_a_store_without_users_has_no_record_of_them() -> None:
    meta = MetadataDir()
    assert not [kind for kind, _ in meta.metadata.state() if kind.startswith(("user", "acl"))]


def test_a_slave_has_its_masters() -> None:
    master, slave = MetadataDir(), MetadataDir()
    fill(master)
    slave.metadata.users.put(user("of-the-slave"))
    slave.metadata.acls.put(acl("of-the-slave", entry("*", "All")))
    users, acls = master.metadata.users, master.metadata.acls
    finish(slave.metadata.users.mirror(users.all().values(), users.data_version))
    finish(slave.metadata.acls.mirror(acls.all().values(), acls.data_version))
    assert rows(slave) == rows(master)
    assert slave.metadata.users.data_version == users.data_version
    slave.kill()
    slave.journal.replace(slave.metadata.state())
    slave.power_loss()
    assert rows(slave) == rows(master)
    assert slave.metadata.users.data_version.counter == users.data_version.counter


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        metadata = Metadata(OsFiles(), str(tmp_path / "config"), ManualClock(), options())
        metadata.open()
        metadata.users.put(user("anna"))
        metadata.journal.replace(metadata.state())
        metadata.journal.close()
    finally:
        os.umask(mask)
    files = list((tmp_path / "config").iterdir())
    assert len(files) >= 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
