"""``python -m scripts.demo`` is the program behind scripts/quickstart."""

from mqcommon.start import start

start("scripts.demo.quickstart:main")
