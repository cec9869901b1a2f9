"""Users by name, and the policies of each subject: the tables of RocketMQ's ACL 2.0.

RocketMQ has them in RocksDB, in authConfigPath; here they are in the metadata journal, and slaves copy them. Passwords
are stored as they are: a server checks an HMAC with the same secret as the client signs with, so a hash would not do.
Only the owner of the broker's process can read the journal.
The journal has no record of these tables before the first user, so an earlier Skylark opens such a store.
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
        self.take_version(version)


class Users(_AuthTable[UserInfo]):
    """Users by name."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        super().__init__(journal, clock, USERS)


class Acls(_AuthTable[AclInfo]):
    """Policies by subject."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        super().__init__(journal, clock, ACLS)
