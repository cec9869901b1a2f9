"""The command ``broker``, also as ``python -m skylark.broker``."""

from skylark.mqcommon.daemons.start import start_daemon


def main() -> None:
    """The console script."""
    start_daemon("skylark.broker.cli:main", prog_name="broker")


if __name__ == "__main__":
    main()
