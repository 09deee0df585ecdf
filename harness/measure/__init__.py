"""Benchmarks that can be believed: strict cold, arms in turns, each in processes of its own, at every depth.

May import `harness.engines`, `harness.cases` and what is below them; not the gate, which judges and does not time.
`worker/` runs inside an arm's process, `trend/` compares runs of different commits.
"""
