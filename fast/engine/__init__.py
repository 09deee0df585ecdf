"""The engine: sequences on a compiled model, fed in chunks and decoded greedily, with the rows read meanwhile.

From below: chunks (tokens, ids, rows), steps of the device, sequences (data), the decoder and batches, the engine.
May import `model_file`, `fast.model`, `fast.rows` and the shape letters of `reference.shapes`.
"""
