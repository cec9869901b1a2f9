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
AIO = """
from sdk import Client as TrioClient, Message
from sdk.aio import Admin, Client, Producer

async def main() -> None:
    async with Client("h:1") as client, Producer(client) as producer, Admin("h:1") as admin:
        result = await producer.send(Message("orders", b"tea"))
        reveal_type(result.queue_offset)
        await producer.send(b"tea")
        reveal_type(await admin.topic_list())
        reveal_type(admin.group_exists)
        Producer(TrioClient())
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
SENT_BYTES = 'error: Argument 1{} has incompatible type "bytes"; expected "Message"'
OTHER_SORT = (
    'error: Argument 1 to "Producer" has incompatible type "{}"; expected "str | Path | Sequence[str] | {} | None"'
)


def test_mypy_follows_an_installed_sdk(tmp_path: Path) -> None:
    """The trio classes, and those for asyncio and threads, which are made from them."""
    (tmp_path / "waiting.py").write_text(ASYNC)
    (tmp_path / "asynchronous.py").write_text(AIO)
    (tmp_path / "ready.py").write_text(BLOCKING)
    programs = ["waiting.py", "asynchronous.py", "ready.py"]
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path}", *programs]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    types = ("sdk.client.Client", "sdk.blocking.client.Client")
    others = (types[1], types[0], types[0])
    for program, mine, other in zip(programs, (types[0], "sdk.aio.client.Client", types[1]), others, strict=True):
        notes = [line.partition(": ")[2] for line in run.stdout.splitlines() if line.startswith(program)]
        returned = "bool" if program == "ready.py" else "typing.Coroutine[Any, Any, bool]"
        assert [note.partition("  [")[0] for note in notes] == [
            'note: Revealed type is "int"',
            SENT_BYTES.format(' to "send" of "Producer"' if program == "waiting.py" else ""),
            'note: Revealed type is "list[str]"',
            f'note: Revealed type is "def (group: str) -> {returned}"',
            OTHER_SORT.format(other, mine),
        ], run.stdout
