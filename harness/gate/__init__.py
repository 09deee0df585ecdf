"""The gate: every mode reads the same rows and leads to the same tokens. `run.py` is where to begin."""
