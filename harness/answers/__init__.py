"""Recorded answers (goldens): what they hold, where they are kept, and the only ways in which they change.

May import `harness.engines`, `harness.cases` and what is below them. The gate compares with goldens; they know no gate.
"""
