"""The command ``broker``, also as ``python -m skylark.broker``."""

from skylark.mqcommon.daemons.start import start


def main() -> None:
    """The console script."""
    start("skylark.broker.cli:main", prog_name="broker")


if __name__ == "__main__":
    main()
