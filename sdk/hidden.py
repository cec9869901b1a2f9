"""Finds modules of the program that hide Skylark's packages: a ``broker.py`` beside a script comes first on sys.path.

It imports none of our packages itself, since each of them may be the hidden one.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

_OURS = Path(__file__).parent.parent


def import_home(module: str) -> ModuleType:
    """Import a module of the SDK. An ImportError says so when the program hides a package that the SDK needs."""
    try:
        return import_module(module)
    except ImportError as error:
        raise hidden_package("mqcommon", "remoting") or error from None


def hidden_package(*packages: str) -> ImportError | None:
    """The error that says which file hides the first of these packages that is hidden; None when none is.

    The packages are not imported to find out: a program's ``broker.py`` would start its broker.
    """
    for package in packages:
        place = _place_of(package)
        if place is not None and not _is_ours(place, package):
            return ImportError(
                f"{place} hides Skylark's package {package!r}, which the SDK needs: "
                f"rename it, or put it into a package of your project (as myproject/{place.name})",
                name=package,
                path=str(place),
            )
    return None


def _is_ours(place: Path, package: str) -> bool:
    ours = _OURS / package
    return place.is_relative_to(ours) or place.resolve().is_relative_to(ours.resolve())


def _place_of(package: str) -> Path | None:
    """The file or folder that ``import package`` finds, or has found; None when there is none."""
    module = sys.modules.get(package)
    if module is not None:
        file = getattr(module, "__file__", None)
    else:
        spec = find_spec(package)
        file = None if spec is None else spec.origin
    if file is None:
        return None
    path = Path(file)
    return path.parent if path.name == "__init__.py" else path
