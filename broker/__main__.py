"""The command ``broker``, also as ``python -m broker``."""

from mqcommon.daemons.start import start


def main() -> None:
    """The console script."""
    start("broker.cli:main", prog_name="broker")


if __name__ == "__main__":
    main()
