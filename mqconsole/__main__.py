"""The command ``mqconsole``, also as ``python -m skylark.mqconsole``."""

from skylark.mqcommon.daemons.start import start_daemon


def main() -> None:
    """The console script."""
    start_daemon("skylark.mqconsole.cli:main", prog_name="mqconsole")


if __name__ == "__main__":
    main()
