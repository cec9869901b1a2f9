"""The accounts of one file: what is read, and errors that name the file and the key but show no secret."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.security.accounts.account_file import parse_file
from skylark.broker.security.accounts.permissions import DENY, PUB, SUB
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.yaml_documents import MAX_DEPTH, parse_yaml
from skylark.remoting.protocol.body import DataVersion

# As RocketMQ's conf/plain_acl.yml of 4.9, with a version that a command has written.
PLAIN_ACL = """
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*

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
  - groupC=SUB

- accessKey: rocketmq2
  secretKey: 12345678
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
dataVersion:
- counter: 3
  timestamp: 1700000000000
"""
HEAD = "accounts:\n- accessKey: account-1\n  secretKey: hidden-secret\n"


def test_rocketmqs_file_is_read() -> None:
    file = parse_file(parse_yaml(PLAIN_ACL, "f"), "f")
    assert file.white.texts == ("10.10.103.*", "192.168.0.*")
    assert file.version == DataVersion(0, 1700000000000, 3)
    one, two = file.accounts.values()
    assert (one.access_key, one.secret_key, one.admin, one.default_topic, one.default_group) == (
        "RocketMQ", "12345678", False, DENY, SUB,
    )  # fmt: skip
    assert one.topics == {"topicA": DENY, "topicB": PUB | SUB, "topicC": SUB}
    assert one.groups == {"groupA": DENY, "groupB": PUB | SUB, "groupC": SUB}
    assert (two.admin, two.white.texts, two.default_topic, two.default_group) == (True, ("192.168.1.*",), DENY, DENY)
    assert "12345678" not in repr(file)


@pytest.mark.parametrize("text", ["", "accounts:\n", "globalWhiteRemoteAddresses:\n", "accounts: []\n", "# nothing\n"])
def test_a_file_may_have_no_accounts(text: str) -> None:
    assert parse_file(parse_yaml(text, "f"), "f").accounts == {}


def test_groups_may_be_named_by_their_retry_topics() -> None:
    lines = "  topicPerms:\n  - '%RETRY%a=SUB'\n  groupPerms:\n  - '%RETRY%b=SUB'\n"
    (account,) = parse_file(parse_yaml(HEAD + lines, "f"), "f").accounts.values()
    assert account.groups == {"a": SUB, "b": SUB}


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ("  topicPerm:\n  - a=PUB\n", "account account-1: 'topicPerm' is no key that this broker knows; did you mean"),
        ("  roles: x\n", "f: account account-1: 'roles' is no key that this broker knows; known are accessKey"),
        ("  topicPerms:\n  - a=PUP\n", "f: account account-1: topicPerms: a: 'PUP' is no permission: give DENY"),
        ("  topicPerms:\n  - a=\n", "topicPerms: a: 'nothing' is no permission"),
        ("  topicPerms:\n  - a\n", "topicPerms: 'a' is no permission; write name=PUB|SUB"),
        ("  topicPerms:\n  - =PUB\n", "topicPerms: '=PUB' is no permission"),
        ("  topicPerms: a=PUB\n", "topicPerms: it must be a list of texts"),
        ("  groupPerms:\n  - [a]\n", "groupPerms: it must be a list of texts"),
        ("  groupPerms:\n  - a=ANY\n", "groupPerms: a: 'ANY' is no permission"),
        ("  defaultTopicPerm: ALL\n", "defaultTopicPerm: 'ALL' is no permission"),
        ("  defaultGroupPerm: [PUB]\n", "defaultGroupPerm: it must be a text"),
        ("  whiteRemoteAddress: 10.0.0\n", "whiteRemoteAddress: '10.0.0' is no address: give"),
        ("  whiteRemoteAddress: []\n", "whiteRemoteAddress: it must be a text"),
        ("  admin: 1\n", "admin must be true or false"),
        ("  admin: true\n  admin: false\n", "f:5: admin is there twice"),
        ("- accessKey: account-1\n  secretKey: hidden-secret\n", "accessKey account-1 is there twice"),
        ("- accessKey: account-2\n  secretKey: hidden\n", "account 2: secretKey must be a text of at least 7"),
        ("globalWhiteRemoteAddresses:\n- 10.*\n", "f: globalWhiteRemoteAddresses: '10.*' is no address"),
        ("globalWhiteRemoteAddresses: 10.0.0.1\n", "globalWhiteRemoteAddresses: it must be a list"),
        ("globalWhiteRemoteAddress:\n- 10.0.0.1\n", "f: 'globalWhiteRemoteAddress' is no key that this broker knows"),
        ("dataVersion:\n  counter: 1\n", "dataVersion: it must be a list"),
        ("dataVersion:\n- counter: x\n", "dataVersion: it must be a list"),
        ("\tx: y\n", "f:4: not YAML"),
        ("? [a, b]\n: c\n", "f:1: a key is no text"),
        ("--- \nb: c\n", "f:"),
        ("x: " + "[" * 100, f"f: more than {MAX_DEPTH} levels deep"),
        # PyYAML has had a limit of its own since 6.0.4, and says so in its own words.
        ("x: " + "[" * 100_000, "f:"),
        ("x: &a [*a]\n", "is no key"),
    ],
)  # fmt: skip
def test_mistakes_are_named(lines: str, error: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(error)) as raised:
        parse_file(parse_yaml(HEAD + lines, "f"), "f")
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("text", ["- a", "text", "'"])
def test_a_file_without_keys_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f"):
        parse_file(parse_yaml(text, "f"), "f")


KEYS = ["accounts", "accessKey", "secretKey", "admin", "topicPerms", "groupPerms", "dataVersion", "whiteRemoteAddress"]
YAML = st.text(alphabet="ab:-[]{}&*!|>'\"#,?% \n\t=\x00\x85\ud800", max_size=40) | st.recursive(
    st.sampled_from(["account-1", "a=PUB", "true", "10.0.0.*", "", "counter"]),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(KEYS), each, max_size=4),
).map(str)


@given(YAML)
def test_any_text_is_a_file_or_a_clear_error(text: str) -> None:
    try:
        parse_file(parse_yaml(text, "f"), "f")
    except ConfigError as error:
        assert str(error).startswith("f:")


def test_aliases_cost_no_memory() -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40))]
    with pytest.raises(ConfigError, match="'a0' is no key"):
        parse_file(parse_yaml("\n".join(lines), "f"), "f")
