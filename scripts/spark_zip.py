"""``python -m scripts.spark_zip FILE``: the program behind scripts/spark_package."""

import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from scripts.daemons import ROOT
from skylark.mqcommon.extras import missing_extra

# The packages of skylark that Spark's workers import; of the broker they need the readers of store directories.
OURS = ("mqcommon", "remoting", "sdk", "broker", "spark_connector")
# The module by which Spark finds the data source.
FINDER = "pyspark_rocketmq.py"
# The pure-Python packages that these import: trio with its dependencies, and click for the jobs.
PURE = ("trio", "outcome", "attr", "attrs", "sniffio", "idna", "sortedcontainers", "click", "javaproperties")
# Packages that cannot be imported from a zip.
COMPILED = ("numpy", "pyarrow", "pandas", "orjson", "cbor2")


def make_zip(path: Path) -> list[str]:
    """Write the zip; returns the names of the packages in it. SystemExit when a package is not installed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(ROOT / FINDER, FINDER)
        for folder in ("skylark", *(f"skylark/{name}" for name in OURS)):
            for file in _files(ROOT / folder):
                archive.write(file, file.relative_to(ROOT).as_posix())
        for name in PURE:
            package = _installed(name)
            for file in _files(package):
                archive.write(file, file.relative_to(package.parent).as_posix())
    return ["skylark", *PURE]


def _installed(name: str) -> Path:
    """The folder of a package."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(missing_extra("spark_package", "spark", f"{name} is not installed for {sys.executable}"))
    return Path(spec.submodule_search_locations[0])


def _files(package: Path) -> Iterator[Path]:
    """The files of a package, without files behind links: these belong to other packages."""
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
