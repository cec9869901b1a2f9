"""Which failures are worth another try."""

from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import (
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
from skylark.remoting.protocol.codes import ResponseCode
from skylark.sdk.retry import FailedTries, Outcome, is_refusal, is_transient, outcome_of, until_answered

ACL = "org.apache.rocketmq.acl.common.AclException: "
CODES = [code for name, code in vars(ResponseCode).items() if name.isupper()]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConnectFailed("a:1", "refused"), Outcome.NOTHING),
        (WrongBroker("a:1", "broker-a", "broker-b"), Outcome.NOTHING),
        (TooManyRequests("a:1", 9), Outcome.NOTHING),
        (BrokerError(ResponseCode.SYSTEM_BUSY, "busy"), Outcome.NOTHING),
        (BrokerError(ResponseCode.FLOW_CONTROL, "too fast"), Outcome.NOTHING),
        (BrokerError(ResponseCode.POLLING_FULL, "too many"), Outcome.NOTHING),
        (BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, "stopping"), Outcome.NOTHING),
        (
            BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is drained and takes no messages"),
            Outcome.REFUSED_HERE,
        ),
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


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (BrokerError(16, "no permission"), True),
        (BrokerError(3, "request type 9 not supported"), True),
        (BrokerError(23, "parse failed"), True),
        (BrokerError(29, "bad"), True),
        (BrokerError(29, "queueId[9] is illegal"), False),
        (BrokerError(1, "org.apache.rocketmq.acl.common.AclException: no"), True),
        (BrokerError(1, "check signature failed"), True),
        (BrokerError(1, "exception"), False),
        (BrokerError(17, "no topic"), False),
        (BrokerError(2, "busy"), False),
        (ConnectFailed("a:1", "refused"), False),
        (RouteNotFound("t"), False),
        (None, False),
    ],
)
def test_a_refused_read_is_told_from_a_server_that_is_away(error: SkylarkError | None, refused: bool) -> None:
    assert is_refusal(error) is refused


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
        goes_on = failed.may_go_on(outcome, retries, other_broker=elsewhere)
        if outcome is Outcome.REFUSED or unknown > retries:
            assert not goes_on
        elif outcome is Outcome.REFUSED_HERE:
            assert goes_on == (elsewhere or refused <= retries)
        else:
            assert goes_on, "what stored nothing costs no retry"
        assert failed.count == number
        assert sorted(failed.avoid) == sorted({each for each, _, _ in tries[:number]})


BACKOFF = Backoff(0.05, 0.5, Random(0))


class Server:
    """Fails until ``up_at`` (trio's time)."""

    def __init__(self, error: SkylarkError, up_at: float) -> None:
        self.error = error
        self.up_at = up_at
        self.asked: list[float] = []

    async def ask(self) -> str:
        self.asked.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if trio.current_time() < self.up_at:
            raise self.error
        return "answer"


@pytest.mark.parametrize("code", [2, 14])
async def test_a_busy_server_is_asked_until_it_answers(autojump_clock: MockClock, code: int) -> None:
    server = Server(BrokerError(code, "busy"), trio.current_time() + 2)
    assert await until_answered(server.ask, 3_000, BACKOFF) == "answer"
    assert 5 < len(server.asked) < 20


async def test_the_last_try_is_at_the_deadline(autojump_clock: MockClock) -> None:
    server = Server(ConnectFailed("a:1", "refused"), trio.current_time() + 60)
    started = trio.current_time()
    with pytest.raises(ConnectFailed):
        await until_answered(server.ask, 3_000, BACKOFF)
    assert server.asked[-1] == pytest.approx(started + 3)
    assert len(server.asked) < 20


async def test_an_answer_is_not_asked_for_again(autojump_clock: MockClock) -> None:
    server = Server(BrokerError(17, "no such topic"), trio.current_time() + 1)
    with pytest.raises(BrokerError, match="no such topic"):
        await until_answered(server.ask, 3_000, BACKOFF)
    assert len(server.asked) == 1
