"""What URLs, options, names and times of kombu become."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.names import TOPIC_MAX_LENGTH, check_topic
from skylark.sdk.integrations.kombu.names import (
    TransportSettings,
    deliver_at_ms,
    eta_ms_of,
    exchange_group,
    exchange_topic,
    is_reply_queue,
    queue_topic,
    settings_of,
    tag_of,
)

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("rocketmq://", TransportSettings()),
        ("rocketmq://ns/", TransportSettings(("ns:9876",))),
        ("rocketmq://a:1,b:2/", TransportSettings(("a:1", "b:2"))),
        ("rocketmq://a:1,b:2/shop", TransportSettings(("a:1", "b:2"), namespace="shop")),
        ("rocketmq://a:1;b:2/", TransportSettings(("a:1", "b:2"))),
        ("rocketmq://a:1/shop;b", TransportSettings(("a:1", "b:9876"), namespace="shop")),
        ("rocketmq://[::1],[::2]:1/", TransportSettings(("[::1]:9876", "[::2]:1"))),
        ("rocketmq://key:s%40fe@a:1/", TransportSettings(("a:1",), access_key="key", secret_key="s@fe")),
        ("rocketmq://a:1/?tls=true&eta_lead=0", TransportSettings(("a:1",), tls=True, eta_lead_ms=0)),
        ("rocketmq://a:1/x?visibility_timeout=2.5", TransportSettings(("a:1",), "x", visibility_timeout_ms=2_500)),
    ],
)
def test_a_url_says_where_and_how(url: str, expected: TransportSettings) -> None:
    # kombu cuts the URL at its semicolons.
    assert settings_of(url.split(";"), {}) == expected


def test_options_come_before_the_url() -> None:
    options = {"visibility_timeout": 3600, "queue_name_prefix": "p-", "unknown to us": 1}
    found = settings_of(["rocketmq://a:1/?visibility_timeout=5"], options, tls=True)
    assert (found.visibility_timeout_ms, found.queue_name_prefix, found.tls) == (3_600_000, "p-", True)


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("rocketmq://key@a:1/", {}, "access key and secret key"),
        ("rocketmq://key:s/3@a:1/", {}, "%2F, %3F and %40"),
        ("rocketmq://key:s?3@a:1/", {}, "%2F, %3F and %40"),
        ("rocketmq://a:1;b:2/shop", {}, 'separate the NameServers by ","'),
        ("rocketmq://a:1;b:2/?tls=true", {}, 'separate the NameServers by ","'),
        ("rocketmq://a:1/?retries=3", {}, "retries=3 in the URL of the broker is none of: tls, queue_name_prefix"),
        ("rocketmq://a:1/", {"visibility_timeout": "soon"}, "visibility_timeout .* must be a number, not 'soon'"),
        ("rocketmq://a:1/", {"queues": 0}, "queues .* is too small: 0"),
        ("rocketmq://a:1/", {"eta_lead": -1}, "eta_lead .* is too small"),
    ],
)
def test_what_cannot_be_used_is_named(url: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        settings_of(url.split(";"), options)


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_all_names_are_legal_and_keep_apart_what_differs(one: str, other: str) -> None:
    for made in (queue_topic(one), exchange_topic(one), exchange_group(one, other), tag_of(one)):
        check_topic(made)
        # The longest name that a broker makes of it.
        assert len(f"%RETRY%{made}+{made}") <= TOPIC_MAX_LENGTH or made == tag_of(one)
    assert (queue_topic(one) == queue_topic(other)) == (one == other)
    assert queue_topic("celery") == "celery" and queue_topic("a.b") != queue_topic("a_b")


def test_reply_queues_are_known_by_their_names() -> None:
    assert is_reply_queue("8d1e0c9e-6a4a-3a52-8d9e-0f6a1a3c1f5d")
    assert not is_reply_queue("celery") and not is_reply_queue("x8d1e0c9e-6a4a-3a52-8d9e-0f6a1a3c1f5d")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"task": "t", "eta": "1970-01-01T00:00:01.500000+00:00"}, 1_500),
        ({"task": "t", "eta": "1970-01-01T01:00:01+01:00"}, 1_000),
        ({"task": "t", "eta": "1970-01-01T00:00:01"}, 1_000),
        ({"task": "t", "eta": None}, None),
        ({"task": "t", "eta": "tomorrow"}, None),
        ({"eta": "1970-01-01T00:00:01"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_eta_is_celerys_header(headers: dict[str, Any] | None, expected: int | None) -> None:
    assert eta_ms_of(headers) == expected


@given(st.integers(0, 10**13), st.integers(0, 10**13))
def test_steps_reach_the_time_and_never_pass_it(now_ms: int, eta_ms: int) -> None:
    settings = TransportSettings()
    step = deliver_at_ms(eta_ms, now_ms, settings)
    if step is None:
        assert eta_ms - settings.eta_lead_ms <= now_ms
    else:
        assert now_ms < step <= min(eta_ms - settings.eta_lead_ms, now_ms + settings.max_delay_ms)


def test_a_task_of_next_week_is_there_after_seven_steps() -> None:
    settings, now_ms = TransportSettings(), 0
    eta_ms = eta_ms_of({"task": "t", "eta": (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=7)).isoformat()})
    assert eta_ms == 7 * 24 * HOUR_MS
    steps = 0
    while (step := deliver_at_ms(eta_ms, now_ms, settings)) is not None:
        now_ms, steps = step, steps + 1
    assert (steps, now_ms) == (7, eta_ms - settings.eta_lead_ms)
