"""Where a table can be: file systems, block sizes, read-only and full ones, and beyond 2^31 and 2^32 rows and bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fast.rows import MODES, RowCache, Segment, Table, open_rows
from tests.fast.rows.tables import Type, make_table, pread_rows
from tests.hostile.conftest import Count

pytestmark = [pytest.mark.hostile, pytest.mark.filterwarnings("ignore::fast.rows.FallbackNotice")]

MIB = 1 << 20
IDS = np.random.default_rng(3).integers(0, 3000, 500)
# The image's size, how it is made, and the block size of its device.
IMAGES = {
    "ext4": (16 * MIB, ["mkfs.ext4", "-q", "-F"], 512),
    "ext4, blocks of 1024": (16 * MIB, ["mkfs.ext4", "-q", "-F", "-b", "1024"], 512),
    "xfs": (300 * MIB, ["mkfs.xfs", "-q", "-f"], 512),
    "btrfs": (128 * MIB, ["mkfs.btrfs", "-q", "-f"], 512),
    "ext4, sectors of 4096": (16 * MIB, ["mkfs.ext4", "-q", "-F"], 4096),
    "xfs, sectors of 4096": (300 * MIB, ["mkfs.xfs", "-q", "-f", "-s", "size=4096"], 4096),
}
UNCACHED = ("direct-uncached", "uring-uncached")


def command(*words: str | Path) -> str:
    """The output of a system command; the test is skipped where it is not there or not allowed."""
    if shutil.which(str(words[0])) is None:
        pytest.skip(f"needs {words[0]}")
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(map(str, words))} is not allowed here: {done.stderr.strip()}")
    return done.stdout.strip()


@pytest.fixture
def mounted(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder on a file system of its own."""
    name = request.param
    folder = tmp_path / "mounted"
    folder.mkdir()
    if name == "tmpfs":
        command("mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder)
        device = None
    else:
        size, make, sector_bytes = IMAGES[name]
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(size)
        device = command("losetup", "--find", "--show", "--sector-size", str(sector_bytes), image)
        try:
            command(*make, device)
            command("mount", device, folder)
        except BaseException:
            subprocess.run(["losetup", "--detach", device], check=False)
            raise
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
        if device:
            subprocess.run(["losetup", "--detach", device], check=True)


def judge(table: Table, count: Count, what: str) -> dict[str, str]:
    """Every mode, with and without a cache in front; what each ran as."""
    expected = pread_rows(table, IDS).tobytes()
    ran = {}
    for mode in MODES:
        with open_rows(table, mode) as reader:
            for _ in range(2):
                assert reader.gather(IDS).tobytes() == expected, mode
            small = b"".join(reader.gather(IDS[at : at + 5]).tobytes() for at in range(0, IDS.size, 5))
            assert small == expected, mode
            ran[mode] = reader.effective_mode
            if ran[mode] != mode:
                assert reader.fallback_reason
        with RowCache(open_rows(table, mode), 100 * table.row_bytes) as cache:
            assert cache.gather(IDS).tobytes() == cache.gather(IDS).tobytes() == expected, mode
    count(f"modes read {what}", len(ran))
    return ran


@pytest.mark.parametrize("mounted", [*IMAGES, "tmpfs"], indirect=True)
def test_every_mode_reads_from_every_file_system(mounted: Path, count: Count, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["mounted"]
    table = make_table(mounted, rows=(1100, 1, 1899))
    os.sync()
    ran = judge(table, count, "from images of file systems")
    if name != "tmpfs":
        assert [ran[mode] for mode in UNCACHED if ran[mode] == mode], ran  # a device has O_DIRECT
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    assert judge(table, count, "from images mounted read-only") == ran


@pytest.mark.parametrize("mounted", ["ext4, sectors of 4096"], indirect=True)
def test_windows_are_as_large_as_the_devices_sectors(mounted: Path) -> None:
    """Reads of 512 bytes would be refused there."""
    from fast.rows.table_files import TableFiles

    files = TableFiles(make_table(mounted), direct=True)
    assert files.align_bytes == 4096
    files.close()


@pytest.mark.parametrize("mounted", ["tmpfs"], indirect=True)
def test_a_full_file_system_leaves_no_result_and_no_part(mounted: Path) -> None:
    """ENOSPC while a result is written: an error that names it, and the earlier file is as it was."""
    from harness.atomic import write_bytes
    from model_file.errors import InputError

    target = mounted / "result.json"
    target.write_text("earlier")
    with (mounted / "rest").open("wb") as file:
        file.write(bytes(15 * MIB))
    with pytest.raises(InputError, match=r"result\.json: cannot be written: No space left"):
        write_bytes(target, bytes(4 * MIB))
    assert target.read_text() == "earlier"
    assert sorted(path.name for path in mounted.iterdir()) == ["rest", "result.json"]


def sparse_table(folder: Path, rows: int, width: int) -> tuple[Table, dict[int, bytes]]:
    """A table of F16 rows in a file that is all hole, but for some rows around every power of two."""
    row_bytes = 2 * width
    path = folder / "sparse.table"
    rng = np.random.default_rng(1)
    marks = {row for power in range(28, 34) for unit in (1, row_bytes) for near in range(-2, 3)
             if 0 <= (row := (1 << power) // unit + near) < rows}  # fmt: skip
    marks |= {0, rows - 1}
    content = {row: rng.bytes(row_bytes) for row in sorted(marks)}
    try:
        with path.open("wb") as file:
            file.truncate(32 + rows * row_bytes)
            for row, data in content.items():
                file.seek(32 + row * row_bytes)
                file.write(data)
    except OSError as error:
        pytest.skip(f"{folder}: no sparse file of {rows * row_bytes:,} bytes: {error.strerror}")
    return Table(Type.F16, rows, width, row_bytes, (Segment(path, 32, 0, rows),)), content


@pytest.mark.parametrize(
    ("rows", "width"),
    [((1 << 32) + 10, 2), ((1 << 31) + 10, 2), (60_000_000, 64)],
    ids=["2^32 rows", "2^31 rows", "2^32 bytes in few rows"],
)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "resident"])
def test_rows_and_bytes_beyond_32_bits_are_found(
    tmp_path: Path, rows: int, width: int, mode: str, count: Count
) -> None:
    table, content = sparse_table(tmp_path, rows, width)
    ids = np.array(sorted(content), np.uint64)
    expected = b"".join(content[row] for row in sorted(content))
    order = np.random.default_rng(2).permutation(ids.size)
    with open_rows(table, mode) as reader:
        assert reader.gather(ids).tobytes() == expected
        assert reader.gather(ids).tobytes() == expected
        assert reader.gather(ids[order]).tobytes() == b"".join(content[int(row)] for row in ids[order])
        for row in ids[-8:]:
            assert reader.gather(np.array([row])).tobytes() == content[int(row)]
        with pytest.raises(ValueError, match=f"the table has rows 0 to {rows - 1}"):
            reader.gather(np.array([rows], np.uint64))
    count("rows beyond 2^28 rows or bytes", ids.size)
