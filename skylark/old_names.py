"""``import sdk`` and ``python -m broker`` in the root of a clone: the modules of ``skylark.sdk``, not second copies.

Only a clone has these names at its top. Each package there calls `lend` when it is imported by its short name.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import CodeType, ModuleType


class _Lender(MetaPathFinder, InspectLoader):
    """Finds ``sdk.client`` as ``skylark.sdk.client``; ``python -m`` finds each ``__main__`` by its file, as always."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._spec: ModuleSpec | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(f"{self._package}.") or name.endswith(".__main__"):
            return None
        lent = find_spec(f"skylark.{name}")
        if lent is None:
            return None
        is_package = lent.submodule_search_locations is not None
        return spec_from_loader(name, self, origin=lent.origin, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"skylark.{spec.name}")
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec again: the import by the short name replaced the spec."""
        module.__spec__ = self._spec

    def get_code(self, name: str) -> CodeType | None:
        """The code of the module, for ``python -m``."""
        lent = find_spec(f"skylark.{name}")
        return lent.loader.get_code(lent.name) if lent and isinstance(lent.loader, InspectLoader) else None

    def get_source(self, name: str) -> None:
        """None: ``python -m`` needs only the code."""


def lend(package: str) -> None:
    """Let the top package ``package`` and all modules in it be the modules of ``skylark``."""
    sys.meta_path.insert(0, _Lender(package))
    sys.modules[package] = import_module(f"skylark.{package}")
