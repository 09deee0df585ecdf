"""What runs inside an arm's process: this tree's way of measuring, on the `fast` of the tree that the arm names.

Loaded by its folder, not by name: with another commit's tree first on the path, `harness` is that tree's. So nothing
here imports `harness`, and only `tree` imports the packages that are measured.
"""
