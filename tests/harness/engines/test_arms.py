"""Arms: what their texts mean, what is refused, and that every setting they can name takes effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.engines.arms import Arm, arm_as_dict, arm_from, parse_arm, parse_arms, read_arms, setting_types
from harness.measure.cells import STATES, Workload
from harness.measure.plan import Matrix
from harness.measure.process import Process
from harness.measure.runner import Runner
from harness.measure.store import RunPlan, Store
from model_file.errors import InputError
from tests.conftest import FIXTURES
from tests.harness.measure.conftest import MACHINE

ROOT = Path(__file__).parents[3]
ROW_SETTINGS, ENGINE_SETTINGS = setting_types()
# Another value than the default of each setting, as it is written. A setting that is missing here fails a test.
OTHERS = {
    "queue_depth": "32",
    "workers": "3",
    "slice_reads": "17",
    "inline_rows": "5",
    "range_pages": "7",
    "advise_ranges": "33",
    "advise_rows": "65",
    "first_chunk_rows": "77",
    "chunk_rows": "99",
    "staging_bytes": "2MiB",
    "cache_bytes": "1MiB",
    "chunk": "32",
    "buckets": "16+64",
    "precision": "high",
    "checkpoints": "3",
    "checkpoint_every": "5",
    "overlap": "off",
    "draft": "2",
    "mtp": str(FIXTURES / "tiny-mtp.gguf"),
}
VALUES: dict[str, Any] = {"staging_bytes": 2 << 20, "cache_bytes": 1 << 20, "buckets": [16, 64], "overlap": False}
VALUES |= {"precision": "high"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uring", Arm("uring", "uring")),
        ("on", Arm("prefetch", "prefetch")),
        ("device", Arm("device", "device")),
        ("deep=device,queue_depth=512", Arm("deep", "device", (("queue_depth", 512),))),
        ("few=uring,queue_depth=32", Arm("few", "uring", (("queue_depth", 32),))),
        ("old=commit:HEAD~3", Arm("old", "auto", (), "HEAD~3")),
        ("old=direct,commit:v1,chunk=256", Arm("old", "direct", (("chunk", 256),), "v1")),
        ("x=auto,overlap=off", Arm("x", "auto", (("overlap", False),))),
        ("x=auto,buckets=16+64", Arm("x", "auto", (("buckets", (16, 64)),))),
        ("direct=direct,staging_bytes=4MiB", Arm("direct", "direct", (("staging_bytes", 4 << 20),))),
        ("l=llama-server -ctk f32", Arm("l", "llama-server", words=("llama-server", "-ctk", "f32"))),
        ("on=llama-server", Arm("on", "llama-server", words=("llama-server",))),
        ("llama-server", Arm("llama-server", "llama-server", words=("llama-server",))),
        ("pr=/b/llama-server --x 'a b'", Arm("pr", "llama-server", words=("/b/llama-server", "--x", "a b"))),
        ("r=./my-server", Arm("r", "llama-server", words=("./my-server",))),
        ("r=http://127.0.0.1:8080/", Arm("r", "llama-server", address="http://127.0.0.1:8080")),
        ("v=openai:http://localhost:8000", Arm("v", "openai", address="http://localhost:8000")),
        ("t=transformers,program=/bin/python", Arm("t", "transformers", (("program", "/bin/python"),))),
        ("old=commit:feature/x", Arm("old", "auto", (), "feature/x")),
    ],
)
def test_arm_is_read_from_its_text(text: str, expected: Arm) -> None:
    assert parse_arm(text) == expected
    assert arm_from(arm_as_dict(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "no-such-mode", "x=", "x=uring,queue_depth=many", "x=what=1", "a/b=uring", "x=commit:", "x=direct,workers=0",
        "x=auto,overlap=never", "x=auto,overlap=1", "x=uring,queue_depth=100000000000000000000",
        "x=uring,queue_depth=1_0", "x=uring,queue_depth=-1", "x=uring,mmap", "x=auto,chunk=16,chunk=32",
        "x=auto,context=4096", "x=auto,cache_dir=/x", "x=auto,precision=lowest", "x=auto,buckets=16,64",
        "x=auto,staging_bytes=lots", "x=auto,syscall=call", "x=device,workers=2", "x=llama-server,queue_depth=2",
        "x=llama-server,commit:HEAD", "x=commit:a,commit:b", "x=/a 'b",
    ],
)  # fmt: skip
def test_arm_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"expected|no commits here|give it another name"):
        parse_arm(text)


FILE = """
arguments = "-ctk f32 -fa off"
environment = { GGML_A = "1", GGML_B = "2" }
[[arm]]
name = "off"
program = "llama-server"
arguments = ["--lazy-mode", "off"]
environment = { GGML_B = "3" }
[[arm]]
name = "v"
program = "/opt/vllm"
kind = "openai"
[[arm]]
name = "ours"
mode = "prefetch,chunk=64"
[[arm]]
name = "there"
address = "http://127.0.0.1:1"
"""


def test_arms_of_a_file_share_arguments_and_environment(tmp_path: Path) -> None:
    path = tmp_path / "arms.toml"
    path.write_text(FILE)
    common, env = ("-ctk", "f32", "-fa", "off"), (("GGML_A", "1"), ("GGML_B", "2"))
    assert parse_arms(["on=llama-server --lazy-mode on"], "ours", path, "-t 2") == [
        Arm("ours", "prefetch", (("chunk", 64),)),
        Arm("on", "llama-server", words=("llama-server", "-t", "2", "--lazy-mode", "on")),
        Arm(
            "off",
            "llama-server",
            words=("llama-server", *common, "--lazy-mode", "off"),
            environment=(("GGML_A", "1"), ("GGML_B", "3")),
        ),
        Arm("v", "openai", words=("/opt/vllm", *common), environment=env),
        Arm("there", "llama-server", address="http://127.0.0.1:1"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "found nothing, expected"),
        ("[[arm]]\nname = 3", "arm 0: expected a name, one of program"),
        ("[[arm]]\nname = 'a'\nprogram = 'x'\nmode = 'auto'", "arm 0: expected a name, one of program"),
        ("[[arm]]\nname = 'a'\nprogram = 'x'\nkind = 'grpc'", "kind is 'grpc', expected one of llama-server"),
        ("[[arm]]\nname = 'a'\nprogam = 'x'", "arm 0: expected a name"),
        ("[[arm]", "cannot be read"),
        ("x = 1\n[[arm]]\nname = 'a'\nmode = 'auto'", "found x, arm, expected"),
    ],
)
def test_a_file_of_arms_that_is_not_understood_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "arms.toml"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_arms(path)


@pytest.mark.parametrize(
    "text", ["mmap=prefetch", "prefetch=mmap", "on=direct", "uring=commit:HEAD", "device=uring", "uring=llama-server"]
)
def test_arm_named_after_a_mode_that_it_is_not_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is named after the mode"):
        parse_arm(text)


def test_arms_are_refused_twice_and_baseline_goes_first() -> None:
    with pytest.raises(InputError, match="twice"):
        parse_arms(["mmap", "mmap"], None)
    with pytest.raises(InputError, match="no arm of this run"):
        parse_arms(["mmap"], "uring")
    assert [arm.name for arm in parse_arms(["mmap", "uring"], "uring")] == ["uring", "mmap"]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("uring", "uring"),
        ("few=uring,queue_depth=32", "few (uring, queue_depth=32)"),
        ("x=auto,overlap=off", "x (auto, overlap=off)"),
    ],
)
def test_label_says_what_runs(text: str, label: str) -> None:
    assert parse_arm(text).label == label


def _opened(tiny: Path, folder: Path, text: str) -> dict[str, Any]:
    """What an arm's process says that it opened, through everything that stands between."""
    matrix = Matrix((parse_arm(text),), STATES, (0,), (Workload("prefill", 16),), 1, twin=False)
    facts = {"vocab": 64, "eos": 1, "rows_per_token": 4}
    runner = Runner(Store(folder), RunPlan(matrix, facts, MACHINE, 0.5), tiny, folder, lambda *_: None)
    process = Process(runner.spec(matrix.arms[0]), ROOT)
    try:
        return process.opened()
    finally:
        process.close()


