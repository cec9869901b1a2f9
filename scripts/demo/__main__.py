"""``python -m scripts.demo`` is the program behind scripts/quickstart."""

from skylark.mqcommon.daemons.start import start

start("scripts.demo.quickstart:main")
