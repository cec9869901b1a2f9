"""What the kernel says about a map."""

import mmap
from pathlib import Path

from mqcommon.disk.page_cache import address_of, resident

PAGE = mmap.PAGESIZE


def test_the_pages_of_a_map_that_were_touched_are_resident(tmp_path: Path) -> None:
    # far larger than what a page fault reads ahead
    with (tmp_path / "f").open("w+b") as file:
        file.truncate(8192 * PAGE)
        view = mmap.mmap(file.fileno(), 8192 * PAGE)
    address = address_of(view)
    assert not resident(address + 100 * PAGE, 1)
    view[100 * PAGE] = 1
    assert resident(address + 100 * PAGE, 1)
    assert resident(address + 101 * PAGE - 1, 1)
    assert not resident(address, 8192 * PAGE)
    view.close()  # nothing keeps it open


def test_where_the_kernel_does_not_tell_bytes_count_as_resident() -> None:
    assert resident(PAGE, 1), "no map there"
