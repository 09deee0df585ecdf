"""A block device that fails: its end is taken away under a mounted file system, so that the kernel says EIO there."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from fast.rows import MODES, open_rows, residency
from model_file.tensors import TABLE
from tests import gguf_edit
from tests.fast.rows.commands import table_of
from tests.hostile.conftest import Count
from tests.hostile.test_places import MIB, command

pytestmark = [pytest.mark.hostile, pytest.mark.slow, pytest.mark.filterwarnings("ignore::fast.rows.FallbackNotice")]
ROOT = Path(__file__).parents[2]
ROWS, ROW_BYTES = 24_000, 512
FIBMAP, BLOCK = 1, 4096  # which block of the device a block of a file is
MAPPED = ("mmap", "mmap-sequential", "mmap-random", "prefetch")


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Path]:
    """A model of which the header and the first rows can be read, and nothing else."""
    folder, image = tmp_path / "mounted", tmp_path / "image"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    device = command("losetup", "--find", "--show", image)
    try:
        command("mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-b", str(BLOCK), device)
        command("mount", device, folder)
        packed = np.random.default_rng(1).integers(0, 60, (ROWS, ROW_BYTES), dtype=np.uint8)
        keys: gguf_edit.Keys = {"general.architecture": ("gemma3n", gguf.GGUFValueType.STRING, None)}
        data = packed.view(np.float16)
        path = gguf_edit.write(folder / "model.gguf", keys, {TABLE: (data, gguf.GGMLQuantizationType.F16)})
        os.sync()
        command("mount", "-o", "remount,ro", folder)
        table = table_of(path)
        residency.evict(table)
        middle = table.place(ROWS // 2)[1] // BLOCK
        with path.open("rb") as file:
            block = fcntl.ioctl(file.fileno(), FIBMAP, struct.pack("i", middle))
        os.truncate(image, struct.unpack("i", block)[0] * BLOCK)
        command("losetup", "--set-capacity", device)
        with pytest.raises(OSError, match="Input/output error"), path.open("rb") as file:  # it does fail
            os.pread(file.fileno(), 4096, table.place(ROWS - 20)[1])
        yield path
    finally:
        subprocess.run(["umount", folder], check=False, capture_output=True)
        subprocess.run(["losetup", "--detach", device], check=True)


def test_a_disk_that_fails_is_named_in_every_mode(broken: Path, count: Count) -> None:
    """Modes that read give EIO with file and byte; a mapping ends in SIGBUS, which the command names."""
    table = table_of(broken)
    last = np.arange(ROWS - 500, ROWS)
    for mode in MODES:
        if mode not in MAPPED:
            with pytest.raises(OSError) as caught, open_rows(table, mode) as reader:
                reader.gather(last)
            assert caught.value.filename == str(broken), mode
            assert "reading at byte " in str(caught.value) and "Input/output error" in str(caught.value), mode
            count("modes on a failing disk", 1)
    for mode in MAPPED:
        code = (
            "import sys\nfrom harness import supervise\nsupervise.start()\n"
            "import numpy as np\nfrom fast.rows import open_rows\nfrom tests.fast.rows.commands import table_of\n"
            "from pathlib import Path\n"
            f"open_rows(table_of(Path(sys.argv[1])), '{mode}').gather(np.arange({ROWS - 500}, {ROWS}))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(broken)], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
        )
        assert done.returncode == 3, (mode, done.stderr)
        assert "ended by SIGBUS" in done.stderr and "the disk may have failed" in done.stderr, (mode, done.stderr)
        assert str(broken) in done.stderr, mode
        count("modes on a failing disk", 1)


def test_rows_says_that_the_disk_failed_and_gives_no_verdict(broken: Path) -> None:
    command = [sys.executable, "-m", "harness", "rows", str(broken), "--mode", "direct", "--no-cold"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)
    assert done.returncode == 3, done.stderr
    assert "Input/output error" in done.stderr and broken.name in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
