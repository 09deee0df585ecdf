"""What an engine that answers differently behaves like: our own engine with one known fault at a time beside it.

May import `harness.faults.planting`, `harness.engines` and what is below them.
"""
