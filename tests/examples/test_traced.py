"""examples/traced.py: what follows from a request or a task is one trace, and all of it is in the picture."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from tests.tidy.tree import ROOT

ORDERS = """\
POST /orders
  send orders
    process orders
order 1
  apply_async/shop.charge
    send celery
    run/shop.charge
      apply_async/shop.charge
        send celery
        run/shop.charge
          apply_async/shop.receipt
            send celery
            run/shop.receipt
              send celery-replies
          send celery-replies
      send celery-replies
"""


def test_both_orders_are_in_the_picture(tmp_path: Path) -> None:
    picture = tmp_path / "traces.svg"
    command = [sys.executable, str(ROOT / "examples" / "traced.py"), str(picture)]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.endswith(f"{ORDERS}{picture}: 16 spans\n")
    texts = {element.text for element in ElementTree.parse(picture).iter() if element.text}
    assert {line.strip() for line in ORDERS.splitlines()} <= texts
