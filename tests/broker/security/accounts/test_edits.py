"""Changes of a file of accounts: what is not changed stays as it is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.security.accounts.account_file import parse_file
from skylark.broker.security.accounts.edits import AccountChange, AccountDocument
from skylark.broker.security.accounts.permissions import permission_text
from skylark.mqcommon.yaml_documents import parse_yaml
from skylark.remoting.protocol.body import DataVersion

TEXT = """\
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: 0123456789
  admin: false
  topicPerms:
  - topicA=DENY
- accessKey: rocketmq2
  secretKey: "12345678"
  whiteRemoteAddress: 192.168.1.*
  admin: true
"""
SECRET = "secret-1"


def changed(change: AccountChange, text: str = TEXT) -> str:
    document = AccountDocument(text, "f")
    document.put_account(change)
    return document.text()


def test_only_what_is_given_changes() -> None:
    assert changed(AccountChange("RocketMQ")) == TEXT
    assert changed(AccountChange("RocketMQ", admin=True)) == TEXT.replace("admin: false", "admin: true")
    expected = TEXT.replace("- topicA=DENY", "- a=PUB\n  - b=SUB\n  defaultGroupPerm: PUB|SUB")
    assert changed(AccountChange("RocketMQ", topics=["a=PUB", "b=SUB"], default_group="PUB|SUB")) == expected


def test_a_new_account_is_the_last() -> None:
    # A secret of digits stays a text, also for RocketMQ.
    new = "- accessKey: account-3\n  secretKey: '87654321'\n  whiteRemoteAddress: '*'\n"
    assert changed(AccountChange("account-3", "87654321", "*")) == TEXT + new


@pytest.mark.parametrize("text", ["", "accounts:\n", "accounts: []\n"])
def test_a_new_account_in_an_empty_file(text: str) -> None:
    assert changed(AccountChange("account-3", SECRET), text) == (
        f"accounts:\n- accessKey: account-3\n  secretKey: {SECRET}\n"
    )


def test_lists_can_be_emptied() -> None:
    assert changed(AccountChange("RocketMQ", topics=[])) == TEXT.replace("\n  - topicA=DENY", " []")


def test_the_rest_of_the_file() -> None:
    document = AccountDocument(TEXT, "f")
    document.delete_account("rocketmq2")
    document.put_white(["*", "10.0.0.{1,2}"])
    document.put_version(DataVersion(0, 1700000000000, 4))
    assert document.text() == (
        "globalWhiteRemoteAddresses:\n- '*'\n- 10.0.0.{1,2}\n"
        + TEXT[TEXT.index("accounts") : TEXT.index("- accessKey: rocketmq2")]
        + "dataVersion:\n- counter: 4\n  timestamp: 1700000000000\n"
    )


PERMISSIONS = st.sampled_from(["DENY", "PUB", "SUB", "PUB|SUB"])
# No controls: names of topics have none, and YAML cannot hold all of them.
CHARACTERS = st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="=\x7f\x85\xa0")
WORDS = st.text(CHARACTERS, min_size=7, max_size=9)


@given(WORDS, WORDS, st.lists(st.tuples(WORDS, PERMISSIONS), max_size=3, unique_by=lambda row: row[0]), PERMISSIONS)
def test_what_was_put_is_read(name: str, secret: str, topics: list[tuple[str, str]], default: str) -> None:
    rows = [f"{topic}={permission}" for topic, permission in topics]
    text = changed(AccountChange(name, secret, admin=False, default_topic=default, topics=rows))
    account = parse_file(parse_yaml(text, "f"), "f").accounts[name]
    assert account.secret_key == secret
    assert {topic: permission_text(bits) for topic, bits in account.topics.items()} == dict(topics)
    assert permission_text(account.default_topic) == default
