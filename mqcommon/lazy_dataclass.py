"""Dataclasses whose fields are described, and whose methods are generated, when they are first needed.

For each class `dataclasses.dataclass` describes its fields and compiles up to eight functions: some 0.35 ms for a
frozen one with slots. A daemon imports hundreds of such classes, makes one object of some, and many objects of a few:
all of it together took a third of a broker's start. Here the import only makes the class with its slots. Its fields are
described at the first look at them, its constructor is generated at the tenth call, other methods at the first.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import (
    KW_ONLY,
    MISSING,
    Field,
    FrozenInstanceError,
    InitVar,
    dataclass,
    field,
    fields,
    make_dataclass,
    replace,
)
from inspect import Parameter, Signature, get_annotations
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, TypeVar

__all__ = ["lazy_dataclass"]

T = TypeVar("T")

_FIELDS = "__dataclass_fields__"
# The constructor is generated when this many objects of a class are made.
FIRST_CALLS = 10
# `dataclass` would write the signature of a class without a docstring: most of the time that a description takes.
_DOCUMENTED = {"__doc__": "A class that lends its fields or methods to another one."}


@dataclass(init=False, repr=False, eq=False)
class _Plain:
    """Has the parameters of a class that is not frozen."""


# `dataclass` asks bases whether they are frozen.
_PARAMS = _Plain.__dict__["__dataclass_params__"]

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
        """As `dataclasses.dataclass` with these arguments, for classes whose constructor takes the fields and no more.

        TypeError for a field without an argument, an InitVar and a KW_ONLY; ValueError for a default that objects would
        share, such as a list. Type checkers look at these classes as dataclasses: their order of defaults, and a frozen
        class with a base that is not frozen, are not checked again. Subclasses of a frozen class refuse new attributes,
        too.
        """

        def decorate(cls: type[T]) -> type[T]:
            own = set(vars(cls))
            if "__eq__" in own and vars(cls).get("__hash__") is None:
                # Python has put None there for a class with a method `__eq__`: `dataclass` does not count it either.
                own.discard("__hash__")
            described = _Described(cls, kw_only)
            if slots:
                made = _with_slots(cls, described.names)
            else:
                made = cls
                described.put_defaults()
            described.stand_in(made)
            for name in _methods(frozen, eq) - own:
                setattr(made, name, _first_call(made, name, frozen, eq, own))
            made.__signature__ = _SIGNATURE
            made.__replace__ = replace  # `copy.replace` of Python 3.13 calls it
            if eq and not frozen and "__hash__" not in own:
                made.__hash__ = None
            if frozen:
                made.__setattr__, made.__delattr__ = _refuse_to_set, _refuse_to_delete
                made.__getstate__, made.__setstate__ = _state, _set_state
            return made

        return decorate if cls is None else decorate(cls)


class _Described:
    """Stands for ``__dataclass_fields__`` in a class until somebody looks: then `dataclass` describes its fields."""

    def __init__(self, cls: type[Any], kw_only: bool) -> None:
        self._annotations: dict[str, Any] = get_annotations(cls)
        #: The names of the class's own fields.
        self.names = [
            name
            for name, kind in self._annotations.items()
            if kind is not ClassVar and getattr(kind, "__origin__", None) is not ClassVar
        ]
        self._defaults = {name: cls.__dict__[name] for name in self.names if name in cls.__dict__}
        self._given = {name: default for name, default in self._defaults.items() if isinstance(default, Field)}
        self._kw_only = kw_only
        self._cls = cls
        self._check()

    def _check(self) -> None:
        """Refuse what `lazy_dataclass` does not make, or what `dataclass` would refuse too late."""
        if not all([each.init for each in self._given.values()]):
            raise TypeError(f"{self._cls.__qualname__} has a field without an argument: it needs `dataclass`")
        for name in self.names:
            kind = self._annotations[name]
            if kind is KW_ONLY or isinstance(kind, InitVar):
                raise TypeError(f"{self._cls.__qualname__} has {name}, which is no field: it needs `dataclass`")
        for name, given in self._defaults.items():
            default = given.default if isinstance(given, Field) else given
            if type(default).__hash__ is None:
                raise ValueError(
                    f"all objects of {self._cls.__qualname__} would share the default of {name}: use default_factory"
                )

    def arguments(self) -> "Iterator[_Argument]":
        """The class's own fields as arguments of the constructor."""
        for name in self.names:
            given = self._defaults.get(name, MISSING)
            if not isinstance(given, Field):
                yield _Argument(name, given, MISSING, self._kw_only)
            else:
                is_named = self._kw_only if given.kw_only is MISSING else given.kw_only
                yield _Argument(name, given.default, given.default_factory, is_named)

    def put_defaults(self) -> None:
        """Make plain defaults the attributes of the class, as `dataclass` does without slots."""
        for name, given in self._given.items():
            if given.default is MISSING:
                delattr(self._cls, name)
            else:
                setattr(self._cls, name, given.default)

    def stand_in(self, cls: type[Any]) -> None:
        """Become the attribute of ``cls``."""
        self._cls = cls
        if not self._kw_only and "__match_args__" not in cls.__dict__:
            named = {name for name, given in self._given.items() if given.kw_only is True}
            places = [name for name in self.names if name not in named]
            matched = tuple(dict.fromkeys((*getattr(cls, "__match_args__", ()), *places)))
            setattr(cls, "__match_args__", matched)  # noqa: B010  mypy takes it for a constant
        cls.__dataclass_params__ = _PARAMS
        cls.__dataclass_fields__ = self

    def __get__(self, instance: object, owner: type[Any]) -> dict[str, Field[Any]]:
        # A class with these fields only: bases may do more when they get a subclass.
        names = {"__annotations__": self._annotations, "__module__": self._cls.__module__}
        body = {**self._defaults, **names, **_DOCUMENTED}
        own: type[Any] = type(self._cls.__name__, (), body)
        dataclass(init=False, repr=False, eq=False, kw_only=self._kw_only)(own)
        every: dict[str, Field[Any]] = {}
        for base in reversed(self._cls.__mro__[1:]):
            every |= getattr(base, _FIELDS, {})
        every |= getattr(own, _FIELDS)
        self._cls.__dataclass_fields__ = every
        return every


