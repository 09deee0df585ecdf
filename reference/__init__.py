"""The model, written to be read: plain JAX, float32, one sequence, nothing left out and nothing made fast.

It is the oracle. It may import `model_file` and nothing else of ours, and nothing imports its arithmetic but the
harness; `fast` shares the axis names of `reference.shapes`.

Where things are:

    shapes.py       every axis letter of every annotation
    parameters.py   the weights as pytrees, and loading them
    ngram.py        which table rows a token reads (NumPy, 64-bit integers)
    model.py        the trunk: embedding, layers, logits; `forward` is the whole model on one page
    layers.py       what all layers use: rms_norm, rotary positions, causal convolution, hyper-connection
    ple.py          the rows of the table, gated by the streams and smoothed over time
    delta_net.py    the linear token mixer
    attention.py    the other token mixer: attention over the blocks that an indexer picks
    experts.py      the mixture of experts that follows every mixer
    draft_head.py   the MTP head, which guesses the tokens after the next, and decoding with its guesses
    decode.py       feeding: prompts in any split, greedy decoding
    closeness.py    how close the calls of a chunk were; not part of the model

How a chunk of t tokens flows: `ngram.row_ids` names n rows a token, whoever feeds the model reads them, and
`model.forward` takes ids and rows. The residual is s streams of width d. In every layer the PLE (in one layer only)
adds to the streams; then twice, for the mixer and for the experts, `read_streams` mixes the streams into one input and
the block's output goes back into each stream, as strongly as the connection says. A last `read_streams` and one product
give logits.

Where states live: everything that one chunk leaves to the next is in `model.State`: the position, the PLE
convolution's past, and of each layer a `DeltaNetState` (the convolution's past and a matrix for each head) or an
`AttentionState` (keys, values and index keys of every position). The last N-1 tokens, which the hash needs, are kept by
`decode.Session`. Any split of a sequence into chunks gives the same logits, up to rounding.
"""
