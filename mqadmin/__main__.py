"""The command ``mqadmin``, also as ``python -m skylark.mqadmin``."""

from skylark.mqcommon.daemons.start import start


def main() -> None:
    """The entry point of the console script."""
    start("skylark.mqadmin.cli:main", prog_name="mqadmin")


if __name__ == "__main__":
    main()
