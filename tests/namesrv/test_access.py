"""Who may do what: each request against each kind of client."""

import pytest

from skylark.mqcommon.acl_accounts import Account
from skylark.mqcommon.errors import ConfigError, RequestRefused
from skylark.namesrv.access import QUERIES, REGISTRATIONS, check_access
from skylark.namesrv.namesrv import Namesrv
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.plain_codes import plain_codes
from skylark.remoting.protocol.requests.clients import CHALLENGE
from skylark.remoting.protocol.requests.registrations import (
    BROKER_HEARTBEAT,
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
)
from skylark.remoting.protocol.requests.routes import (
    ADD_WRITE_PERM_OF_BROKER,
    DELETE_KV_CONFIG,
    DELETE_TOPIC_IN_NAMESRV,
    FORGET_BROKER,
    GET_NAMESRV_CONFIG,
    PUT_KV_CONFIG,
    REGISTER_TOPIC_IN_NAMESRV,
    UPDATE_NAMESRV_CONFIG,
    WIPE_WRITE_PERM_OF_BROKER,
)
from skylark.remoting.protocol.signature import Credentials, WholeSignatures, sign

ACCOUNTS = {
    "administrator": Account("administrator", "secret-1", admin=True),
    "application": Account("application", "secret-2"),
    "broker": Account("broker", "secret-3", registers=True),
}
ADMIN, USER = Credentials("administrator", "secret-1"), Credentials("application", "secret-2")
BROKER = Credentials("broker", "secret-3")
WRONG, UNKNOWN = Credentials("administrator", "secret-2"), Credentials("stranger", "secret-1")
CHANGES = (
    REGISTER_BROKER.code, UNREGISTER_BROKER.code, PUT_KV_CONFIG.code, DELETE_KV_CONFIG.code,
    WIPE_WRITE_PERM_OF_BROKER.code, ADD_WRITE_PERM_OF_BROKER.code, DELETE_TOPIC_IN_NAMESRV.code,
    REGISTER_TOPIC_IN_NAMESRV.code, UPDATE_NAMESRV_CONFIG.code, GET_NAMESRV_CONFIG.code,
    QUERY_DATA_VERSION.code, BROKER_HEARTBEAT.code, FORGET_BROKER.code, 9_999,
)  # fmt: skip


def refusal(code: int, who: Credentials | None, *, open_queries: bool = True, plain: str | None = None) -> str:
    """Why the request is refused; "" when it is not. ``plain``: plainSignatureCodes, for RocketMQ's signature."""
    request = Command(code, {"a": "b"}, b"body")
    whole = WholeSignatures("challenge")
    if who is not None and plain is None:
        WholeSignatures("challenge").sign(request, who)
    elif who is not None:
        sign(request, who)
    try:
        check_access(
            request, ACCOUNTS, whole, open_queries=open_queries, host="10.0.0.7", plain=plain_codes(plain or "")
        )
    except RequestRefused as refused:
        assert refused.code == ResponseCode.NO_PERMISSION
        return refused.remark
    return ""


@pytest.mark.parametrize("code", CHANGES)
def test_changes_are_for_administrators(code: int) -> None:
    assert not refusal(code, ADMIN)
    assert refusal(code, USER).endswith("account application has no admin: true")
    assert refusal(code, None).endswith("and has no signature")
    assert refusal(code, WRONG) == "Check signature failed for accessKey=administrator"
    assert refusal(code, UNKNOWN) == "No acl config for stranger in this NameServer's registrationUsers or aclFile"
    # The C++ client without credentials.
    assert refusal(code, Credentials("", "")).endswith("and has no signature")


@pytest.mark.parametrize("code", CHANGES)
def test_users_who_register_brokers_change_nothing_else(code: int) -> None:
    why = refusal(code, BROKER)
    assert (not why) == (code in REGISTRATIONS)
    assert not why or why.endswith("account broker has no admin: true")


@pytest.mark.parametrize(
    "text", ["x", "{}", "[1]", '[{"accessKey":"a"}]', '[{"accessKey":"a","secretKey":"hidden","x":1}]',
             '[{"accessKey":"a","secretKey":"hidden","admin":"true"}]', '[{"accessKey":"","secretKey":"hidden"}]']
)  # fmt: skip
def test_registration_users_that_cannot_be_read_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(ConfigError, match=r"registrationUsers: .*give ") as refused:
        NamesrvOptions(registration_users=text)
    assert "hidden" not in str(refused.value)
    assert "hidden" not in repr(NamesrvOptions(registration_users='[{"accessKey":"a","secretKey":"hidden"}]'))


def test_a_registration_user_stands_there_once() -> None:
    with pytest.raises(ConfigError, match="registrationUsers: a is there twice"):
        NamesrvOptions(registration_users='[{"accessKey":"a","secretKey":"b"},{"accessKey":"a","secretKey":"c"}]')


@pytest.mark.parametrize(
    ("plain", "served"),
    [
        ("", set()),
        ("administrator@10.0.0.7:103,104", {103, 104}),
        ("10.0.0.0/8:322;administrator:904", {322, 904}),
        ("application:103;administrator@10.0.0.8:103;10.0.0.8:103", set()),
    ],
)
def test_changes_with_rocketmqs_signature_are_for_those_whom_an_option_names(plain: str, served: set[int]) -> None:
    for code in CHANGES:
        why = refusal(code, ADMIN, plain=plain)
        assert (not why) == (code in served)
        assert code in served or f"add administrator@10.0.0.7:{code} to plainSignatureCodes" in why
        assert refusal(code, WRONG, plain=plain) == "Check signature failed for accessKey=administrator"
        assert refusal(code, USER, plain="application:1,103") if code == 103 else True
    for code in QUERIES:
        assert not refusal(code, USER, plain=plain, open_queries=False)


@pytest.mark.parametrize("code", sorted(QUERIES))
def test_queries_are_open_unless_the_option_says_otherwise(code: int) -> None:
    for who in (ADMIN, USER, WRONG, UNKNOWN, None):
        assert not refusal(code, who)
        assert bool(refusal(code, who, open_queries=False)) == (who in (WRONG, UNKNOWN, None))


def test_a_request_that_was_changed_on_its_way_is_refused() -> None:
    request = Command(PUT_KV_CONFIG.code, {"key": "a"}, b"body")
    sign(request, ADMIN)
    request.body = b"other"
    with pytest.raises(RequestRefused, match="Check signature failed"):
        check_access(request, ACCOUNTS, open_queries=True)


def test_every_request_is_a_query_or_a_change() -> None:
    # Every server gives challenges, which are asked for before anything can be signed.
    assert {*CHANGES, *QUERIES, CHALLENGE.code} == {*Namesrv(NamesrvOptions())._server.codes, 9_999}
