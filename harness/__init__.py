"""What judges, measures and shows: everything around the model that `plegate` does.

The packages from the top down, each of which may import those below it (`tests/test_import_rule.py` holds them to it):
`commands` (one file a command), `pages` (what people and CI servers look at), `gate` (is it the same?), `measure` (is
it faster?) and `faults` (can the checks fail?), `answers` (goldens), `engines` (what runs tokens), `cases` (what is
run), `synth` (models made for tests). Below them all lie the files of this folder, and `fast`, `reference` and
`model_file`.
`cli.py` and `__main__.py` stand on top: the command line, its exit codes and its signals.
"""
