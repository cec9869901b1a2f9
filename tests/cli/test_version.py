"""`skylark version`."""

import platform
from importlib.metadata import PackageNotFoundError

import pytest
from click.testing import CliRunner

from skylark.cli import version
from skylark.cli.main import skylark
from skylark.mqcommon.version import VERSION
from tests.support.without_extra import OF_DEVELOPERS


def shown() -> list[list[str]]:
    return [line.split(maxsplit=1) for line in CliRunner().invoke(skylark, ["version"]).output.splitlines()]


def test_versions_and_extras_are_shown() -> None:
    rows = dict(shown())
    assert rows["skylark"] == VERSION and rows["python"] == platform.python_version()
    assert "console" in rows["extras"]


def test_an_extra_without_its_packages_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = version.version

    def without_celery(package: str) -> str:
        if package == "celery":
            raise PackageNotFoundError(package)
        return known(package)

    monkeypatch.setattr(version, "version", without_celery)
    rows = dict(shown())
    # Other extras may be missing here, too.
    assert "celery" in rows["missing"].split(", ") and "celery" not in rows["extras"]


def test_it_works_uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(version, "version", nothing)
    monkeypatch.setattr(version, "distribution", nothing)
    rows = dict(shown())
    assert (rows["skylark"], rows["trio"]) == (VERSION, "not installed by pip")
    assert rows["extras"].startswith("unknown")


def test_each_extra_of_users_is_named() -> None:
    of_the_repository = {*OF_DEVELOPERS, "demo"}
    assert {*version.EXTRAS} == version.packages_of_extras().keys() - of_the_repository
