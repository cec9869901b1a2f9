"""Lazy dataclasses behave as dataclasses do."""

import pickle
from copy import copy, deepcopy
from dataclasses import KW_ONLY, FrozenInstanceError, InitVar, dataclass, field, fields, replace
from inspect import signature
from typing import Any, ClassVar

import pytest

from skylark.mqcommon.lazy_dataclass import FIRST_CALLS, lazy_dataclass


def make(decorate: Any) -> Any:
    class Described:
        name: str
        secret: str = field(default="s", repr=False)
        names: list[str] = field(default_factory=list, compare=False)

        def upper(self) -> str:
            return self.name.upper()

    return decorate(Described)


OPTIONS: list[dict[str, bool]] = [
    *({}, {"slots": True}, {"frozen": True}, {"frozen": True, "slots": True}, {"eq": False}, {"kw_only": True}),
    {"slots": True, "eq": False},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("decorate", [dataclass, lazy_dataclass])
def test_objects_are_made_compared_and_shown(decorate: Any, options: dict[str, bool]) -> None:
    cls = make(decorate(**options))
    has_eq, is_frozen, named = options.get("eq", True), options.get("frozen", False), options.get("kw_only", False)
    for _ in range(FIRST_CALLS + 1):  # the methods of the first objects are other functions
        one, same, other = cls(name="a", names=["x"]), cls(name="a", secret="s", names=["y"]), cls(name="b")
        assert (one == same) is has_eq and one != other and one != "a" and cls(name="b").names is not other.names
        assert repr(one).endswith("Described(name='a', names=['x'])")
        assert replace(one, name="b").upper() == "B" and [each.name for each in fields(one)] == FIELDS
        for arguments in ((), ("a", "b", [], 1)):
            with pytest.raises(TypeError, match="argument"):
                cls(*arguments)
        with pytest.raises(TypeError, match="wrong"):
            cls(name="a", wrong=1)
        if has_eq and not is_frozen:
            with pytest.raises(TypeError, match="unhashable"):
                hash(one)
        else:
            assert (hash(one) == hash(same)) is has_eq
        if options.get("slots"):
            with pytest.raises((AttributeError, TypeError)):
                one.other = 1
        if is_frozen:
            with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
                one.name = "c"
            with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
                del one.name
        else:
            one.name = "c"
            assert one.upper() == "C"
        if named:
            with pytest.raises(TypeError, match="argument"):
                cls("a")


FIELDS = ["name", "secret", "names"]


@lazy_dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError(self.x)

    def __repr__(self) -> str:
        return f"<{self.x} {self.y}>"


@lazy_dataclass(frozen=True, slots=True)
class Place(Point):
    z: int = 3


class Named(Point):
    def __init__(self, name: str) -> None:
        super().__init__(len(name), 5)


def test_what_the_class_defines_itself_stays() -> None:
    with pytest.raises(ValueError, match="-1"):
        Point(-1)
    assert repr(Point(1)) == "<1 2>" and Point(1) == Point(1, 2) and hash(Point(1)) == hash(Point(1, 2))


def test_classes_can_be_derived() -> None:
    for _ in range(FIRST_CALLS + 1):
        assert repr(Named("abc")) == "<3 5>"
        assert [each.name for each in fields(Place(1))] == ["x", "y", "z"] and Place(1) != Place(1, z=4)
        with pytest.raises(ValueError, match="-1"):
            Place(-1)


def test_objects_can_be_pickled_and_copied() -> None:
    for copied in (pickle.loads(pickle.dumps(Place(1, z=7))), copy(Place(1, z=7)), deepcopy(Place(1, z=7))):
        assert copied == Place(1, 2, 7)


def test_objects_can_be_replaced_by_the_module_copy() -> None:
    replaced: Any = Place(1, z=7)
    # copy.replace of Python 3.13 calls this.
    assert replaced.__replace__(y=3) == Place(1, 3, 7)


def test_a_field_that_is_no_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="has a field without an argument: it needs `dataclass`"):

        @lazy_dataclass
        class _Wrong:
            name: str = field(init=False)


@pytest.mark.parametrize("kind", [InitVar[int], KW_ONLY])
def test_an_argument_that_is_no_field_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="has number, which is no field: it needs `dataclass`"):
        lazy_dataclass(type("Wrong", (), {"__annotations__": {"number": kind}}))


