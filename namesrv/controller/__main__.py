"""The command ``controller``, also as ``python -m namesrv.controller``."""

from mqcommon.daemons.start import start


def main() -> None:
    """The console script."""
    start("namesrv.controller.cli:main", prog_name="controller")


if __name__ == "__main__":
    main()
