"""The commands of `plegate`, one thin file each: options, then calls; and the options, outputs and progress they share.

May import everything of the harness but the command line itself; nothing but `harness.cli` imports a command. What is
slow to load is imported inside the functions, so that `--help` is quick.
"""
