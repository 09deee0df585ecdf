"""The gate: every mode reads the same rows and leads to the same tokens. `run.py` is where to begin.

May import `harness.answers`, `harness.engines`, `harness.cases` and what is below them. Judging knows no page: a
verdict is data, and `harness.pages` shows it.
"""
