import csv
import io
import json
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqconsole.showing import texts
from skylark.mqconsole.showing.charts import Line, as_csv, chart, largest, sparkline, steps_chart
from skylark.mqconsole.showing.previews import MOST_BYTES, preview, printable
from skylark.mqconsole.showing.reasons import GroupState, reasons
from skylark.mqconsole.showing.work import Work, together
from skylark.mqconsole.watching.history import Run
from skylark.mqconsole.web.members import work_of
from skylark.sdk.admin.reports.groups import QueueProgress
from skylark.sdk.admin.reports.members import MemberQueue, MemberRates, MemberStatus, PoppedQueue

SVG = "{http://www.w3.org/2000/svg}"
ELEMENTS = {f"{SVG}{name}" for name in ("svg", "line", "text", "polyline", "rect")}
HOUR = (1_000_000, 1_003_600)


def runs(*values: tuple[int, int, float]) -> list[Run]:
    return [Run(HOUR[0] + first, HOUR[0] + last, value) for first, last, value in values]


run_lists = st.lists(st.tuples(st.integers(-500, 4_000), st.integers(0, 900), st.floats(0, 1e12)), max_size=8).map(
    lambda rows: [Run(HOUR[0] + at, HOUR[0] + at + long, value) for at, long, value in sorted(rows)]
)


# --- charts


@given(st.text(), st.text(), run_lists)
def test_any_name_and_any_values_give_a_picture_without_other_markup(name: str, title: str, line: list[Run]) -> None:
    for svg in (chart([Line(name, line)], title, *HOUR), steps_chart([(name, 5, 3), ("b", 6, 0)], title)):
        found = ElementTree.fromstring(svg)
        assert {element.tag for element in found.iter()} <= ELEMENTS
        assert all(not key.startswith("on") and key != "style" for one in found.iter() for key in one.attrib)


@given(run_lists)
def test_lines_stay_inside_of_the_picture(line: list[Run]) -> None:
    for element in ElementTree.fromstring(chart([Line("a", line)], "a", *HOUR)).iter(f"{SVG}polyline"):
        for point in element.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 55 <= x <= 991 and 9 <= y <= 167


def test_a_line_is_broken_where_nothing_was_measured() -> None:
    svg = chart([Line("a", runs((0, 500, 1.0), (900, 1_800, 2.0), (1_810, 3_600, 3.0)))], "a", *HOUR)
    assert svg.count("<polyline") == 2


def test_a_picture_says_in_words_what_it_shows() -> None:
    assert 'aria-label="Lag of group &lt;b&gt;"' in chart([], "Lag of group <b>", *HOUR)


def test_the_largest_lines_are_chosen() -> None:
    lines = {"small": runs((0, 10, 1.0)), "large": runs((0, 10, 9.0)), "empty": []}
    assert [line.name for line in largest(lines, 1)] == ["large"]


def test_a_sparkline_is_hidden_from_screen_readers() -> None:
    assert 'aria-hidden="true"' in sparkline(runs((0, 10, 1.0)), *HOUR)


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\r\x00", exclude_categories=["Cs"]))))
def test_csv_reads_back_and_no_name_is_a_formula(names: list[str]) -> None:
    rows = list(csv.reader(io.StringIO(as_csv([Line(name, runs((0, 10, 2.5))) for name in names]), newline="")))
    assert [row[0].removeprefix("'") for row in rows[1:]] == [name.removeprefix("'") for name in names]
    assert not any(row[0][:1] in tuple("=+-@\t") and row[0][:1] for row in rows[1:])


# --- bodies


@given(st.binary(max_size=300), st.sampled_from(("", "json", "cbor", "text", "hex", "<b>")))
def test_any_body_has_a_preview_that_can_be_printed(body: bytes, form: str) -> None:
    shown = preview(body, form)
    assert shown.form in shown.possible and "hex" in shown.possible
    assert form not in shown.possible or shown.form == form
    assert all(char.isprintable() or char in "\n\t" for char in shown.text)


@given(st.binary(max_size=200))
def test_hex_has_all_bytes(body: bytes) -> None:
    lines = preview(body, "hex").text.splitlines()
    assert b"".join(bytes.fromhex(line[10:58].replace(" ", "")) for line in lines) == body


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.lists(json_values))
def test_json_is_the_same_value(value: list[object]) -> None:
    shown = preview(json.dumps(value).encode())
    assert shown.form == "json"
    if json.dumps(value, ensure_ascii=False).isprintable():
        assert json.loads(shown.text) == value


@given(st.dictionaries(st.text(max_size=3) | st.integers(), json_values | st.binary(), min_size=1))
def test_cbor_is_recognised(value: dict[object, object]) -> None:
    shown = preview(cbor2.dumps(value))
    assert "cbor" in shown.possible


def test_cbor_with_bytes_and_tags() -> None:
    shown = preview(cbor2.dumps({"id": b"\x01\xff", "at": cbor2.CBORTag(4711, [1])}))
    assert (shown.form, json.loads(shown.text)) == ("cbor", {"id": "h'01ff'", "at": {"tag 4711": [1]}})


