"""What a program reads that lacks the packages of an extra."""

import sys
from importlib import import_module

import pytest


class Without:
    """An import finder that knows nothing of some packages."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("skylark.integrations.faststream", "fast_depends", "faststream"),
        ("skylark.integrations.faststream", "faststream", "faststream"),
        ("skylark.integrations.otel", "opentelemetry", "otel"),
        ("skylark.integrations.kombu", "kombu", "celery"),
    ],
)
def test_the_line_to_type_is_named(module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == package or name.startswith((module, module.replace("skylark", "skylark.sdk"))):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Without(package), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match=rf"{module} needs .*extra {extra} \(No module named '{package}"):
        import_module(module)


def test_another_missing_module_is_not_blamed_on_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("skylark.integrations.otel", "skylark.sdk.integrations.otel")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "skylark.sdk.integrations.otel.telemetry", None)
    with pytest.raises(ImportError) as failed:
        import_module("skylark.integrations.otel")
    assert "extra" not in str(failed.value)
