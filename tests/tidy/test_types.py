"""Types reach those who install Skylark: mypy in a project elsewhere follows them."""

import subprocess
import sys
from pathlib import Path

ASYNC = """
from sdk import Admin, Client, Message, Producer
from sdk.blocking import Client as BlockingClient

async def main() -> None:
    async with Client("h:1") as client, Producer(client) as producer, Admin("h:1") as admin:
        result = await producer.send(Message("orders", b"tea"))
        reveal_type(result.queue_offset)
        await producer.send(b"tea")
        reveal_type(await admin.topic_list())
        reveal_type(admin.group_exists)
        Producer(BlockingClient())
"""
BLOCKING = """
from sdk import Client as AsyncClient, Message
from sdk.blocking import Admin, Client, Producer

def main() -> None:
    with Client("h:1") as client, Producer(client) as producer, Admin("h:1") as admin:
        result = producer.send(Message("orders", b"tea"))
        reveal_type(result.queue_offset)
        producer.send(b"tea")
        reveal_type(admin.topic_list())
        reveal_type(admin.group_exists)
        Producer(AsyncClient())
"""
SENT_BYTES = 'error: Argument 1 to "send" of "Producer" has incompatible type "bytes"; expected "Message"'
OTHER_SORT = (
    'error: Argument 1 to "Producer" has incompatible type "{}"; expected "str | Path | Sequence[str] | {} | None"'
)


def test_mypy_follows_an_installed_sdk(tmp_path: Path) -> None:
    """The async classes and the blocking ones, which are made from them."""
    (tmp_path / "waiting.py").write_text(ASYNC)
    (tmp_path / "ready.py").write_text(BLOCKING)
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path}", "waiting.py", "ready.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    types = ("sdk.shared.Client", "sdk.blocking.client.Client")
    for program, mine, other in (("waiting.py", *types), ("ready.py", *reversed(types))):
        notes = [line.partition(": ")[2] for line in run.stdout.splitlines() if line.startswith(program)]
        returned = "typing.Coroutine[Any, Any, bool]" if program == "waiting.py" else "bool"
        assert [note.partition("  [")[0] for note in notes] == [
            'note: Revealed type is "int"',
            SENT_BYTES,
            'note: Revealed type is "list[str]"',
            f'note: Revealed type is "def (group: str) -> {returned}"',
            OTHER_SORT.format(other, mine),
        ], run.stdout
