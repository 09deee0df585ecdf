"""`python -m harness.faults`: run the mutation session."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from harness.faults.session import run_session
from harness.gate.checks import CHECKS
from model_file.errors import InputError

parser = argparse.ArgumentParser(
    prog="python -m harness.faults", description="Plant faults; require each to be caught."
)
parser.add_argument("--only", action="append", default=[], metavar="FAULT", help="this fault only; may be repeated")
parser.add_argument(
    "--without", action="append", default=[], choices=list(CHECKS), help="take a check out: the session must then fail"
)
chosen = parser.parse_args()
try:
    code = run_session(chosen.only, chosen.without, Console(highlight=False))
except InputError as error:
    print(error, file=sys.stderr)
    code = 2
raise SystemExit(code)
