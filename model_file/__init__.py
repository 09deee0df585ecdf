"""What a GGUF file of this architecture says: files and shards, tensors, configuration, hash constants.

Everything that the reference, the fast path and the harness may share stands here; it imports none of them and computes
nothing of the model.
"""
