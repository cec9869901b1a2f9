"""``python -m scripts.release``: the program behind scripts/release."""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts.daemons import ROOT
from scripts.packages import MESSAGE, RECEIVED, copy_tree, fresh_venv, run_quietly
from skylark.mqcommon.version import VERSION

TAG = f"v{VERSION}"
DIST = ROOT / "dist"
# Named in full: skylark_mq-1.0.0* would be the files of 1.0.0rc1, too.
FILES = f"skylark_mq-{VERSION}-py3-none-any.whl", f"skylark_mq-{VERSION}.tar.gz"
UPLOAD = " ".join(("twine upload", *(f"{DIST.name}/{name}" for name in FILES)))
NEXT = f"""\
{TAG} is ready in {DIST.name}/. Next:
  git tag -a {TAG} -m "Skylark {VERSION}" && git push origin {TAG}
  .venv/bin/python -m {UPLOAD}   # to a package index, with an account there
then write the next version into mqcommon/version.py, and a heading for it into CHANGELOG.md."""


def mistake_in(changelog: str, changed: str, tagged: str, head: str) -> str:
    """Why there can be no release; "" when there can be one.

    ``changed``: what is not committed. ``tagged``: the commit of the version's tag, "" without a tag. ``head``: the
    last commit.
    """
    found = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    newest = found[1] if found else "nothing"
    if newest != VERSION:
        return f"CHANGELOG.md begins with {newest}, and the version in mqcommon/version.py is {VERSION}"
    if changed:
        return f"not committed yet:\n{changed}"
    if tagged not in ("", head):
        return f"the tag {TAG} is an earlier commit: write a new version into mqcommon/version.py and CHANGELOG.md"
    return ""


def try_package(package: Path, home: Path) -> None:
    """Install ``package`` into a fresh virtual environment in ``home``, and send a message there."""
    python = fresh_venv(home)
    run_quietly([python, "-m", "pip", "install", "--disable-pip-version-check", package])
    said = run_quietly([python.parent / "skylark", "version"])
    if VERSION not in said:
        raise SystemExit(f"{package.name}: skylark version says {said}")
    received = run_quietly([python, "-c", MESSAGE]).strip()
    if received != RECEIVED:
        raise SystemExit(f"{package.name}: a message came back as {received!r}")


def main() -> None:
    mistake = mistake_in(
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        _git("status", "--porcelain"),
        _git("tag", "--list", TAG) and _git("rev-list", "-n", "1", TAG),
        _git("rev-parse", "HEAD"),
    )
    if mistake:
        raise SystemExit(f"release: {mistake}")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        copy_tree(home / "tree")
        began = time.monotonic()
        # The wheel is made from the sdist, as a package index would, in environments of their own.
        run_quietly([sys.executable, "-m", "build", "--outdir", DIST, home / "tree"])
        packages = [DIST / name for name in FILES]
        run_quietly([sys.executable, "-m", "twine", "check", "--strict", *packages])
        _tell(f"made and checked {', '.join(package.name for package in packages)}", began)
        for number, package in enumerate(packages):
            began = time.monotonic()
            try_package(package, home / f"venv-{number}")
            _tell(f"installed {package.name}, and sent a message", began)
    print(NEXT)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _tell(what: str, began: float) -> None:
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
