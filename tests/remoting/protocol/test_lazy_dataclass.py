"""Lazy dataclasses behave as dataclasses do."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest

from remoting.protocol.lazy_dataclass import lazy_dataclass


def make(decorate: Any) -> Any:
    class Described:
        name: str
        secret: str = field(default="s", repr=False)
        names: list[str] = field(default_factory=list)

        def upper(self) -> str:
            return self.name.upper()

    return decorate(Described)


@pytest.mark.parametrize("decorate", [dataclass(slots=True), lazy_dataclass])
def test_objects_are_made_compared_and_shown(decorate: Any) -> None:
    cls = make(decorate)
    for _ in range(2):  # the constructor of the first object is another function
        one, same, other = cls("a", names=["x"]), cls(name="a", secret="s", names=["x"]), cls("a")
        assert one == same and one != other and one != "a" and cls("b").names is not cls("b").names
        assert repr(one).endswith("Described(name='a', names=['x'])")
        assert (replace(one, name="b").upper(), [each.name for each in fields(one)]) == (
            "B",
            ["name", "secret", "names"],
        )
        for arguments in ((), ("a", "b", [], 1)):
            with pytest.raises(TypeError, match="argument"):
                cls(*arguments)
        with pytest.raises(TypeError, match="wrong"):
            cls("a", wrong=1)
        with pytest.raises(TypeError, match="unhashable"):
            hash(one)
        with pytest.raises(AttributeError):
            one.other = 1


def test_two_classes_with_the_same_fields_differ() -> None:
    assert make(lazy_dataclass)("a") != make(lazy_dataclass)("a")


def test_a_wrong_call_does_not_spoil_the_constructor() -> None:
    cls = make(lazy_dataclass)
    with pytest.raises(TypeError):
        cls()
    assert cls("a").name == "a"
