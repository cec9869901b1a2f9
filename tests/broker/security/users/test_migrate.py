"""Users and policies of RocketMQ's plain_acl.yml."""

from pathlib import Path

import pytest

from skylark.broker.security.users.first_users import migrate
from skylark.broker.security.users.policies import Policies
from skylark.mqcommon.errors import ConfigError, UserError
from skylark.remoting.protocol.requests.auth import UserInfo
from tests.broker.meta.support import MetadataDir, options
from tests.broker.security.users.rows import acl, entry

FILE = """
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=PUB|SUB
- accessKey: rocketmq2
  secretKey: 87654321
  whiteRemoteAddress: 192.168.1.*
  admin: true
"""


def conf(folder: Path, text: str, **changes: object) -> MetadataDir:
    path = folder / "plain_acl.yml"
    path.write_text(text)
    path.chmod(0o600)
    return MetadataDir(options(migrate_auth_from_v1_enabled=True, acl_file=str(path), **changes))


def run(meta: MetadataDir) -> None:
    migrate(meta.options, meta.metadata.users, meta.metadata.acls)


def test_the_file_that_rocketmq_ships(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    meta = conf(tmp_path, FILE)
    run(meta)
    users, acls = meta.metadata.users, meta.metadata.acls
    assert users.all() == {
        "RocketMQ": UserInfo("RocketMQ", "12345678", "Normal", "enable"),
        "rocketmq2": UserInfo("rocketmq2", "87654321", "Super", "enable"),
    }
    assert acls.all() == {
        "User:RocketMQ": acl(
            "RocketMQ",
            entry("Topic:topicA", "All", "Deny"),
            entry("Topic:topicB", "Pub,Sub"),
            entry("Topic:topicC", "Sub"),
            entry("Group:groupA", "All", "Deny"),
            entry("Group:groupB", "Pub,Sub"),
            default=(entry("Topic:*", "All", "Deny"), entry("Group:*", "Sub")),
        )
    }
    policies = Policies(acls.all()["User:RocketMQ"])
    asked = [("Topic", "topicB", "Pub"), ("Topic", "topicC", "Pub"), ("Topic", "other", "Sub"), ("Group", "g", "Sub")]
    assert [policies.decide(kind, name, (action,), "").is_allowed for kind, name, action in asked] == [
        True, False, False, True,
    ]  # fmt: skip
    assert "globalWhiteRemoteAddresses are not migrated" in caplog.text
    assert "account rocketmq2: whiteRemoteAddress is not migrated" in caplog.text
    assert "87654321" not in caplog.text


def test_users_who_are_there_already_stay(tmp_path: Path) -> None:
    meta = conf(tmp_path, FILE)
    changed = UserInfo("RocketMQ", "changed", "Normal", "disable")
    meta.metadata.users.put(changed)
    run(meta)
    assert meta.metadata.users.get("RocketMQ") == changed
    assert meta.metadata.acls.all() == {}
    assert meta.metadata.users.get("rocketmq2") is not None


def test_a_slave_leaves_it_to_its_master(tmp_path: Path) -> None:
    meta = conf(tmp_path, FILE, broker_role="SLAVE", broker_id=1)
    run(meta)
    assert not meta.metadata.users.all()


def account(lines: str) -> str:
    return "accounts:\n- accessKey: RocketMQ\n  secretKey: 12345678\n" + lines


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("accounts: x", "no list of accounts"),
        (account("  topicPerms: T=PUB\n"), "topicPerms: it is no list"),
        (account("  topicPerms:\n  - T\n"), "'T' is no permission; write name=PUB"),
        (account("  topicPerms:\n  - T=ANY\n"), "Topic:T: 'ANY' is no permission; give DENY, PUB, SUB or PUB|SUB"),
        (account("  defaultGroupPerm: PUB|DENY\n"), "is no permission"),
        (account("  topicPerms:\n  - a*b=PUB\n"), "account RocketMQ: The resource is wrong"),
        ("accounts:\n- accessKey: a name with blanks\n  secretKey: 12345678\n", "has blanks"),
    ],
)
def test_a_wrong_file_stops_the_start(tmp_path: Path, text: str, reason: str) -> None:
    meta = conf(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        run(meta)
    assert reason in str(error.value)
    assert "plain_acl.yml" in str(error.value)
    assert "12345678" not in str(error.value)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    meta = conf(tmp_path, FILE)
    (tmp_path / "plain_acl.yml").chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        run(meta)


def test_the_option_needs_the_file() -> None:
    with pytest.raises(ConfigError, match="aclFile: migrateAuthFromV1Enabled needs the accounts"):
        options(migrate_auth_from_v1_enabled=True)
