"""Everything that runs tokens, behind one protocol, one file for each engine; `table.py` names them all.

May use `fast`, `reference`, `model_file` and the synth's cache folder; knows nothing of cases, goldens and gates.
"""
