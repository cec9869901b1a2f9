"""Dataclasses whose methods are generated when they are called: the constructor at its tenth call, others at the first.

For each class `dataclasses.dataclass` generates and compiles up to eight functions at its import: some 0.35 ms for a
frozen one with slots. A daemon imports hundreds of such classes, makes one object of some, and many objects of a few:
generating all methods took a quarter of a broker's start.
"""

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields, make_dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

__all__ = ["lazy_dataclass"]

T = TypeVar("T")

# The constructor is generated when this many objects of a class are made.
FIRST_CALLS = 10

if TYPE_CHECKING:
    # Type checkers know all that `dataclass` does.
    from dataclasses import dataclass as lazy_dataclass
else:

    def lazy_dataclass(
        cls: type[T] | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        eq: bool = True,
        kw_only: bool = False,
    ):
        """As `dataclasses.dataclass` with these arguments. Each field must be an argument of the constructor."""

        def decorate(cls: type[T]) -> type[T]:
            own = set(vars(cls))
            made = dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
            if not all(each.init for each in fields(made)):
                raise TypeError(f"{cls.__qualname__} has a field without an argument: it needs `dataclass`")
            for name in _methods(frozen, eq) - own:
                setattr(made, name, _first_call(made, name, frozen, eq, own))
            made.__signature__ = _SIGNATURE
            if eq and not frozen and "__hash__" not in own:
                made.__hash__ = None
            if frozen:
                made.__setattr__, made.__delattr__ = _refuse_to_set, _refuse_to_delete
                made.__getstate__, made.__setstate__ = _state, _set_state
            return made

        return decorate if cls is None else decorate(cls)


def _methods(frozen: bool, eq: bool) -> set[str]:
    return {"__init__", "__repr__"} | ({"__eq__"} if eq else set()) | ({"__hash__"} if eq and frozen else set())


def _first_call(cls: type[Any], name: str, frozen: bool, eq: bool, own: set[str]) -> Callable[..., Any]:
    """A method that replaces itself with the generated method, and calls that."""
    if name == "__init__":
        return _first_init(cls, frozen)

    def method(*args: Any) -> Any:
        made = make_dataclass(cls.__name__, _like(cls), init=False, eq=eq, frozen=frozen)
        for each in _methods(frozen, eq) - own - {"__init__"}:
            setattr(cls, each, vars(made)[each])
        return getattr(cls, name)(*args)

    method.__name__ = name
    return method


def _first_init(cls: type[Any], frozen: bool) -> Callable[..., None]:
    """The constructor of the first objects, which reads the fields, and then replaces itself with the generated one.

    Arguments that it does not understand it leaves to the generated constructor, which raises the errors of calls.
    """
    described = fields(cls)
    places = [each.name for each in described if each.kw_only is not True]
    has_post_init = hasattr(cls, "__post_init__")
    calls = 0

    def generate() -> None:
        # The generated constructor calls the method of the class that it becomes a method of, if there is one.
        namespace = {"__post_init__": None} if has_post_init else {}
        made = make_dataclass(cls.__name__, _like(cls), repr=False, eq=False, frozen=frozen, namespace=namespace)
        cls.__init__ = vars(made)["__init__"]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        values = dict(zip(places, args, strict=False))
        is_clear = len(args) <= len(places) and values.keys().isdisjoint(kwargs)
        values.update(kwargs)
        for each in described:
            if each.name not in values and each.default is not MISSING:
                values[each.name] = each.default
            elif each.name not in values and each.default_factory is not MISSING:
                values[each.name] = each.default_factory()
        is_clear = is_clear and len(values) == len(described) and all([each.name in values for each in described])
        if calls == FIRST_CALLS or not is_clear:
            generate()
        if not is_clear:
            cls.__init__(self, *args, **kwargs)
            return
        for each in described:
            object.__setattr__(self, each.name, values[each.name])
        if has_post_init:
            self.__post_init__()

    return __init__


def _like(cls: type[Any]) -> list[Any]:
    """The fields of ``cls`` for `make_dataclass`."""
    return [
        (
            each.name,
            Any,
            field(
                default=each.default,
                default_factory=each.default_factory,
                repr=each.repr,
                hash=each.hash,
                compare=each.compare,
                kw_only=each.kw_only is True,
            ),
        )
        for each in fields(cls)
    ]


class _Signature:
    """The signature of the constructor for ``help`` and editors: the arguments as with `dataclasses.dataclass`."""

    def __get__(self, instance: Any, cls: type[Any]) -> Any:
        if instance is not None:
            raise AttributeError("__signature__")
        # Imported here: the signature is rarely needed, and the module is slow to import.
        from inspect import Parameter, Signature

        def parameter(each: Any) -> Parameter:
            has_factory = each.default_factory is not MISSING
            default = _FACTORY if has_factory else Parameter.empty if each.default is MISSING else each.default
            kind = Parameter.KEYWORD_ONLY if each.kw_only is True else Parameter.POSITIONAL_OR_KEYWORD
            return Parameter(each.name, kind, default=default, annotation=each.type)

        every = sorted(map(parameter, fields(cls)), key=lambda one: one.kind)
        return Signature(every, return_annotation=None)


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


_SIGNATURE, _FACTORY = _Signature(), _Factory()


def _refuse_to_set(self: Any, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    """The state to pickle: a frozen object cannot be given its fields one by one."""
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
