"""On a machine with a GPU: are the tokens right in every mode, and how fast are prefill and decode? Under 4 minutes.

    python ci/gpu_check.py [MODEL]

Runs `plegate gate` (its token part in every mode, against goldens or the reference) and `plegate bench`
on whatever device JAX finds, prints one table and exits with 1 at any difference, with 3 where no GPU is found or
something could not be run, and with 0 otherwise. `--allow-cpu` is for trying the script itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMIT_S = 240.0
DEVICE = "import jax; d = jax.devices()[0]; print(d.platform, d.device_kind)"


def main() -> int:
    """Run both parts within the limit and sum them up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a GGUF file; left out: the small model nano")
    parser.add_argument("--allow-cpu", action="store_true", help="go on where JAX finds no GPU")
    parser.add_argument("--depth", type=int, action="append", help="depths of the sweep (0, 4096, 16384)")
    chosen = parser.parse_args()
    end = time.monotonic() + LIMIT_S
    found = subprocess.run([sys.executable, "-c", DEVICE], capture_output=True, text=True, timeout=60, check=False)
    device = found.stdout.strip() or f"none: {found.stderr.strip().splitlines()[-1:]}"
    print(f"device: {device}", flush=True)
    if found.returncode or (device.startswith("cpu") and not chosen.allow_cpu):
        print("no GPU that JAX can use: install jax[cuda12], or give --allow-cpu to try the script", file=sys.stderr)
        return 3
    model = [chosen.model] if chosen.model else []
    depths = [f"--depth={depth}" for depth in chosen.depth or [0, 4096, 16384]]
    with tempfile.TemporaryDirectory() as folder:
        gate_code, _ = _plegate(["gate", *model, "--quick"], Path(folder) / "gate.json", end)
        sweep = ["bench", *model, "--preset=speed", "--arm=resident", "--no-twin", "--repeats=1", "--blocks=3", *depths]
        sweep.append(f"--out={Path(folder) / 'run'}")
        speed_code, speed = _plegate(sweep, Path(folder) / "speed.json", end)
    _print_speed(speed)
    verdict = {0: "equal", 1: "DIFFERENT"}.get(gate_code, f"could not be run (exit {gate_code})")
    print(f"tokens in every mode: {verdict}; {LIMIT_S - (end - time.monotonic()):.0f} s")
    if gate_code == 1:
        return 1
    return 0 if gate_code == 0 and speed_code == 0 else 3


def _plegate(arguments: list[str], result: Path, end: float) -> tuple[int, Any]:
    """Run a command of ours, its output shown; its exit code, and what it wrote as JSON (None: nothing)."""
    command = [sys.executable, "-c", "from harness.cli import main; main()", *arguments, "--json", str(result)]
    root = Path(__file__).resolve().parents[1]
    try:
        code = subprocess.run(command, cwd=root, timeout=max(1.0, end - time.monotonic()), check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"plegate {arguments[0]}: not done within {LIMIT_S:.0f} s in all", file=sys.stderr)
        return 3, None
    return code, json.loads(result.read_text()) if result.exists() else None


def _print_speed(speed: Any) -> None:
    if speed is None:
        return
    print(f"{'depth':>6}  {'prefill tok/s':>13}  {'decode tok/s':>12}   on {(speed['device'] or {}).get('kind')}")
    depths: dict[int, dict[str, float]] = {}
    for group in speed["groups"]:
        rates = depths.setdefault(group["depth"], {})
        rates[group["workload"]["kind"]] = group["arms"][0]["tokens_per_s"]["median"]
    for depth, rates in sorted(depths.items()):
        print(f"{depth:>6}  {rates.get('prefill', 0):>13.0f}  {rates.get('decode', 0):>12.0f}")


if __name__ == "__main__":
    sys.exit(main())
