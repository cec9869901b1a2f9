"""``python -m scripts.demo`` is the program behind scripts/quickstart."""

from mqcommon.daemons.start import start

start("scripts.demo.quickstart:main")
