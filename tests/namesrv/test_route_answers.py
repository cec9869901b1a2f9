"""Answers that are kept: within their bound, the oldest go first."""

from skylark.namesrv.route_answers import Form, RouteAnswers
from skylark.remoting.protocol.dialect import Dialect

FORM = Form(Dialect.STANDARD, acting_master=False)
OTHER = Form(Dialect.CBOR, acting_master=False)


def test_the_oldest_topic_is_forgotten_when_there_is_no_room() -> None:
    answers = RouteAnswers(max_bytes=4_000)
    for topic in ("a", "b"):
        answers.put(topic, FORM, bytes(1_000))
    answers.put("a", OTHER, b"short")
    assert answers.get("a", OTHER) == b"short"
    answers.put("c", FORM, bytes(1_500))
    assert [answers.get(topic, FORM) is not None for topic in "abc"] == [False, True, True]
    assert answers.get("a", OTHER) is None
    assert 0 < answers.size_bytes <= 4_000
    answers.forget(["b", "c", "unknown"])
    assert answers.size_bytes == 0


def test_an_answer_over_the_bound_is_not_kept() -> None:
    answers = RouteAnswers(max_bytes=1_000)
    answers.put("a", FORM, bytes(2_000))
    assert answers.get("a", FORM) is None
    assert answers.size_bytes == 0


def test_few_answers_are_found_among_very_many_topics() -> None:
    answers = RouteAnswers()
    answers.put("a", FORM, b"1")
    answers.put("b", FORM, b"2")
    answers.forget({"b", *map(str, range(100))})
    assert (answers.get("a", FORM), answers.get("b", FORM)) == (b"1", None)
