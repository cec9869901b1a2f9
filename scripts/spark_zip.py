"""``python -m scripts.spark_zip FILE``: the program behind scripts/spark_package."""

import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from scripts.daemons import ROOT

# The broker is there for its readers of store directories.
OURS = ("mqcommon", "remoting", "sdk", "broker", "spark_connector", "pyspark_rocketmq")
# What they import, where it is pure Python: trio with what it needs, and the command lines of the jobs.
PURE = ("trio", "outcome", "attr", "attrs", "sniffio", "idna", "sortedcontainers", "click", "javaproperties")
# What cannot be imported from a zip.
COMPILED = ("numpy", "pyarrow", "pandas", "orjson", "cbor2")


def make_zip(path: Path) -> list[str]:
    """Write the zip; returns the names of the packages in it. SystemExit when one is not installed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (*OURS, *PURE):
            home, files = _found(name)
            for file in files:
                archive.write(file, file.relative_to(home).as_posix())
    return [*OURS, *PURE]


def _found(name: str) -> tuple[Path, Iterator[Path]]:
    """The folder that has the package, and its files."""
    ours = ROOT / name
    if name in OURS and not ours.is_dir():
        return ROOT, iter([ours.with_suffix(".py")])
    if name not in OURS:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"spark_package: {name} is not installed for {sys.executable}: pip install -e '.[spark]'")
        ours = Path(spec.submodule_search_locations[0])
    return ours.parent, _files(ours)


def _files(package: Path) -> Iterator[Path]:
    for file in sorted(package.rglob("*")):
        inside = file.relative_to(package).parts
        if file.suffix in (".so", ".pyd"):
            raise SystemExit(f"spark_package: {file} is compiled and cannot be imported from a zip")
        if file.is_file() and file.suffix != ".pyc" and "__pycache__" not in inside and "_tests" not in inside:
            yield file


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "skylark-spark.zip")
    names = make_zip(path)
    print(f"{path}: {', '.join(names)}")
    print(f"the executors' Python {sys.version_info[0]}.{sys.version_info[1]} needs besides: {', '.join(COMPILED)}")


if __name__ == "__main__":
    main()
