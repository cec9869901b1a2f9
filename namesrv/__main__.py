"""``python -m namesrv`` is the command ``namesrv``."""

from namesrv.cli import main

main(prog_name="namesrv")
