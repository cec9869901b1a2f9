"""What a consumer tells its program about its background work: `problem`, ``on_problem``, the log."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from skylark import Admin, Client, ConsumeFrom, Message, MessageExt, Problem, Producer, PushConsumer, aio, blocking
from skylark.broker.meta.client_handlers import MAX_NEW_GROUPS
from skylark.mqcommon.errors import SkylarkError
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.consumer import rebalance
from skylark.sdk.consumer.failures import Failures, HandlerErrors
from skylark.sdk.consumer.outcome import check_handler, check_result
from skylark.sdk.consumer.problems import MAX_PROBLEMS, QUIET_S, Problems
from skylark.sdk.consumer.retry_policy import RetryPolicy
from skylark.sdk.testing import Cluster, cluster_fixture
from tests.sdk.consumer.push_cluster import push_cluster
from tests.sdk.consumer.test_workers import settings_of
from tests.support.in_process import Servers
from tests.support.waiting import DEADLINE_S, until

in_threads = cluster_fixture(scope="module")


def kept(topic: str, **options: Any) -> dict[str, Any]:
    """Arguments of a consumer of everything in ``topic``."""
    return {"group": f"g-{topic}", "subscriptions": {topic: "*"}, "consume_from": ConsumeFrom.FIRST_OFFSET, **options}


# --- Problems


async def test_the_oldest_problem_that_is_not_over_is_shown(mock_clock: MockClock) -> None:
    told: list[Problem] = []
    problems = Problems(told.append)
    first, second, again = SkylarkError("a"), SkylarkError("b"), SkylarkError("c")
    assert problems.first is None
    problems.report("one", first)
    problems.report("two", second)
    problems.report("one", again)
    assert problems.first == Problem("one", again) and str(problems.first) == "one: c"
    problems.report("one", None)
    problems.report("never", None)
    assert problems.first == Problem("two", second)
    assert told == [Problem("one", first), Problem("two", second)]
    # What flickers is told once in a while.
    problems.report("one", first)
    assert len(told) == 2
    problems.report("one", None)
    mock_clock.jump(QUIET_S)
    problems.report("one", again)
    assert told[2:] == [Problem("one", again)]


async def test_their_number_is_bounded_and_a_callback_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fails(problem: Problem) -> None:
        raise ZeroDivisionError

    problems = Problems(fails)
    for number in range(MAX_PROBLEMS + 10):
        problems.report(f"queue {number}", SkylarkError("x"))
    assert len(problems._now) == len(problems._called_at) == MAX_PROBLEMS
    assert "on_problem failed with queue 0: x" in caplog.text and "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("package", [None, aio, blocking])
def test_a_callback_that_cannot_be_called_is_refused(package: Any) -> None:
    consumer = PushConsumer if package is None else package.PushConsumer

    async def waits(problem: Problem) -> None: ...

    for wrong, why in ((waits, "cannot be the async"), ("x", "must be a function"), (lambda: None, "one argument")):
        with pytest.raises(TypeError, match=f"on_problem .*{why}"):
            consumer("127.0.0.1:1", group="g", subscriptions={"t": "*"}, on_problem=wrong)


# --- handlers


def raised(kind: type[Exception], place: int) -> Exception:
    try:
        if place:
            raise kind("one")
        raise kind("other")
    except kind as error:
        return error


async def test_each_kind_of_error_of_a_handler_is_logged_with_one_traceback(caplog: pytest.LogCaptureFixture) -> None:
    class Fake:
        msg_id, queue = "m1", "q"

    errors = HandlerErrors(problems := Problems())
    messages = cast(list[MessageExt], [Fake(), Fake()])
    for error in [raised(ValueError, 0), raised(ValueError, 0), raised(ValueError, 1), raised(KeyError, 0)] * 2:
        errors.raised(messages, error, "it comes again")
    assert [record.exc_info is not None for record in caplog.records] == [True, False, True, True] + [False] * 4
    assert caplog.messages[0] == "the handler failed with message m1 of q and 1 more; it comes again"
    assert "(ValueError: other; the first such error was logged with its traceback)" in caplog.messages[1]
    assert problems.first is not None and problems.first.what == "the handler" and errors.is_failing
    errors.succeeded()
    assert problems.first is None and not errors.is_failing
    errors.took_too_long(messages[0], 5, "it is cancelled")
    assert problems.first is not None and "for more than 5 ms" in str(problems.first)


async def test_a_handler_that_raises_or_returns_what_it_may_not_is_a_problem_until_it_succeeds(
    cluster: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Problem] = []
    wrong: list[object] = [True, ZeroDivisionError("x"), None]

    def handle(message: MessageExt) -> Any:
        if isinstance(first := wrong.pop(0), Exception):
            raise first
        return first

    async with Producer(cluster.nameserver) as producer:
        await producer.send(Message("one", b"x"))
    async with PushConsumer(
        cluster.nameserver, **kept("one"), handler=handle, on_problem=told.append, orderly=True, suspend_ms=50
    ) as consumer:
        await until(lambda: consumer.consumed == 1, "it succeeds in the end")
        assert consumer.problem is None
    assert [str(problem) for problem in told] == [
        "the handler: TypeError: a handler returns None, a ConsumeResult or Later(...), not True: return None when the "
        "message is consumed, and ConsumeResult.LATER to get it again"
    ]
    assert "TypeError: a handler returns None" in caplog.text and "ZeroDivisionError: x" in caplog.text


@pytest.mark.parametrize(
    ("times", "broadcast", "error", "says"),
    [
        (0, False, ValueError(), "the message is delivered again later, up to 2 times; then it goes to %DLQ%g"),
        (1, False, None, "the message is delivered again later, once more; then it goes to %DLQ%g"),
        (1, True, None, "the message is delivered again later, once more; then it is dropped"),
        (2, False, ValueError(), "the message goes to %DLQ%g, after 3 failures"),
        (2, False, None, "the message goes to %DLQ%g, after 3 failures"),
        (2, True, ValueError(), "the message is dropped, after 3 failures"),
        (0, False, KeyError(), "the message becomes a dead letter at once"),
        (0, True, KeyError(), "the message is dropped"),
    ],
)
def test_the_log_says_what_becomes_of_a_message_on_which_the_handler_failed(
    times: int, broadcast: bool, error: Exception | None, says: str
) -> None:
    settings = settings_of(print, broadcast=broadcast, retry=RetryPolicy(attempts=3, dead_letter_on=KeyError))
    failures = Failures(settings, *cast(tuple[Any, Any, Any, Any], [None] * 4))
    message = cast(MessageExt, SimpleNamespace(reconsume_times=times))
    assert failures.what_next(message, error) == says


def test_the_callback_runs_in_the_loop_that_opened_the_consumer(in_threads: Cluster) -> None:
    in_threads.create_topic("aio")

    async def use() -> None:
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        problems: list[Problem] = []

        def tell(problem: Problem) -> None:
            assert asyncio.get_running_loop() is loop
            problems.append(problem)
            told.set()

        async def handle(message: MessageExt) -> None:
            raise ZeroDivisionError

        async with aio.Producer(in_threads.nameserver) as producer:
            await producer.send(Message("aio", b"x"))
        async with aio.PushConsumer(
            in_threads.nameserver, **kept("aio"), handler=handle, on_problem=tell
        ) as consumer:  # fmt: skip
            await asyncio.wait_for(told.wait(), 60)
            found = consumer.problem
            assert found is not None and found == problems[0] and found.what == "the handler"

    asyncio.run(use())


def test_a_blocking_consumer_tells_it_in_its_thread(in_threads: Cluster) -> None:
    in_threads.create_topic("threads")
    told, where = threading.Event(), list[threading.Thread]()

    def tell(problem: Problem) -> None:
        where.append(threading.current_thread())
        told.set()

    def handle(message: MessageExt) -> None:
        raise ZeroDivisionError

    with blocking.Producer(in_threads.nameserver) as producer:
        producer.send(Message("threads", b"x"))
    with blocking.PushConsumer(
        in_threads.nameserver, **kept("threads"), handler=handle, on_problem=tell
    ) as consumer:  # fmt: skip
        assert told.wait(DEADLINE_S)
        assert consumer.problem is not None and isinstance(consumer.problem.error, ZeroDivisionError)
    assert where[0] is not threading.main_thread()


# --- brokers and members


async def test_a_topic_that_is_waited_for_is_a_problem_until_it_is_there(
    cluster: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance, "LONGEST_AGAIN_S", 0.05)
    told: list[Problem] = []
    async with (
        Admin(cluster.nameserver) as admin,
        PushConsumer(cluster.nameserver, **kept("later"), on_problem=told.append) as consumer,
    ):
        await until(lambda: bool(told), "the program is told")
        assert told[0].what == "topic later" and consumer.problem is not None
        await admin.create_topic(cluster.broker, TopicConfig("later", 1, 1))
        await until(lambda: consumer.problem is None, "the topic is there")


async def test_members_with_different_subscriptions_are_warned_with_who_differs(
    cluster: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(cluster.nameserver) as one, Client(cluster.nameserver) as other:
        wanted = {"group": "g", "concurrency": 1}
        async with PushConsumer(one, subscriptions={"t": "red"}, **wanted) as first:
            async with PushConsumer(other, subscriptions={"t": "blue"}, **wanted) as second:
                await until(lambda: second.problem is not None, "the new member is told")
                told = second.problem
                assert told is not None and told.what == "group g"
                text = f"topic t is subscribed to as 'blue' by {other.client_id}, as 'red' by {one.client_id}"
                assert text in str(told)
                warnings = [
                    each for each in caplog.messages if each.startswith("the members of group g have different")
                ]
                assert len(warnings) == 1 and text in warnings[0]
                # The first one hears it with its next heartbeat.
                one._instance.membership.subscription_changed()
                one._instance.tell_brokers()
                await until(lambda: first.problem is not None, "the old member is told")
                await second.subscribe("t", "red")
                await until(lambda: second.problem is None, "they are the same again")
            one._instance.membership.subscription_changed()
            one._instance.tell_brokers()
            await until(lambda: first.problem is None, "the old member is told that, too")
    assert caplog.text.count("the members of group g have the same subscriptions again") == 2


async def test_a_consumer_of_a_group_that_may_not_be_created_does_not_start(tmp_path: Path) -> None:
    async with push_cluster(tmp_path, auto_create_subscription_group=False) as cluster:
        with pytest.raises(SkylarkError, match="no consumer for this group") as raised:
            async with PushConsumer(cluster.nameserver, **kept("t")):
                raise AssertionError("it starts")
        assert "mqadmin updateSubGroup creates it" in raised.value.__notes__[0]
        told: list[Problem] = []
        async with PushConsumer(cluster.nameserver, **kept("t"), start_timeout_ms=None, on_problem=told.append):
            await until(lambda: f"group g-t at {cluster.broker}" in [one.what for one in told], "it is told")


async def test_many_new_groups_of_one_client_start_together(cluster: Servers) -> None:
    """More than a broker creates for one heartbeat."""
    count, started = 2 * MAX_NEW_GROUPS, 0
    all_started = trio.Event()

    async def start(client: Client, number: int) -> None:
        nonlocal started
        async with PushConsumer(client, group=f"g-{number}", subscriptions={"t": "*"}):
            started += 1
            if started == count:
                all_started.set()
            await all_started.wait()

    async with Client(cluster.nameserver) as client, trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(start, client, number)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (False, "not False: return None when the message is consumed, and ConsumeResult.LATER to get it again"),
        (print, "not <built-in function print>: a function was returned and not called"),
        ((each for each in ()), ": it has a yield, so nothing of it has run"),
        ("id", "not 'id'"),
    ],
)
def test_a_wrong_result_of_a_handler_is_explained(result: object, says: str) -> None:
    with pytest.raises(TypeError) as raised:
        check_result(result)
    assert str(raised.value).startswith("a handler returns None, a ConsumeResult or Later(...), not ")
    assert str(raised.value).endswith(says)


def test_a_handler_that_is_called_already_is_refused() -> None:
    async def handle() -> None: ...

    with pytest.raises(
        TypeError, match=r"handler must be a function, not coroutine .*: it is called already, give handle"
    ):
        check_handler("handler", handle())
