"""The memory limit of this process, as both versions of cgroups tell it."""

from pathlib import Path

import pytest

from skylark.mqcommon.daemons.memory import MIB, MemoryLimit, MemoryWatch, memory_limit

MACHINE = memory_limit(Path("/nowhere"))


def cgroups(root: Path, own: str, files: dict[str, str]) -> Path:
    """A root with /proc/self/cgroup and these files of /sys/fs/cgroup."""
    for name, text in {
        "proc/self/cgroup": own,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_cgroups_the_machine_is_the_limit() -> None:
    assert MACHINE.limit_bytes > 128 * MIB
    assert MACHINE.source == "the machine"
    assert MACHINE.used_bytes() is None
    assert MemoryWatch(MACHINE).check() == ""


@pytest.mark.parametrize(
    ("own", "files", "directory", "limit_mib"),
    [
        ("0::/\n", {"memory.max": f"{64 * MIB}\n"}, "", 64),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{32 * MIB}\n"}, "a", 32),
        ("0::/a/b\n", {"a/b/memory.max": f"{16 * MIB}\n", "a/memory.max": f"{32 * MIB}\n"}, "a/b", 16),
        ("3:cpu:/x\n4:memory:/x\n0::/x\n", {"memory/x/memory.limit_in_bytes": f"{8 * MIB}\n"}, "memory/x", 8),
        # In a container the path is the host's.
        ("4:cpu,memory:/docker/1f\n", {"memory/memory.limit_in_bytes": f"{8 * MIB}\n"}, "memory", 8),
    ],
    ids=["v2 container", "v2 around", "v2 own", "v1", "v1 container"],
)
def test_the_least_limit_counts(
    tmp_path: Path, own: str, files: dict[str, str], directory: str, limit_mib: int
) -> None:
    found = memory_limit(cgroups(tmp_path, own, files))
    assert found.limit_bytes == limit_mib * MIB
    assert Path(found.source) == tmp_path / "sys/fs/cgroup" / directory
    assert str(found) == f"{limit_mib} MiB ({found.source})"


@pytest.mark.parametrize("text", ["max", "9223372036854771712", "", "nonsense"])
def test_no_limit_of_a_cgroup_leaves_the_machines(tmp_path: Path, text: str) -> None:
    assert memory_limit(cgroups(tmp_path, "0::/\n", {"memory.max": text})) == MACHINE


@pytest.mark.parametrize(
    ("version", "stat"),
    [(2, "anon 70\nfile 900\nshmem 20\n"), (1, "rss 1\ntotal_rss 70\ntotal_shmem 20\ntotal_cache 900")],
)
def test_pages_of_files_do_not_count_as_used(tmp_path: Path, version: int, stat: str) -> None:
    (tmp_path / "memory.stat").write_text(stat)
    assert MemoryLimit(100, str(tmp_path), version).used_bytes() == 90


def test_use_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    limit = MemoryLimit(100, str(tmp_path), 2)
    assert limit.used_bytes() is None
    (tmp_path / "memory.stat").write_text("no such table")
    assert limit.used_bytes() is None


def test_short_memory_is_told_once_and_so_is_its_end(tmp_path: Path) -> None:
    watch = MemoryWatch(MemoryLimit(100 * MIB, str(tmp_path), 2))

    def lines(*used_mib: int) -> list[str]:
        found = []
        for used in used_mib:
            (tmp_path / "memory.stat").write_text(f"anon {used * MIB}\n")
            found.append(watch.check().partition(":")[0])
        return [line for line in found if line]

    assert lines(10, 89) == []
    assert lines(90, 95, 85, 91) == ["memory is short"]
    assert lines(79, 85) == ["memory is enough again"]
    assert lines(99) == ["memory is short"]
