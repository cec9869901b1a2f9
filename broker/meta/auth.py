"""Users by name, and the policies of each subject: the tables of RocketMQ's ACL 2.0.

RocketMQ keeps them in RocksDB, in authConfigPath; here they are in the metadata journal, and slaves copy them.
Passwords are stored in plain text: a server checks an HMAC with the secret that the client signs with, so a hash is not
enough.
Only the owner of the broker's process can read the journal.
Before the first user the journal has no record of these tables, so an earlier Skylark can open such a store.
Neighbours: table.py; security/users checks rows before they come here.
"""

from collections.abc import Iterable, Iterator

from skylark.broker.meta.journal import Journal
from skylark.broker.meta.table import Change, JournalledTable, Row, TableFormat
from skylark.mqcommon.clock import Clock
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.requests.auth import AclInfo, UserInfo

USERS = TableFormat(
    "user", "user-gone", "users-version", lambda user: user.username, UserInfo.to_wire, UserInfo.from_wire
)
ACLS = TableFormat("acl", "acl-gone", "acls-version", lambda acl: acl.subject, AclInfo.to_wire, AclInfo.from_wire)


class _AuthTable(JournalledTable[Row]):
    def state(self) -> Iterator[Change]:
        """See Journalled."""
        return super().state() if self.data_version.counter else iter(())

    def mirror(self, rows: Iterable[Row], version: DataVersion) -> Iterator[None]:
        """Make this table and its version equal to the master's, see `mirror_rows`."""
        name_of = self._format.name_of
        yield from self.mirror_rows({name_of(row): row for row in rows})
        self.adopt_version(version)


class Users(_AuthTable[UserInfo]):
    """Users by name."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        super().__init__(journal, clock, USERS)


class Acls(_AuthTable[AclInfo]):
    """Policies by subject."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        super().__init__(journal, clock, ACLS)
