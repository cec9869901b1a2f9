"""The command ``mqadmin``, also as ``python -m mqadmin``. Not in `sdk`: importing that package takes a moment."""

from mqcommon.start import start


def main() -> None:
    """The console script."""
    start("sdk.admin.cli:mqadmin", prog_name="mqadmin")


if __name__ == "__main__":
    main()
