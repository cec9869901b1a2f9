"""The command ``namesrv``, also as ``python -m skylark.namesrv``."""

from skylark.mqcommon.daemons.start import start_daemon


def main() -> None:
    """The console script."""
    start_daemon("skylark.namesrv.cli:main", prog_name="namesrv")


if __name__ == "__main__":
    main()