def _with_slots(cls: type[Any], own_names: list[str]) -> type[Any]:
    """``cls`` made again with slots for its fields, as `dataclass` does."""
    if "__slots__" in cls.__dict__:
        raise TypeError(f"{cls.__name__} already specifies __slots__")
    names = dict.fromkeys(name for base in reversed(cls.__mro__[1:]) for name in _field_names(base))
    names |= dict.fromkeys(own_names)
    inherited = {slot for base in cls.__mro__[1:-1] for slot in base.__dict__.get("__slots__", ())}
    body = {name: value for name, value in cls.__dict__.items() if name not in names}
    body["__slots__"] = tuple([name for name in names if name not in inherited])
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    metaclass: Callable[..., type[Any]] = type(cls)
    made = metaclass(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    return made


def _field_names(base: type[Any]) -> Iterable[str]:
    """The own fields of a base, or all its fields, without having `dataclass` describe them."""
    described = base.__dict__.get(_FIELDS)
    return described.names if isinstance(described, _Described) else [each.name for each in _described_fields(base)]


def _described_fields(cls: type[Any]) -> tuple[Field[Any], ...]:
    """The fields of a class that `dataclass` has described. Its ClassVars, described beside them, are none."""
    return fields(cls) if _FIELDS in cls.__dict__ else ()


def _methods(frozen: bool, eq: bool) -> set[str]:
    return {"__init__", "__repr__"} | ({"__eq__"} if eq else set()) | ({"__hash__"} if eq and frozen else set())


def _first_call(cls: type[Any], name: str, frozen: bool, eq: bool, own: set[str]) -> Callable[..., Any]:
    """A method that replaces itself with the generated method, and calls that."""
    if name == "__init__":
        return _first_init(cls, frozen)

    def method(*args: Any) -> Any:
        made = make_dataclass(cls.__name__, _like(cls), init=False, eq=eq, frozen=frozen, namespace=_DOCUMENTED)
        for each in _methods(frozen, eq) - own - {"__init__"}:
            setattr(cls, each, vars(made)[each])
        return getattr(cls, name)(*args)

    method.__name__ = name
    return method


def _first_init(cls: type[Any], frozen: bool) -> Callable[..., None]:
    """The constructor of the first objects, which reads the fields, and then replaces itself with the generated one.

    Arguments that it does not understand it leaves to the generated constructor, which raises the errors of calls.
    """
    described: list[_Argument] = []
    places: list[str] = []
    has_post_init = hasattr(cls, "__post_init__")
    calls = 0

    def generate() -> None:
        # The generated constructor calls the method of the class that it becomes a method of, if there is one.
        namespace = _DOCUMENTED | ({"__post_init__": None} if has_post_init else {})
        made = make_dataclass(cls.__name__, _like(cls), repr=False, eq=False, frozen=frozen, namespace=namespace)
        cls.__init__ = vars(made)["__init__"]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal calls, described, places
        if calls == 0:
            described = _arguments(cls)
            places = [each.name for each in described if not each.is_named]
        calls += 1
        values = dict(zip(places, args, strict=False))
        is_clear = len(args) <= len(places) and values.keys().isdisjoint(kwargs)
        values.update(kwargs)
        for each in described:
            if each.name not in values and each.default is not MISSING:
                values[each.name] = each.default
            elif each.name not in values and each.factory is not MISSING:
                values[each.name] = each.factory()
        is_clear = is_clear and len(values) == len(described) and all([each.name in values for each in described])
        # Not ==: a call of another thread may be counted meanwhile, and neither call would see this number.
        if calls >= FIRST_CALLS or not is_clear:
            generate()
        if not is_clear:
            cls.__init__(self, *args, **kwargs)
            return
        for each in described:
            object.__setattr__(self, each.name, values[each.name])
        if has_post_init:
            self.__post_init__()

    return __init__


class _Argument(NamedTuple):
    """A field as an argument of the constructor; MISSING for no default, or no factory of a default."""

    name: str
    default: Any
    factory: Any
    is_named: bool


def _arguments(cls: type[Any]) -> list[_Argument]:
    """The arguments of all fields, without having `dataclass` describe them."""
    found: dict[str, _Argument] = {}
    for base in reversed(cls.__mro__):
        described = base.__dict__.get(_FIELDS)
        if isinstance(described, _Described):
            found |= {each.name: each for each in described.arguments()}
        else:
            found |= {
                each.name: _Argument(each.name, each.default, each.default_factory, each.kw_only is True)
                for each in _described_fields(base)
            }
    return list(found.values())


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
