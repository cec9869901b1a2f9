"""Classes of skylark.aio and skylark.blocking have every method of the trio classes, its parameters and docstring."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from types import ModuleType
from typing import Any

import pytest

import skylark
from skylark import aio, blocking

CLASSES = ["Admin", "Client", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer", "TransactionProducer"]
# Parameters of constructors that have types of their own in facades.
OF_FACADES = {"nameserver", "handler", "batch_handler", "arrow_handler", "checker"}


def methods_for_users(cls: type) -> Iterator[str]:
    """The public methods and properties of ``cls``, but for those under a heading ``# --- used by ...``."""
    for base in cls.__mro__:
        if not base.__module__.startswith("skylark.sdk."):
            continue
        is_inside = False
        for line in inspect.getsource(base).splitlines():
            if line.startswith("    # --- "):
                is_inside = line.startswith("    # --- used by ")
            if (found := re.match(r"    (?:async )?def ([a-z]\w*)\(", line)) and not is_inside:
                yield found[1]


def parameters(function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


def annotations(function: Callable[..., Any]) -> dict[str, object]:
    """Types of parameters, without the names that modules give to types."""
    return {one.name: one.annotation for one in inspect.signature(function).parameters.values()}


@pytest.mark.parametrize("package", [aio, blocking])
@pytest.mark.parametrize("name", CLASSES)
def test_each_method_is_there_as_in_trio(package: ModuleType, name: str) -> None:
    trio_class, made = getattr(skylark, name), getattr(package, name)
    names = list(methods_for_users(trio_class))
    assert names
    for key in names:
        ours, theirs = getattr(made, key), getattr(trio_class, key)
        assert inspect.getdoc(ours) == inspect.getdoc(theirs), key
        if not isinstance(theirs, property):
            assert parameters(ours) == parameters(theirs), key
            assert inspect.iscoroutinefunction(ours) == (package is aio and inspect.iscoroutinefunction(theirs)), key


@pytest.mark.parametrize("package", [aio, blocking])
@pytest.mark.parametrize("name", CLASSES)
def test_each_class_takes_and_says_what_the_trio_class_does(package: ModuleType, name: str) -> None:
    trio_class, made = getattr(skylark, name), getattr(package, name)
    assert parameters(made.__init__) == parameters(trio_class.__init__)
    ours, theirs = annotations(made.__init__), annotations(trio_class.__init__)
    assert {key for key in ours if ours[key] != theirs[key]} <= OF_FACADES
    said = trio_class.__doc__ if package is aio else trio_class.__doc__.replace("async with", "with")
    assert made.__doc__.startswith(said.rstrip())


@pytest.mark.parametrize("package", [aio, blocking])
def test_a_subclass_says_what_it_wants(package: ModuleType) -> None:
    class Mine(package.Producer):  # type: ignore[name-defined, misc]
        """Mine."""

    assert Mine.__doc__ == "Mine."


@pytest.mark.parametrize("package", [skylark, aio, blocking])
def test_every_signature_names_its_arguments(package: ModuleType) -> None:
    """What ``help`` shows to a caller, who would guess names otherwise."""
    for name in package.__all__:
        one = getattr(package, name)
        members = [one, *[each for key, each in inspect.getmembers(one, callable) if not key.startswith("_")]]
        for each in members if inspect.isclass(one) and not issubclass(one, BaseException | Enum) else []:
            with suppress(ValueError):  # of C functions
                kinds = {parameter.kind for parameter in inspect.signature(each).parameters.values()}
                assert inspect.Parameter.VAR_POSITIONAL not in kinds, each
