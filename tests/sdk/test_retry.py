"""Which failures are worth another try."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcommon.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    NoNameServer,
    ProtocolError,
    RequestTimeout,
    RouteNotFound,
    SkylarkError,
    TooManyRequests,
    UserError,
    WrongBroker,
)
from remoting.protocol.codes import ResponseCode
from sdk.retry import FailedTries, Outcome, is_transient, outcome_of

ACL = "org.apache.rocketmq.acl.common.AclException: "
CODES = [code for name, code in vars(ResponseCode).items() if name.isupper()]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConnectFailed("a:1", "refused"), Outcome.NOTHING),
        (WrongBroker("a:1", "broker-a", "broker-b"), Outcome.NOTHING),
        (TooManyRequests("a:1", 9), Outcome.NOTHING),
        (BrokerError(ResponseCode.SYSTEM_BUSY, "busy"), Outcome.NOTHING),
        (BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, "stopping"), Outcome.NOTHING),
        (BrokerError(ResponseCode.GO_AWAY, "leaving"), Outcome.NOTHING),
        (BrokerError(ResponseCode.NOT_LEADER_FOR_QUEUE, "not I"), Outcome.NOTHING),
        (ConnectionLost("a:1"), Outcome.UNKNOWN),
        (RequestTimeout("a:1", 310, 1000), Outcome.UNKNOWN),
        (BrokerError(ResponseCode.SYSTEM_ERROR, "broken"), Outcome.UNKNOWN),
        (BrokerError(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough"), Outcome.NOTHING),
        (BrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "what?"), Outcome.REFUSED_HERE),
        (BrokerError(ResponseCode.NO_PERMISSION, "no"), Outcome.REFUSED_HERE),
        (BrokerError(ResponseCode.TOPIC_NOT_EXIST, "no"), Outcome.REFUSED_HERE),
        (BrokerError(ResponseCode.INVALID_PARAMETER, "request queueId[3] is illegal, Topic"), Outcome.REFUSED_HERE),
        (BrokerError(ResponseCode.INVALID_PARAMETER, "bad"), Outcome.REFUSED),
        (BrokerError(ResponseCode.MESSAGE_ILLEGAL, "no"), Outcome.REFUSED),
        (BrokerError(ResponseCode.SYSTEM_ERROR, f"{ACL}No default permission for topic-a"), Outcome.REFUSED_HERE),
        (BrokerError(ResponseCode.SYSTEM_ERROR, f"{ACL}Check signature failed for accessKey=a"), Outcome.REFUSED),
        (BrokerError(ResponseCode.SYSTEM_ERROR, f"{ACL}No acl config for a"), Outcome.REFUSED),
        (BrokerError(ResponseCode.NO_PERMISSION, "check signature failed."), Outcome.REFUSED),
        (BrokerError(ResponseCode.NO_PERMISSION, "username cannot be null"), Outcome.REFUSED),
        (ProtocolError("odd"), Outcome.REFUSED),
        (RouteNotFound("t"), Outcome.REFUSED),
        (RouteNotFound("t", is_passing=True), Outcome.NOTHING),
    ],
)
def test_what_a_failed_request_did(error: SkylarkError, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome


@given(st.sampled_from(CODES))
def test_an_answer_passes_only_when_the_server_did_nothing_for_now(code: int) -> None:
    error = BrokerError(code, "")
    assert is_transient(error) == (outcome_of(error) is Outcome.NOTHING)


def test_a_read_goes_on_without_an_answer() -> None:
    for error in (ConnectionLost("a:1"), RequestTimeout("a:1", 11, 1), NoNameServer("a:1", "refused")):
        assert is_transient(error)
    assert not is_transient(RouteNotFound("t")) and not is_transient(UserError("no"))


OUTCOMES = st.sampled_from(list(Outcome))


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), OUTCOMES, st.booleans())), st.integers(0, 4))
def test_only_tries_that_may_have_stored_it_are_bounded(tries: list[tuple[str, Outcome, bool]], retries: int) -> None:
    failed = FailedTries()
    error = ConnectFailed("a", "refused")
    for number, (addr, outcome, elsewhere) in enumerate(tries, 1):
        failed.add(addr, error, outcome)
        outcomes = [each for _, each, _ in tries[:number]]
        unknown, refused = outcomes.count(Outcome.UNKNOWN), outcomes.count(Outcome.REFUSED_HERE)
        goes_on = failed.may_go_on(outcome, retries, elsewhere=elsewhere)
        if outcome is Outcome.REFUSED or unknown > retries:
            assert not goes_on
        elif outcome is Outcome.REFUSED_HERE:
            assert goes_on == (elsewhere or refused <= retries)
        else:
            assert goes_on, "what stored nothing costs no retry"
        assert failed.count == number
        assert sorted(failed.avoid) == sorted({each for each, _, _ in tries[:number]})
