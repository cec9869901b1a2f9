"""The quickstart with forked daemons: see warm_daemons.py. Its arguments are the same as of scripts/quickstart."""

import sys

from scripts.daemons import Daemon
from scripts.demo.quickstart import main
from tests.support.warm_daemons import WarmDaemons

if __name__ == "__main__":
    warm = WarmDaemons()
    Daemon.launch = warm.start
    try:
        sys.exit(main())
    finally:
        warm.close()
