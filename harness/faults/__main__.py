"""`python -m harness.faults`: run the mutation session, of faults by hand or (`--rules`) of mutants by rule."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

# Programs compiled with few optimisations compute the same and take a fifth of the time; nothing here is timed.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
for name in ("jax.numpy", "gguf", "scipy.sparse", "tokenizers"):  # inherited by every child
    importlib.import_module(name)

from harness.faults import by_rule  # noqa: E402
from harness.faults.session import run_session  # noqa: E402
from harness.gate.checks import CHECKS  # noqa: E402
from model_file.errors import InputError  # noqa: E402

parser = argparse.ArgumentParser(
    prog="python -m harness.faults", description="Plant faults; require each to be caught."
)
parser.add_argument("--only", action="append", default=[], metavar="FAULT", help="this fault only; may be repeated")
parser.add_argument(
    "--without", action="append", default=[], choices=list(CHECKS), help="take a check out: the session must then fail"
)
parser.add_argument("--rules", action="store_true", help="mutants of fast/ by rule instead of faults by hand")
parser.add_argument("--count", type=int, default=by_rule.COUNT, help=f"mutants by rule, at least ({by_rule.COUNT})")
parser.add_argument("--workers", type=int, default=1, help="mutants judged at a time (1)")
parser.add_argument("--fresh", action="store_true", help="judge every mutant again; otherwise kept results count")
parser.add_argument("--results", type=Path, default=by_rule.RESULTS, help=f"where results are kept ({by_rule.RESULTS})")
chosen = parser.parse_args()
try:
    if chosen.rules:
        code = by_rule.run_by_rule(chosen.count, chosen.workers, chosen.fresh, chosen.results)
    else:
        code = run_session(chosen.only, chosen.without)
except InputError as error:
    print(error, file=sys.stderr)
    code = 2
except KeyboardInterrupt:
    print("stopped; what is done is kept", file=sys.stderr)
    code = 130
raise SystemExit(code)