@pytest.mark.parametrize("default", [[], field(default={})])
def test_a_default_that_objects_would_share_is_refused(default: Any) -> None:
    with pytest.raises(ValueError, match="all objects of Wrong would share the default of names: use default_factory"):
        lazy_dataclass(type("Wrong", (), {"__annotations__": {"names": Any}, "names": default}))


@pytest.mark.parametrize("options", [{"frozen": True}, {"frozen": True, "slots": True}, {}])
def test_objects_with_their_own_comparison_are_hashed_as_those_of_dataclasses(options: dict[str, bool]) -> None:
    def is_hashed(decorate: Any) -> bool:
        class Alike:
            name: str = "a"

            def __eq__(self, other: object) -> bool:
                return True

        cls = decorate(**options)(Alike)
        try:
            return hash(cls("b")) == hash(cls("b"))
        except TypeError:
            return False

    assert is_hashed(lazy_dataclass) is is_hashed(dataclass) is options.get("frozen", False)


def test_patterns_take_the_arguments_that_have_a_place() -> None:
    def places(decorate: Any) -> Any:
        class Named:
            name: str = field(default="a", kw_only=True)
            number: int = 1

        return decorate(Named).__match_args__

    assert places(lazy_dataclass) == places(dataclass) == ("number",)


def test_two_classes_with_the_same_fields_differ() -> None:
    assert make(lazy_dataclass)("a") != make(lazy_dataclass)("a")


@pytest.mark.parametrize("arguments", [{}, {"name": "a", "wrong": 1}, {"secret": "b", "wrong": 1}])
def test_a_wrong_call_does_not_spoil_the_constructor(arguments: dict[str, Any]) -> None:
    cls = make(lazy_dataclass)
    with pytest.raises(TypeError):
        cls(**arguments)
    with pytest.raises(TypeError, match="multiple values"):
        make(lazy_dataclass)("a", name="b")
    assert cls("a").name == "a"


@pytest.mark.parametrize("options", OPTIONS)
def test_help_shows_the_arguments_of_the_constructor(options: dict[str, bool]) -> None:
    assert str(signature(make(lazy_dataclass(**options)))) == str(signature(make(dataclass(**options))))


def test_a_subclass_has_the_arguments_of_its_own() -> None:
    def derived(decorate: Any) -> Any:
        class More(make(decorate)):  # type: ignore[misc]
            number: int = 1

        return decorate(More)

    assert str(signature(derived(lazy_dataclass()))) == str(signature(derived(dataclass())))


@pytest.mark.parametrize("decorate", [dataclass, lazy_dataclass])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_class_variable_is_no_argument(decorate: Any, options: dict[str, bool]) -> None:
    class Base:
        kind: ClassVar[str] = "base"
        name: str = "a"

    Base = decorate(**options)(Base)  # type: ignore[misc]
    # Described before the first object is made, as the classes of options are.
    assert [each.name for each in fields(Base)] == ["name"]

    class More(Base):
        number: int = 1

    More = lazy_dataclass(**options)(More)  # type: ignore[misc]
    for cls in (Base, More):
        made = cls(name="b") if options.get("kw_only") else cls("b")
        assert (made.name, made.kind) == ("b", "base") and "kind" not in getattr(made, "__dict__", ())
        assert cls.kind == "base"


def test_the_constructor_is_generated_although_two_calls_are_counted_at_once() -> None:
    counted = 0

    def names() -> list[str]:
        nonlocal counted
        counted += 1
        if counted == FIRST_CALLS:
            # An object is made, as another thread would, when this call is counted and its number not yet compared.
            cls("other")
        return []

    class Described:
        name: str
        names_of: list[str] = field(default_factory=names)

    cls: Any = lazy_dataclass(Described)
    first = cls.__init__
    for _ in range(FIRST_CALLS):
        cls("a")
    assert cls.__init__ is not first


def test_a_class_with_slots_of_its_own_is_refused() -> None:
    with pytest.raises(TypeError, match="already specifies __slots__"):
        lazy_dataclass(slots=True)(type("Wrong", (), {"__slots__": ("name",), "__annotations__": {"name": str}}))


@pytest.mark.parametrize("decorate", [dataclass, lazy_dataclass])
def test_an_object_has_no_signature(decorate: Any) -> None:
    assert not hasattr(make(decorate)("a"), "__signature__")