@pytest.mark.parametrize(
    ("body", "form"),
    [(b"hello", "text"), ("grün".encode(), "text"), (b"\x00\x01\x02\xff", "hex"), (b'{"a": ', "text"), (b"", "text")],
)
def test_the_first_form_that_fits_is_shown(body: bytes, form: str) -> None:
    assert preview(body).form == form


def test_a_long_body_is_cut_and_its_last_character_is_whole() -> None:
    shown = preview(b"x" + "ü".encode() * MOST_BYTES)
    assert (shown.form, shown.is_cut) == ("text", True)
    assert set(shown.text) == {"x", "ü"}


#: Two references to the same list, in a list, and so on: 2^18 values in 160 bytes.
REFERENCES = b"\xd8\x1c\x82\x01\x01"
for level in range(18):
    REFERENCES = b"\xd8\x1c\x82" + REFERENCES + b"\xd8\x1d" + cbor2.dumps(18 - level)


def test_references_in_cbor_are_not_followed() -> None:
    assert "cbor" not in preview(REFERENCES).possible


@pytest.mark.parametrize("body", [b"[" * 50_000, b"[" * 30 + b"0," * 30_000 + b"0" + b"]" * 30, b"[" * 99 + b"]" * 99])
def test_lists_that_are_deep_or_would_be_long_are_text(body: bytes) -> None:
    assert preview(body).form == "text"


def test_characters_that_turn_the_direction_are_numbers() -> None:
    assert printable("a\u202eb\x1b[0m") == "a\\u202eb\\u001b[0m"


# --- texts


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (texts.count(12_345), "12,345"), (texts.count(3.25), "3.2"), (texts.count(None), texts.NONE),
        (texts.size(1536), "1.5 KiB"), (texts.percent(0.58), "58 %"), (texts.percent(-1), texts.NONE),
        (texts.duration(850), "850 ms"), (texts.duration(12_300), "12.3 s"), (texts.duration(303_000), "5 min 03 s"),
        (texts.duration(7_500_000), "2 h 05 min"), (texts.duration(273_600_000), "3 d 04 h"),
        (texts.moment(1_700_000_000_000), "2023-11-14 22:13:20 UTC"), (texts.moment(10**18), texts.NONE),
    ],
)  # fmt: skip
def test_texts_for_people(shown: str, text: str) -> None:
    assert shown == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"), (False, "no"), (16, "16"), (0, "0"), (None, texts.NONE), ("", texts.NONE), ({}, texts.NONE),
        ([], texts.NONE), ({"type": "CUSTOMIZED", "customizedRetryPolicy": None}, "type: CUSTOMIZED"),
        (
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000}},
            "type: EXPONENTIAL; exponentialRetryPolicy: (initial: 5000; max: 7200000)",
        ),
        ({"customizedRetryPolicy": {"next": [1000, 5000]}}, "customizedRetryPolicy: (next: 1000, 5000)"),
        ([{"topic": "a", "expression": "*"}, {"topic": "b"}], "(topic: a; expression: *), (topic: b)"),
    ],
)  # fmt: skip
def test_settings_are_text(value: object, text: str) -> None:
    assert texts.setting(value) == text


def test_times_read_back() -> None:
    assert texts.parse_moment("2023-11-14T22:13:20") == 1_700_000_000_000
    assert texts.parse_moment("2023-11-14 22:13:20 UTC") == 1_700_000_000_000
    assert texts.parse_moment("1700000000000") == 1_700_000_000_000
    with pytest.raises(ValueError):
        texts.parse_moment("yesterday")


# --- why a group lags


def state(
    *diffs: int,
    members: int | None = 1,
    tps: float | None = 5.0,
    paused: bool = False,
    lag: list[Run] | None = None,
    work: Work | None = None,
) -> GroupState:
    queues = [
        QueueProgress("orders", "broker-a", number, diff, 0, "10.0.0.7", diff, 0, 0, None)
        for number, diff in enumerate(diffs)
    ]
    return GroupState(members, tps, paused, queues, lag or [], HOUR[1], work)


def test_a_group_that_does_not_lag_needs_no_reason() -> None:
    assert list(reasons(state(0, 0, members=0))) == []


def test_nobody_consumes() -> None:
    assert list(reasons(state(5, 5, members=0))) == ["No consumer is connected."]


def test_nothing_is_said_of_members_that_are_not_known() -> None:
    assert list(reasons(state(5, 5, members=None, tps=0))) == []


def test_consumers_that_hang() -> None:
    (said,) = reasons(state(5, 5, members=2, tps=0))
    assert said.startswith("2 consumers are connected, but nothing was consumed")


def test_a_paused_group() -> None:
    assert "consumeEnable=false" in next(reasons(state(5, paused=True)))


def test_one_slow_queue_is_named_with_its_consumer() -> None:
    (said,) = reasons(state(900, 5, 5))
    assert "queue 0 of orders on broker-a, which 10.0.0.7 consumes" in said


