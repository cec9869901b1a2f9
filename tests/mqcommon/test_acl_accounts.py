"""Accounts in the form of plain_acl.yml."""

import re
from pathlib import Path

import pytest
import yaml

from skylark.mqcommon.acl_accounts import Account, parse_accounts, read_accounts
from skylark.mqcommon.errors import UserError

# As RocketMQ's conf/plain_acl.yml.
PLAIN_ACL = """
globalWhiteRemoteAddresses:
- 10.10.103.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB

- accessKey: rocketmq2
  secretKey: 12345678
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
"""


def secret_file(folder: Path, text: str) -> str:
    file = folder / "plain_acl.yml"
    file.touch(0o600)
    file.write_text(text)
    return str(file)


def test_rocketmqs_file_is_read(tmp_path: Path) -> None:
    accounts = read_accounts(secret_file(tmp_path, PLAIN_ACL))
    assert accounts == {
        "RocketMQ": Account("RocketMQ", "12345678", False),
        "rocketmq2": Account("rocketmq2", "12345678", True),
    }
    assert "12345678" not in repr(accounts)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "has no list of accounts"),
        ("accounts: a", "has no list of accounts"),
        ("- a", "has no list of accounts"),
        ("accounts:\n- hidden12", "account 1: it is not a list of keys and values"),
        ("accounts:\n- accessKey: abcdefg", "account 1: secretKey must be a text of at least 7 characters"),
        ("accounts:\n- {accessKey: abc, secretKey: hidden12}", "account 1: accessKey must be a text of at least 7"),
        ("accounts:\n- {accessKey: [], secretKey: hidden12}", "account 1: accessKey must be a text"),
        ("accounts:\n- {accessKey: abcdefg, secretKey: hidden12, admin: yes}", "admin must be true or false"),
        ("accounts:\n- &a {accessKey: abcdefg, secretKey: hidden12}\n- *a", "accessKey abcdefg is there twice"),
        ("accounts:\n- accessKey: abcdefg\n  secretKey: 'hidden12\n", ":4: not YAML: found unexpected end of stream"),
        ("accounts:\n- accessKey: abcdefg\n\tsecretKey: hidden12\n", ":3: not YAML"),
    ],
)
def test_a_wrong_file_is_an_error_without_secrets(tmp_path: Path, text: str, error: str) -> None:
    path = secret_file(tmp_path, text)
    with pytest.raises(UserError, match=re.escape(error)) as raised:
        read_accounts(path)
    assert "hidden" not in str(raised.value) and path in str(raised.value)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = secret_file(tmp_path, PLAIN_ACL)
    Path(path).chmod(0o644)
    with pytest.raises(UserError, match="lets others use it"):
        read_accounts(path)


def test_documents_of_the_parser_are_texts() -> None:
    assert parse_accounts(yaml.load(PLAIN_ACL, yaml.BaseLoader), "x").keys() == {"RocketMQ", "rocketmq2"}
