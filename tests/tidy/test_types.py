"""Types reach those who install Skylark: mypy in a project elsewhere follows them."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from sdk import Message, Producer

async def main(producer: Producer) -> None:
    result = await producer.send(Message("orders", b"tea"))
    reveal_type(result.queue_offset)
    await producer.send(b"tea")
"""


def test_mypy_follows_an_installed_sdk(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path}", "program.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    notes = [line.partition(": ")[2] for line in run.stdout.splitlines()]
    assert notes[0] == 'note: Revealed type is "int"'
    assert notes[1].startswith('error: Argument 1 to "send" of "Producer" has incompatible type "bytes"')
    assert len(notes) == 3, run.stdout
