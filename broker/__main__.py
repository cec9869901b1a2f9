"""``python -m broker`` is the command ``broker``."""

from broker.cli import main

main(prog_name="broker")
