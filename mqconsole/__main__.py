"""The command ``mqconsole``, also as ``python -m skylark.mqconsole``."""

from skylark.mqcommon.daemons.start import start


def main() -> None:
    """The console script."""
    start("skylark.mqconsole.cli:main", prog_name="mqconsole")


if __name__ == "__main__":
    main()