@pytest.fixture(scope="module")
def with_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What is in force in a process whose arm names every setting."""
    folder = tmp_path_factory.mktemp("settings")
    parts = ",".join(f"{name}={OTHERS[name]}" for name in (*ROW_SETTINGS, *ENGINE_SETTINGS) if name in OTHERS)
    yield _opened(FIXTURES / "tiny-mtp.gguf", folder, f"x=auto,{parts}")


def test_a_memory_takes_effect(tiny_quant: Path, tmp_path: Path) -> None:
    """Apart from the others, because a draft head has all its experts in memory."""
    found = _opened(tiny_quant, tmp_path, "x=auto,memory_bytes=2GiB,expert_mode=uring")["engine_settings"]
    assert (found["memory_bytes"], found["expert_mode"]) == (2 << 30, "uring")


@pytest.mark.parametrize("name", sorted({*ROW_SETTINGS, *ENGINE_SETTINGS} - {"memory_bytes", "expert_mode"}))
def test_every_setting_takes_effect(with_all: dict[str, Any], name: str) -> None:
    in_force = with_all["row_settings"] | with_all["engine_settings"]
    expected = VALUES.get(name, OTHERS[name])
    assert in_force[name] == (int(expected) if isinstance(expected, str) and expected.isdecimal() else expected)


def test_engine_is_made_as_run_makes_it(tiny_quant: Path, tmp_path: Path) -> None:
    from harness.engines.settings import engine_settings

    in_force = _opened(tiny_quant, tmp_path, "auto")["engine_settings"]
    expected = {name: value for name, value in vars(engine_settings(64)).items() if name != "cache_dir"}
    assert {name: in_force[name] for name in expected} == expected
