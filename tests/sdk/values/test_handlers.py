"""Which handlers get values: what their argument is annotated with decides."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest

from skylark import StreamMessage, Values
from skylark.mqcommon.message.message import MessageExt
from skylark.sdk.values.handlers import reading_values
from tests.sdk.values.test_values import stored

if TYPE_CHECKING:
    from skylark import ReceivedMessage


@dataclass
class Order:
    number: int


MESSAGE = stored(Values(Order).message("t", Order(7)))


def unannotated(message): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, RUF100
def of_messages(message: MessageExt) -> None: ...
def of_a_name(message: "ReceivedMessage") -> None: ...
def of_names(message: "ReceivedMessage | None") -> None: ...
def of_anything(message: Any) -> None: ...
def of_anything_text(message: "Any") -> None: ...
def of_either(message: MessageExt | StreamMessage) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [
        *(unannotated, of_messages, of_a_name, of_names, of_anything, of_anything_text, of_either),
        *(print, [].append, max, lambda message: None, 5, None),
    ],
)
def test_a_handler_of_messages_stays_as_it_is(handler: Any) -> None:
    assert reading_values(handler) is handler


def test_a_handler_with_a_type_gets_values() -> None:
    got: list[object] = []

    def of_order(order: Order) -> str:
        got.append(order)
        return "done"

    def of_text(order: "Order", message: MessageExt) -> None:
        got.append((order, message))

    @dataclass
    class Local:
        number: int

    def of_local_text(order: "Local") -> None:
        got.append(order == Local(7))

    class Shop:
        def handle(self, order: Order) -> None:
            got.append(order)

        def __call__(self, order: "Order", extra: int = 0) -> None:
            got.append((order, extra))

    def curried(where: str, order: "Order") -> None:
        got.append((where, order))

    def call(handler: Callable[..., Any]) -> Any:
        made = reading_values(handler)
        assert made is not None and made is not handler and len(signature(made).parameters) == 1
        return made(MESSAGE)

    assert call(of_order) == "done"
    call(of_text)
    call(of_local_text)
    call(Shop().handle)
    call(Shop())
    call(partial(curried, "here"))
    assert got == [Order(7), (Order(7), MESSAGE), True, Order(7), (Order(7), 0), ("here", Order(7))]


def test_a_coroutine_function_is_awaited_by_who_calls_it() -> None:
    async def handle(order: Order) -> int:
        return order.number

    made = reading_values(handle)
    assert made is not None
    waiting = made(MESSAGE)
    with pytest.raises(StopIteration) as end:
        waiting.send(None)
    assert end.value.value == 7


def test_types_that_cannot_be_used_are_refused_when_the_handler_is_given() -> None:
    def lost(order: "NotThere") -> None:  # type: ignore[name-defined]  # noqa: F821
        ...

    def misspelled(order: "Order.Missing") -> None:  # type: ignore[name-defined]
        ...

    def odd(order: complex) -> None: ...

    with pytest.raises(TypeError, match="the type of the handler's argument, 'NotThere', cannot be found"):
        reading_values(lost)
    with pytest.raises(TypeError, match=r"'Order\.Missing', cannot be found: type object 'Order' has no attribute"):
        reading_values(misspelled)
    with pytest.raises(TypeError, match="values of type complex are not supported"):
        reading_values(odd)


def test_a_handler_that_needs_more_than_value_and_message_is_refused_when_it_is_given() -> None:
    def three(order: Order, message: MessageExt, shop: str) -> None: ...
    def named(order: Order, *, shop: str) -> None: ...

    with pytest.raises(TypeError, match="takes the value, or the value and its message: missing a required argument"):
        reading_values(three)
    with pytest.raises(TypeError, match=r"missing a required .*argument: 'shop'"):
        reading_values(named)


def test_a_text_that_names_a_type_with_any_in_it_is_a_type() -> None:
    def handle(order: "dict[str, Any]") -> object:
        return order

    made = reading_values(handle)
    assert made is not None
    assert made(MESSAGE) == {"number": 7}
