"""Benchmarks that can be believed: strict cold, interleaved arms, one process per cell, at every depth."""
