"""What a GGUF file of this architecture says; all that the reference, the fast path and the harness may share.

It imports nothing else of ours and computes nothing of the model. From the bytes upwards:

    gguf_scan.py        a cursor over a header, every length checked before it is used
    metadata.py         values of the metadata, and the strict reader that collects what is wrong with them
    shard.py            one file: header, metadata, tensors in the layout that writers make
    gguf_file.py        a model: one file, or all shards of a split
    config.py           the architecture, from the metadata
    hash_constants.py   constants of the n-gram hash, and the rules by which checkpoints choose them
    tensors.py          every tensor of the model, declared once: name, shape, roles
    inventory.py        the tensors of a file against that table
    weights.py          weights as float32, a group of the table at a time
    settings_types.py   whether settings are of the types that they declare
"""
