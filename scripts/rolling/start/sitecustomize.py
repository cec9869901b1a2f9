"""Python runs this before the program of a simulated pod: see scripts/rolling/names.py."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "names.py"))["install"]()
