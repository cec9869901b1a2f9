"""What to install when the packages of an extra are missing: a line that works for the Skylark that runs.

Skylark is installed from a clone, a wheel or a package index. pip notes which in ``direct_url.json`` (PEP 610), so the
line names the same source, and the same installer: pip, uv or pipx. Every error text takes its line from here.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skylark.mqcommon.errors import UserError

PACKAGE = "skylark-mq"
# Stands for a source that no longer exists, or was never known. Docs use the same path.
_ANY_CLONE = "file:///path/to/clone"


def missing_extra(what: str, extra: str, why: object) -> str:
    """The error text when ``what`` cannot work without ``extra``; ``why`` is the ImportError, or a text.

    ``extra`` may name several extras: ``spark,formats``.
    """
    return f"{what} needs Skylark's extra {extra} ({why}): {install_line(extra)}"


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """The block imports what ``what`` needs of ``extra``. UserError when a package is missing, or does not fit."""
    try:
        yield
    except Exception as error:
        # Of protobuf's own errors only the one for a version that does not fit; its class may not be there to import.
        if not isinstance(error, ImportError) and type(error).__name__ != "VersionError":
            raise
        raise UserError(missing_extra(what, extra, error)) from None


def install_line(extra: str) -> str:
    """The command that adds ``extra`` to this installation."""
    # Imported here: daemons start sooner without these modules.
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        installed = distribution(PACKAGE)
    except PackageNotFoundError:
        return _line("pip install", extra, _source_tree())
    install = _install(installed.read_text("INSTALLER") or "")
    note = installed.read_text("direct_url.json")
    if note is None:
        return f'{install} "{PACKAGE}[{extra}]"'
    source = json.loads(note)
    path = Path(unquote(urlsplit(source["url"]).path))
    if source.get("dir_info", {}).get("editable"):
        return f'{install} -e "{path}[{extra}]"'
    if repository := source.get("vcs_info"):
        return _line(install, extra, f"{repository['vcs']}+{source['url']}@{repository['commit_id']}")
    # An image may have removed the clone after the installation.
    is_there = path.exists() or not source["url"].startswith("file:")
    return _line(install, extra, source["url"] if is_there else _ANY_CLONE)


def _install(installer: str) -> str:
    """The beginning of a command for this environment. Environments of uv and of pipx have no pip of their own."""
    if installer.strip() == "uv":
        return f'uv pip install --python "{sys.prefix}"'
    if Path(sys.prefix, "pipx_metadata.json").exists():
        return f"pipx runpip {Path(sys.prefix).name} install"
    return "pip install"


def _line(install: str, extra: str, url: str) -> str:
    return f'{install} "{PACKAGE}[{extra}] @ {url}"'


def _source_tree() -> str:
    """The clone whose files run without being installed, as with PYTHONPATH; any clone when they are in a zip."""
    tree = Path(__file__).resolve().parents[1]
    return tree.as_uri() if (tree / "setup.cfg").exists() else _ANY_CLONE
