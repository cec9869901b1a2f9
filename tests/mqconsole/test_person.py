"""What a person's pages share: answers of the last seconds, their errors, and what a change that failed says."""

from typing import Any

import pytest
import trio
import trio.testing

from skylark import Client
from skylark.mqcommon.errors import ConnectFailed, UserError
from skylark.mqconsole.people.person import MOST_ANSWERS, PATIENCE, ChangeFailed, Cluster, Person, whole
from skylark.mqconsole.people.roles import Role
from skylark.sdk.admin.reports.problems import OnProblem, ReportProblem

TIMEOUT_MS = 1_000


@pytest.fixture
def person() -> Person:
    return Person("owner", Role.ADMIN, Cluster("127.0.0.1:9", TIMEOUT_MS), Client("127.0.0.1:9"), None)


async def test_a_page_whose_first_asker_has_gone_is_told_and_the_next_one_asks_again(
    person: Person, nursery: trio.Nursery
) -> None:
    told: list[str] = []
    scope = trio.CancelScope()

    async def ask_first() -> None:
        with scope:
            await person.recent("key", trio.sleep_forever)

    async def wait() -> None:
        with pytest.raises(UserError, match="was broken off; load the page again"):
            await person.recent("key", trio.sleep_forever)
        told.append("told")

    nursery.start_soon(ask_first)
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert told == ["told"]

    async def answer() -> str:
        return "new"

    assert await person.recent("key", answer) == "new"


async def test_only_so_many_answers_are_kept(person: Person) -> None:
    asked: list[int] = []

    async def look(number: int) -> int:
        async def ask() -> int:
            asked.append(number)
            return number

        return await person.recent(f"key {number}", ask)

    for number in range(MOST_ANSWERS + 1):
        assert await look(number) == number
    assert await look(1) == 1 and len(asked) == MOST_ANSWERS + 1
    assert await look(0) == 0 and asked[-1] == 0, "the oldest answer made room"


async def test_brokers_that_take_too_long_are_told(person: Person, autojump_clock: trio.testing.MockClock) -> None:
    with (
        pytest.raises(UserError, match=rf"have not answered within {PATIENCE * TIMEOUT_MS // 1000} s"),
        person.deadline(),
    ):
        await trio.sleep_forever()


async def test_a_change_that_failed_somewhere_says_where_and_warnings_are_no_failure() -> None:
    refused = ConnectFailed("b:1", "refused")

    def change(*problems: ReportProblem) -> Any:
        async def act(on_problem: OnProblem) -> str:
            for problem in problems:
                on_problem(problem)
            return "changed"

        return act

    warning = ReportProblem("a topic is missing", None)
    assert await whole(change(warning)) == "changed"
    with pytest.raises(ChangeFailed, match=r"deleting at b:1: .*refused") as failed:
        await whole(change(warning, ReportProblem("deleting at b:1", refused)))
    assert "missing" not in str(failed.value)


async def test_a_cluster_without_masters_is_told(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(cluster: str) -> list[str]:
        return []

    monkeypatch.setattr(person.admin, "brokers_of_cluster", nobody)
    with pytest.raises(UserError, match="cluster c has no master now; see the page Replicas"):
        await person.masters("c")
