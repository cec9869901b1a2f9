"""Every error is one line that says what to do next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import (
    TLS_GUESS,
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    NoNameServer,
    NotNameServer,
    NotRocketMQ,
    ProtocolError,
    RequestTimeout,
    RouteNotFound,
    SendFailed,
    SkylarkError,
    TlsFailed,
    TooManyRequests,
    UserError,
)
from skylark.sdk.admin.failures import explain, first_of

ADDR = "127.0.0.1:10911"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UserError("do that"), ["do that"]),
        (ConnectFailed(ADDR, "refused"), [ADDR, "refused", "check that a server listens"]),
        (ConnectionLost(ADDR), [ADDR, "try again"]),
        (ConnectionLost(ADDR, TLS_GUESS), [ADDR, "--tls-config"]),
        (NotNameServer(BrokerError(3, "no", ADDR), "b"), [ADDR, "is no NameServer (the broker b listens there)"]),
        (NotRocketMQ(ADDR, "gRPC"), [f"{ADDR} speaks gRPC, not RocketMQ's; check that the address is right (-n, -b,"]),
        (NotRocketMQ(ADDR, "gRPC", is_nameserver=True), ["not RocketMQ's: give the address of a NameServer"]),
        (RequestTimeout(ADDR, 25, 5000), [ADDR, "5000 ms", "--timeout"]),
        (TooManyRequests(ADDR, 9), [ADDR]),
        (RouteNotFound("T"), ["topic T", "topicList"]),
        (BrokerError(26, "no group", ADDR), [ADDR, "code 26", "no group", "updateSubGroup"]),
        (BrokerError(99, "odd", ADDR), ["code 99: odd"]),
        (BrokerError(206, "not online", ADDR), ["start a consumer of this group"]),
        (BrokerError(1, "org.x.AclException: No acl config for a", ADDR), ["No acl config for a", "--credentials"]),
        (ProtocolError("garbage"), ["garbage"]),
        (SkylarkError(), ["SkylarkError"]),
    ],
)
def test_lines(error: SkylarkError, words: list[str]) -> None:
    text = explain(error)
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    "error",
    [TlsFailed(ADDR, "not trusted: do that"), BrokerError(17, "topic[%LMQ%a] not exist: set enableLmq=true", ADDR)],
)
def test_errors_with_a_remedy_of_their_own_get_no_other(error: SkylarkError) -> None:
    assert explain(error).endswith(("do that", "enableLmq=true"))


def test_one_sentence_says_that_no_nameserver_answers() -> None:
    missing = NoNameServer("127.0.0.1:9876", "cannot connect to 127.0.0.1:9876: Connection refused")
    missing.__cause__ = ConnectFailed("127.0.0.1:9876", "Connection refused")
    missing.add_note("waited for start_timeout_ms=5000; with None the start does not wait")
    failed = SendFailed(f"the message for orders was not sent within 5000 ms: {missing}")
    failed.__cause__ = missing
    assert explain(failed) == explain(missing)
    assert explain(missing) == (
        "no NameServer answers at 127.0.0.1:9876 (Connection refused): start one with skylark dev, or give its address "
        "by -n or NAMESRV_ADDR"
    )
    missing.__cause__ = RequestTimeout("127.0.0.1:9876", 105, 3000)
    assert explain(missing) == str(missing)


def test_a_send_to_another_server_than_a_nameserver_is_told_as_a_wrong_address() -> None:
    wrong = NotRocketMQ("127.0.0.1:8088", "HTTP", is_nameserver=True)
    failed = SendFailed(f"the message for orders was not sent within 5000 ms: {wrong}")
    failed.__cause__ = wrong
    assert explain(failed) == str(wrong)


def test_an_illegal_message_is_told_what_to_check() -> None:
    refusal = BrokerError(13, "timer message illegal", ADDR)
    error = SendFailed(f"message for t was not stored: {ADDR} answered code 13: {refusal.remark}")
    error.__cause__ = refusal
    assert explain(error).endswith("timer message illegal; check the size, the properties and the delay of the message")


def test_a_cause_that_the_error_tells_is_not_told_twice() -> None:
    failed = SendFailed(f"not sent: {RequestTimeout(ADDR, 10, 3000)}")
    failed.__cause__ = RequestTimeout(ADDR, 10, 3000)
    assert explain(failed).count("3000 ms") == 1


def test_the_cause_of_a_failed_send() -> None:
    error = SendFailed("not sent in 3 tries")
    error.__cause__ = ConnectFailed(ADDR, "refused")
    assert explain(error).startswith(f"not sent in 3 tries (cannot connect to {ADDR}")


def test_what_the_broker_said_to_a_send_is_told_once() -> None:
    refusal = BrokerError(16, "Sending message to topic[t] is forbidden.\nSee more", ADDR)
    error = SendFailed(f"message for t was not stored: {ADDR} answered code 16: {refusal.remark}")
    error.__cause__ = refusal
    assert explain(error) == (
        f"message for t was not stored: {ADDR} answered code 16: Sending message to topic[t] is forbidden; "
        "no permission: check the permissions of the topic, the group and the broker, and who you are (--credentials)"
    )


@given(st.text(), st.integers())
def test_a_servers_words_stay_one_line(remark: str, code: int) -> None:
    assert len(explain(BrokerError(code, remark, ADDR)).splitlines()) == 1


def test_the_first_of_a_kind_in_groups() -> None:
    wanted = UserError("here")
    error = BaseExceptionGroup("a", [KeyError(), ExceptionGroup("b", [ValueError(), wanted])])
    assert first_of(error, SkylarkError) is wanted
    assert first_of(error, KeyboardInterrupt) is None
