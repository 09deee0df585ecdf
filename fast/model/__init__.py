"""The arithmetic under `jax.jit`, a file for each kind of layer, with the state that the layer carries between calls.

May import `model_file`, the shape letters of `reference.shapes` and `fast.rows.dequantize`.
"""
