"""The command ``skylark``, also as ``python -m skylark``."""

from skylark.mqcommon.daemons.start import start


def main() -> None:
    """The entry point of the console script."""
    start("skylark.cli.main:main", prog_name="skylark")


if __name__ == "__main__":
    main()
