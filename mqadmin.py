"""The command ``mqadmin``, also as ``python -m mqadmin``."""

from mqcommon.daemons.start import start


def main() -> None:
    """The entry point of the console script."""
    start("sdk.admin.cli:main", prog_name="mqadmin")


if __name__ == "__main__":
    main()
