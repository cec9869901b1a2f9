"""The order of checks, and that explanations say what the checks do."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.security.access import needs_about, needs_of
from skylark.broker.security.accounts.account_file import AccountFile, parse_file
from skylark.broker.security.accounts.rules import AccountRules
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.yaml_documents import parse_yaml
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.clients import HEART_BEAT
from skylark.remoting.protocol.requests.groups import UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
from skylark.remoting.protocol.requests.pops import ACK_MESSAGE
from skylark.remoting.protocol.requests.pulls import PULL_MESSAGE
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE_V2
from skylark.remoting.protocol.rights import Need
from skylark.remoting.protocol.signature import Credentials, WholeSignatures
from tests.broker.security.accounts.acl_files import SECRET, account

PERMISSIONS = ["DENY", "PUB", "SUB", "PUB|SUB"]


def file_of(text: str, path: str = "f") -> AccountFile:
    return parse_file(parse_yaml(text, path), path)


def needs_nothing(request: Command) -> Sequence[Need]:
    raise AssertionError("not asked")


def test_white_lists_are_asked_before_everything_else() -> None:
    rules = AccountRules(
        [file_of("globalWhiteRemoteAddresses:\n- 10.0.0.1\n"), file_of("globalWhiteRemoteAddresses:\n- 10.0.0.2\n")]
    )
    for host in ("10.0.0.1", "10.0.0.2"):
        assert rules.refusal(Command(17), host, needs_nothing) is None
    refusal = rules.refusal(Command(17), "10.0.0.3", needs_nothing)
    assert refusal is not None and refusal.text == "No accessKey is configured"


def test_bodies_of_who_did_not_sign_are_not_read() -> None:
    rules = AccountRules([file_of("accounts:\n" + account("account-1"))])
    for ext in ({}, {"AccessKey": "account-1", "Signature": "x"}, {"AccessKey": "account-2"}):
        assert rules.refusal(Command(34, dict(ext), b"[" * 1000), "10.0.0.1", needs_nothing) is not None


def test_two_files_with_one_account_are_an_error_that_names_both() -> None:
    text = "accounts:\n" + account("account-1")
    with pytest.raises(ConfigError, match="account account-1 is in a and in b; remove one of the two"):
        AccountRules([file_of(text, "a"), file_of(text, "b")])


@given(st.data())
def test_explanations_are_what_checks_do(data: st.DataObject) -> None:
    """For any accounts, white lists and requests."""
    pick = data.draw
    white = pick(st.sampled_from(["10.0.0.1", "10.0.0.*", "10.1.0.0"]))
    lines = []
    for key in ("defaultTopicPerm", "defaultGroupPerm"):
        lines += [f"{key}: {pick(st.sampled_from(PERMISSIONS))}"] * pick(st.booleans())
    for key, name in (("topicPerms", "T"), ("groupPerms", "g")):
        lines += [f"{key}:", f"- {name}={pick(st.sampled_from(PERMISSIONS))}"] * pick(st.booleans())
    lines += ["admin: true"] * pick(st.sampled_from([0, 0, 0, 1]))
    lines += [f"whiteRemoteAddress: {white}"] * pick(st.sampled_from([0, 0, 1]))
    text = f"globalWhiteRemoteAddresses:\n- {white}\n" * pick(st.sampled_from([0, 0, 1])) + "accounts:\n"
    rules = AccountRules([file_of(text + account("account-1", *lines))], white_skips_all=pick(st.booleans()))
    name = pick(st.sampled_from(["account-1", "account-1", "account-2", ""]))
    topic, group = pick(st.sampled_from(["T", "U", "RMQ_SYS_TRACE_TOPIC"])), pick(st.sampled_from(["g", "h"]))
    code = pick(st.sampled_from([10, 310, 11, 17, 25, 30, 351, 36, ACK_MESSAGE.code]))
    request = Command(code, {"topic": topic, "b": topic, "consumerGroup": group, "group": group})
    if name:
        WholeSignatures("challenge").sign(request, Credentials(name, SECRET))
    refusal = rules.refusal(request, "10.0.0.1", needs_of, WholeSignatures("challenge"))
    explained = rules.explain(name, "10.0.0.1", needs_about(code, topic, group), code)
    assert explained.is_allowed is (refusal is None)
    if refusal is not None:
        assert explained.text == refusal.remark
        assert not refusal.rule or refusal.rule.startswith(explained.steps[-1].rule)


def test_needs_about_leave_out_what_is_not_named() -> None:
    assert needs_about(PULL_MESSAGE.code, "T", "") == [Need("Topic", "T", ("Sub",))]
    assert needs_about(HEART_BEAT.code, "T", "g") == [Need("Group", "g", ("Sub",)), Need("Topic", "T", ("Sub",))]
    assert needs_about(SEND_MESSAGE_V2.code, "", "") == []
    assert needs_about(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.code, "", "g") == [Need("Group", "g", ("Create",))]
    assert needs_about(4711, "", "") == [Need("Cluster", "", ("Update",))]
