"""A reader types blocks as pages mark them, and names the block that fails."""

from pathlib import Path

import pytest

from scripts.daemons import execute
from tests.support.manual import NAMESERVER, Reader, blocks

MARKED = """\
# Title

```text
not typed
```

<!-- not run: it needs the moon -->
```sh
fly
```

```python title="hello.py"
print("hello")
```
"""


def read(text: str, folder: Path) -> None:
    page = folder / "page.md"
    page.write_text(text)
    with Reader(folder, execute, {NAMESERVER: "127.0.0.1:1"}) as reader:
        reader.read(blocks(str(page)))


def test_blocks_have_a_language_a_title_and_a_mark(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(MARKED)
    text, shell, program = blocks(str(page))
    assert (text.language, text.text, text.line) == ("text", "not typed\n", 3)
    assert (shell.language, shell.not_run, shell.prints) == ("sh", "it needs the moon", "")
    assert (program.language, program.title, program.not_run) == ("python", "hello.py", "")


def test_a_file_is_there_for_the_shell_with_the_address_of_the_test(tmp_path: Path) -> None:
    program = f"```python title=\"a.py\"\nassert '{NAMESERVER}' == '127.0.0.1:' + str(1)\n```\n"
    read(f"{program}\n```sh\npip install nothing\npython a.py > a\n```\n", tmp_path)
    assert (tmp_path / "a").exists()


def test_a_program_that_runs_until_ctrl_c_is_interrupted(tmp_path: Path) -> None:
    read("<!-- runs until Ctrl-C; prints ready -->\n```sh\necho ready\ntail -f /dev/null\n```\n", tmp_path)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("```sh\necho broken\nexit 3\n```\n", "exit code 3\nbroken"),
        ("<!-- runs until Ctrl-C; prints done -->\n```sh\necho done\nexit 1\n```\n", "page.md:2"),
        ("<!-- runs until Ctrl-C; prints ready -->\n```sh\necho no\n```\n", "page.md:2 has ended"),
    ],
)
def test_a_block_that_fails_is_named(block: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=said):
        read(block, tmp_path)