def test_queues_without_an_owner() -> None:
    every = state(5, 5, 5)
    first, second, third = every.queues
    assert isinstance(second, QueueProgress)
    without = replace(every, queues=[first, replace(second, client_ip=None), third])
    assert list(reasons(without)) == ["1 of the 3 queues that lag have no consumer."]


def working(*cached: int, per_s: float = 8.78, failed: float = 0.0, is_orderly: bool = False) -> Work:
    in_memory = {("orders", "broker-a", number): count for number, count in enumerate(cached)}
    return Work(per_s, failed, 113.0, len(cached), in_memory, is_orderly, 1)


@pytest.mark.parametrize(
    ("diffs", "work", "members", "said"),
    [
        ((500, 400), working(500, 400), 1, "All of it waits in the members' memory for a handler. 8.8 a second are"
         " consumed, at 113 ms a call of the handler: add concurrency or members."),
        ((500, 400), working(500, 350), 1, "Nearly all of it waits in"),
        ((9_000, 9_000), working(1_000, 1_000), 1, "2,000 of it waits in the members' memory for a handler; the others"
         " are pulled when there is room."),
        ((500, 400), working(500, 400), 2, ": add concurrency or queues and members."),
        ((500, 400), working(500, 400, is_orderly=True), 1, ": add members."),
        ((500, 400), working(500, 400, is_orderly=True), 2, ": add queues and members."),
        ((500, 400), working(0, 0, failed=3.0), 1, "Handlers fail 3 times a second"),
    ],
)  # fmt: skip
def test_handlers_that_are_too_slow(diffs: tuple[int, ...], work: Work, members: int, said: str) -> None:
    (found,) = reasons(state(*diffs, members=members, work=work))
    assert said in found


def test_messages_on_their_way_through_a_fast_handler_are_no_reason() -> None:
    assert list(reasons(state(5, 3, work=working(5, 3)))) == []
    assert list(reasons(state(5, 3, work=working(32, 32)))) == []


def test_a_growing_lag_of_slow_handlers_is_not_put_down_to_what_comes_in() -> None:
    ends = HOUR[1] - HOUR[0]
    grows = runs((ends - 120, ends - 120, 100), (ends, ends, 300))
    first, second = reasons(state(150, 150, lag=grows, work=working(150, 150)))
    assert "add concurrency or members" in first and second == "The lag grows by 100 messages a minute."


def test_nothing_is_said_of_a_rate_that_is_not_known() -> None:
    assert list(reasons(state(5, 5, tps=None))) == []


def pulled(queue_id: int, cached: int, *, is_dropped: bool = False) -> MemberQueue:
    return MemberQueue("orders", "a", queue_id, cached, 0, 0, 0, 0, is_dropped, 0, 0, 0, False, 0, 0, 0, 0)


def rates(handler_ms: float, consumed_tps: float, failed_tps: float = 0.0) -> MemberRates:
    return MemberRates("orders", 0, failed_tps, consumed_tps, handler_ms, 0.0, 0.0)


def member(consume_type: str = "CONSUME_PASSIVELY", **more: Any) -> MemberStatus:
    properties = {"PROP_CONSUME_TYPE": consume_type, "PROP_THREADPOOL_CORE_SIZE": "4"}
    queues = (pulled(0, 7), pulled(1, 0), pulled(2, 9, is_dropped=True))
    whole = MemberStatus(1, "c1", "V5_3_3", 3, properties, (), queues, (), (rates(100, 6), rates(200, 1, 1)), {}, None)
    return replace(whole, **more)


def test_what_members_do_is_added_up() -> None:
    one = work_of(member())
    assert one == Work(7.0, 1.0, 125.0, 2, {("orders", "a", 0): 7}, False, 4)
    popping = work_of(
        member(queues=(), rates=(rates(25, 24),), popped_queues=(PoppedQueue("orders", "a", 0, False, 0, 3),))
    )
    assert one is not None and popping is not None
    assert together([one, popping]) == Work(31.0, 1.0, 50.0, 3, {("orders", "a", 0): 10})
    assert together([]) is None


def test_handlers_that_did_not_end_lately_have_the_time_of_the_last_hour() -> None:
    found = work_of(member(rates=(rates(0, 0), rates(90, 0))))
    assert found is not None and (found.handler_ms, found.consumed_per_s) == (90.0, 0.0)
    nothing = work_of(member(rates=()))
    assert nothing is not None and nothing.handler_ms is None


def test_an_application_that_pulls_by_itself_tells_of_no_handler() -> None:
    assert work_of(member("CONSUME_ACTIVELY")) is None


def test_a_lag_that_grows_and_one_that_shrinks() -> None:
    ends = HOUR[1] - HOUR[0]
    (grows,) = reasons(state(5, 5, lag=runs((ends - 120, ends - 120, 100), (ends, ends, 300))))
    assert grows == "The lag grows by 100 messages a minute: more comes in than is consumed."
    (shrinks,) = reasons(state(5, 5, lag=runs((ends - 120, ends - 120, 300), (ends, ends, 100))))
    assert shrinks == "The lag shrinks by 100 messages a minute: it is gone in 1 min 00 s at this rate."
