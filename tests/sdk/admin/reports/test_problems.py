"""What a report lacks, in words, and asking several servers."""

from skylark.mqcommon.errors import UserError
from skylark.sdk.admin.reports.problems import ReportProblem, ask_each


def test_a_problem_is_one_line() -> None:
    error = UserError("it is away")
    assert str(ReportProblem("broker a", error)) == "broker a: it is away"
    assert str(ReportProblem("", error)) == "it is away"
    assert str(ReportProblem("the lag is not known")) == "the lag is not known"


async def test_answers_and_errors_are_counted_as_they_come() -> None:
    async def ask(key: str) -> str:
        if key == "b":
            raise UserError("it is away")
        return key.upper()

    lines: list[str] = []
    answers = await ask_each(iter("abc"), ask, lines.append)
    assert answers.values == {"a": "A", "c": "C"} and list(answers.errors) == ["b"]
    assert lines == ["1 of 3 answered", "2 of 3 answered", "3 of 3 answered"]
