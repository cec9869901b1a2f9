"""Every public method of the SDK's classes refuses arguments of a wrong type, in the call, and names them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest

import skylark
from skylark import blocking
from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.checked import Bounds, checked, checked_methods
from tests.sdk.fakes import queue


class Junk:
    """An object that no argument may be."""


def public_methods(cls: type) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if inspect.isfunction(value) and not name.startswith("_")}


def cases() -> list[tuple[str, str, str]]:
    """(class, method, argument) of all that takes arguments."""
    return [
        (cls, name, argument)
        for cls in ("Admin", "PullConsumer", "Producer")
        for name, method in public_methods(getattr(skylark, cls)).items()
        for argument in inspect.signature(method).parameters
        # What is not async in a producer is for its lanes.
        if argument != "self" and (cls != "Producer" or inspect.iscoroutinefunction(method))
    ]


def plausible(hint: Any) -> Any:
    """Some value of the type."""
    if type(None) in get_args(hint):
        return None
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    values = {
        str | skylark.Sql: "*",
        str: "t",
        int: 1,
        bool: True,
        float: 1.0,
        bytes: b"x",
        MessageQueue: queue(0),
        Mapping: {},
        Sequence: [],
        skylark.TopicConfig: skylark.TopicConfig("t"),
    }
    return values.get(hint) or values.get(get_origin(hint)) or values.get(getattr(hint, "__origin__", None))


def client(cls: str) -> Any:
    return skylark.Producer("127.0.0.1:1", value=bytes) if cls == "Producer" else getattr(skylark, cls)("127.0.0.1:1")


@pytest.mark.parametrize(("cls", "name", "argument"), cases())
async def test_junk_is_refused(cls: str, name: str, argument: str) -> None:
    """Also in a client that is not open, since arguments are checked first."""
    if "arrow" in name:
        pytest.importorskip("numpy")
    made = client(cls)
    method = getattr(made, name)
    hints = get_type_hints(method, include_extras=True)
    good = {each: plausible(hints[each]) for each in inspect.signature(method).parameters}
    if cls == "Producer":
        # `plausible` knows no value of these types. A MessageExt is decoded only when its fields are read.
        messages = {"message": skylark.Message("t", b""), "request": skylark.MessageExt(b"", 0, ""), "value": b""}
        good.update({each: value for each, value in messages.items() if each in good})
    # The first that is wrong is named.
    arguments = {**good, argument: Junk()}
    with pytest.raises(TypeError, match=argument):
        result = method(**arguments)
        if inspect.isawaitable(result):
            await result
        else:
            async for _ in result:
                break


@pytest.mark.parametrize("cls", ["Admin", "PullConsumer", "Producer"])
@pytest.mark.parametrize("nameserver", [["127.0.0.1:1", 5], b"127.0.0.1:1", 9876, {"h:1"}])
def test_nameservers_are_str(cls: str, nameserver: Any) -> None:
    for module in (skylark, blocking):
        with pytest.raises(TypeError, match="nameserver"):
            getattr(module, cls)(nameserver)


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        ("Producer", {"group": "a b"}),
        ("Producer", {"group": " "}),
        ("Producer", {"group": ""}),
        ("Producer", {"send_timeout_ms": -1}),
        ("Producer", {"send_timeout_ms": 0}),
        ("Producer", {"send_timeout_ms": float("nan")}),
        ("Producer", {"retries": -1}),
        ("Producer", {"max_message_bytes": -1}),
        ("PullConsumer", {"group": "a b"}),
        ("PullConsumer", {"group": ""}),
        ("PullConsumer", {"timeout_ms": -5}),
        ("Admin", {"timeout_ms": float("nan")}),
    ],
)
def test_options_have_values_that_make_sense(cls: str, arguments: dict[str, Any]) -> None:
    for module in (skylark, blocking):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            getattr(module, cls)("127.0.0.1:1", **arguments)


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        ("Producer", {"group": 5}),
        ("Producer", {"send_timeout_ms": "3"}),
        ("Producer", {"retries": True}),
        ("Producer", {"retries": 1.5}),
        ("Producer", {"batching": "no"}),
        ("Producer", {"accept_weaker": 1}),
        ("Producer", {"max_message_bytes": "4M"}),
        ("PullConsumer", {"group": None}),
        ("PullConsumer", {"heartbeat": "no"}),
        ("PullConsumer", {"timeout_ms": True}),
        ("Admin", {"timeout_ms": "5"}),
    ],
)
def test_options_have_their_types(cls: str, arguments: dict[str, Any]) -> None:
    for module in (skylark, blocking):
        with pytest.raises(TypeError, match=next(iter(arguments))):
            getattr(module, cls)("127.0.0.1:1", **arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("pull", {"mq": queue(0), "offset": 0, "max_count": 0}, "max_count"),
        ("pull", {"mq": queue(0), "offset": 2**63}, "offset"),
        ("pull", {"mq": queue(0), "offset": 0, "wait_ms": -1}, "wait_ms"),
        ("pull_bytes", {"mq": queue(0), "offset": 0, "max_bytes": -1}, "max_bytes"),
        ("commit_offset", {"mq": queue(0), "offset": -1}, "offset"),
        ("search_offset", {"mq": queue(0), "timestamp_ms": 0, "boundary": "MIDDLE"}, "boundary"),
        ("max_offset", {"mq": queue(-1)}, "mq"),
        ("message_queues", {"topic": "a b"}, "topic"),
        ("stream", {"mq": queue(0), "start": 0, "max_count": -1}, "max_count"),
    ],
)
async def test_a_consumers_arguments_are_in_bounds(name: str, arguments: dict[str, Any], named: str) -> None:
    consumer = skylark.PullConsumer("127.0.0.1:1")
    with pytest.raises(InvalidArgument, match=f"^{named} "):
        await getattr(consumer, name)(**arguments)


# --- the decorator itself


class Other(int):
    pass


@checked_methods
class Example:
    def __init__(self, name: str = "") -> None:
        self.name = name

    def all_sorts(
        self,
        text: str | None = None,
        many: Sequence[str] = (),
        table: Mapping[str, str] | None = None,
        one_of: Literal["A", "B"] = "A",
        bound: Annotated[int, Bounds(1, 2)] = 1,
        function: Callable[[], int] | None = None,
        anything: object = None,
        either: int | str = 0,
        other: Other | None = None,
    ) -> int:
        """Kept."""
        return bound

    def _inside(self, text: str) -> str:
        return text


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"text": 5}, TypeError),
        ({"many": "abc"}, TypeError),
        ({"many": ["a", 5]}, TypeError),
        ({"table": {"a": 5}}, TypeError),
        ({"table": [("a", "b")]}, TypeError),
        ({"one_of": "C"}, ValueError),
        ({"bound": 3}, ValueError),
        ({"function": 5}, TypeError),
        ({"other": 5}, TypeError),
    ],
)
def test_annotations_are_checked(bad: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(bad))):
        Example().all_sorts(**bad)


def test_what_is_fine_passes() -> None:
    assert Example("a").all_sorts("x", ["a"], {"a": "b"}, "B", 2, lambda: 1, Junk(), "x", Other(5)) == 2
    assert Example.all_sorts.__doc__ == "Kept."
    assert Example()._inside(5) == 5  # type: ignore[arg-type, comparison-overlap]
    with pytest.raises(TypeError, match="name"):
        Example(5)  # type: ignore[arg-type]


async def test_an_async_function_stays_one() -> None:
    @checked
    async def double(number: int) -> int:
        return 2 * number

    assert inspect.iscoroutinefunction(double) and await double(2) == 4
    with pytest.raises(TypeError, match="number"):
        await double("2")  # type: ignore[arg-type]
