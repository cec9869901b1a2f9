"""The command ``mqproxy``, also as ``python -m skylark.mqproxy``."""

from skylark.mqcommon.daemons.start import start


def main() -> None:
    """The console script."""
    start("skylark.mqproxy.cli:main", prog_name="mqproxy")


if __name__ == "__main__":
    main()
