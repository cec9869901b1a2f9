"""The command ``controller``, also as ``python -m skylark.namesrv.controller``."""

from skylark.mqcommon.daemons.start import start_daemon


def main() -> None:
    """The console script."""
    start_daemon("skylark.namesrv.controller.cli:main", prog_name="controller")


if __name__ == "__main__":
    main()
