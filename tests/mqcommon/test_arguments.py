"""Checks of arguments: what passes, what does not, and what the errors say."""

from collections.abc import Callable

import pytest

from skylark.mqcommon import arguments
from skylark.mqcommon.errors import InvalidArgument, UserError


class Silent:
    def __repr__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("check", "good", "wrong_type", "wrong_value"),
    [
        (arguments.check_text, ["", "a", "ü"], [None, b"a", 5, ["a"]], ["\ud800"]),
        (arguments.check_bytes, [b"", b"a"], [None, "a", bytearray(b"a"), 5], []),
        (arguments.check_flag, [True, False], [None, 0, 1, "no"], []),
        (arguments.check_int, [0, -5, 2**63 - 1], [None, True, 1.0, "1"], [2**63, -(2**63) - 1]),
        (arguments.check_milliseconds, [1, 0.5, 3_000], [None, True, "3"], [0, -1, float("nan"), float("inf"), 2**31]),
    ],
)
def test_checks_pass_good_values_only(
    check: Callable[[str, object], None], good: list[object], wrong_type: list[object], wrong_value: list[object]
) -> None:
    for value in good:
        check("it", value)
    for value in wrong_type:
        with pytest.raises(TypeError, match=r"^it must be .*, not "):
            check("it", value)
    for value in wrong_value:
        with pytest.raises(InvalidArgument, match=r"^it must be .*, not "):
            check("it", value)


def test_a_wrong_value_is_a_value_error_and_a_users_error() -> None:
    with pytest.raises(ValueError, match="from 1 to 5, not int 0") as caught:
        arguments.check_int("count", 0, 1, 5)
    assert isinstance(caught.value, UserError)


def test_a_wrong_value_is_shown_in_one_short_line() -> None:
    assert arguments.shown("a") == "str 'a'"
    assert arguments.shown(None) == "None"
    assert arguments.shown(Silent()).startswith("Silent")
    for long in (bytes(1 << 20), "x" * (1 << 20), [["y"] * 1_000] * 1_000, 10**5_000, {"k": "v" * 9_999}):
        text = arguments.shown(long)
        assert len(text) < 400 and "\n" not in text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("a", "body must be bytes, not str 'a': encode it, as in body.encode()"),
        (5, "body must be bytes, not int 5: encode it, as in str(body).encode()"),
        (None, 'body must be bytes, not None: b"" is an empty value'),
        (
            {"a": 1},
            "body must be bytes, not dict {'a': 1}: encode it, as in json.dumps(body).encode(), or use "
            "Producer(value=...) and send_value",
        ),
    ],
)
def test_what_is_no_body_says_what_to_do(body: object, says: str) -> None:
    with pytest.raises(TypeError) as caught:
        arguments.as_bytes("body", body)
    assert str(caught.value) == says


def test_bytes_for_text_and_for_bytes_say_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"tags must be a str, not bytes b'a': decode it, as in tags\.decode\(\)$"):
        arguments.check_text("tags", b"a")
    with pytest.raises(TypeError, match=r"a key of subscriptions must be a str, not bytes b'a': decode it$"):
        arguments.check_text("a key of subscriptions", b"a")
    with pytest.raises(TypeError, match=r"value must be .*: encode it, as in json.dumps\(value\).encode\(\)$"):
        arguments.as_bytes("value", {"a": 1})
    with pytest.raises(TypeError, match=r"data must be bytes, not .*: copy it, as in bytes\(data\)$"):
        arguments.check_bytes("data", bytearray(b"a"))
