"""One target with atheris: ``python -m tests.fuzz.guided TARGET SECONDS``. What fails is in a file ``crash-*``."""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports():
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Begin with the good input of the target."""
    name, seconds = sys.argv[1:3]
    target = TARGETS[name]
    with tempfile.TemporaryDirectory() as directory:
        for number, good in enumerate(target.corpus()):
            (Path(directory) / str(number)).write_bytes(good)
        atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", directory], target.read)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
