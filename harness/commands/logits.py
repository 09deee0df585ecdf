"""`plegate logits`: teacher-forced logits and a greedy continuation, for anybody's own comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import ExpertMode, Memory, Model, memory_settings
from harness.engines.table import EngineName


def logits(
    model: Model,
    tokens: Annotated[
        Path,
        typer.Option(
            "--tokens", metavar="FILE", readable=False, help="Token ids: a JSON list, or ids with white space between."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.npz", help="Where to write, whole or not at all.")],
    engine: Annotated[EngineName, typer.Option(help="What computes.")] = EngineName.fast,
    mode: Annotated[
        str, typer.Option(help="How table rows are read; `plegate gate --list-modes` names them.")
    ] = "auto",
    generate: Annotated[
        int, typer.Option("--generate", min=0, metavar="N", help="Continue greedily by N tokens (temperature 0).")
    ] = 0,
    chunk: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tokens fed at a time; any value gives the same tokens.")
    ] = 512,
    memory: Memory = None,
    expert_mode: ExpertMode = None,
) -> None:
    """Write the logits at every position of a prompt, and the greedy continuation.

    The file is a NumPy archive: `tokens` int32[t], `logits` float32[t, vocab], `greedy` int32[N], `margin` float32[N]
    (top-1 minus top-2 logit of each greedy step).

    Example:

        plegate logits model.gguf --tokens ids.json --generate 32 --out logits.npz

    Exit codes: 0 written, 2 bad input, 3 the engine or the mode cannot be run here.
    """
    import io
    from contextlib import ExitStack

    import numpy as np

    from fast.rows import locate_table, open_rows
    from harness.cases.prompts import check_context, check_ids, read_one_prompt
    from harness.commands.outputs import outputs
    from harness.commands.progress import stages
    from harness.engines.settings import engine_settings
    from harness.engines.table import load_engine
    from harness.pages.tables import print_line
    from model_file.config import config_from
    from model_file.gguf_file import open_gguf

    chosen = memory_settings(memory, expert_mode)
    write = outputs({"--out": out}, [model, tokens])
    prompt = read_one_prompt(tokens)
    with ExitStack() as stack:
        stage = stack.enter_context(stages())
        file = stack.enter_context(open_gguf(model))
        config = config_from(file)
        room = len(prompt) + generate
        check_ids(prompt, config.vocab, str(tokens))
        check_context(model, config.context, room, "use a shorter prompt or a smaller --generate")
        reader = stack.enter_context(open_rows(locate_table(file), mode))
        loaded = stack.enter_context(
            load_engine(engine.value, file, reader, engine_settings(room, chunk=chunk, **chosen))
        )
        stage(f"{len(prompt)} tokens through {engine.value}")
        sequence = loaded.new_sequence()
        values = sequence.logits(prompt)
        stage(f"{generate} tokens of continuation")
        steps = list(sequence.generate(generate))
    archive = io.BytesIO()
    np.savez(
        archive,
        tokens=np.asarray(prompt, np.int32),
        logits=values,
        greedy=np.asarray([token for token, _ in steps], np.int32),
        margin=np.asarray([margin for _, margin in steps], np.float32),
    )
    write({"--out": archive.getvalue})
    print_line(
        f"{out}: logits {values.shape[0]} x {values.shape[1]}, {len(steps)} greedy tokens, {engine.value}, {mode}"
    )
