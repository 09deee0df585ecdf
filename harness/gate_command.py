"""`plegate gate`: the main job. Do all ways of reading the table give the same rows and the same tokens?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.engine_names import EngineName
from harness.options import CacheDir, DefaultModel, JsonFile


def gate(
    model: DefaultModel = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            "--mode",
            metavar="MODE[@FILE]",
            help="A mode to judge; give it several times. Left out: all of them. `MODE@FILE` reads that mode's rows "
            "from FILE, a copy of the table. llama.cpp's off, on, auto and on-direct are understood.",
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", metavar="TEXT", help="A prompt as text; may be given several times.")
    ] = None,
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option("--prompt-file", metavar="FILE", help="A file that is one prompt, as UTF-8 text."),
    ] = None,
    tokens: Annotated[
        list[Path] | None,
        typer.Option(
            "--tokens",
            metavar="FILE",
            help="Prompts as token ids: a JSON list (or list of lists), or ids with white space between.",
        ),
    ] = None,
    generate: Annotated[
        int, typer.Option("--generate", min=0, metavar="N", help="Greedy tokens for each prompt; 0 compares rows only.")
    ] = 32,
    engine: Annotated[EngineName, typer.Option(help="Which implementation runs the model.")] = EngineName.reference,
    list_modes: Annotated[
        bool, typer.Option("--list-modes", help="Name all modes and what they do, and stop.")
    ] = False,
    json_file: JsonFile = None,
    cache_dir: CacheDir = None,
) -> None:
    """Judge every way of reading the table: same rows, byte for byte, and same tokens, id for id?

    Without a MODEL it makes a small one on first use, `nano`, and keeps it. Without prompts it takes five built-in texts.
    Each mode runs twice, and a mode that does not agree with itself is `unsteady`. Models are opened read-only.

    Exit codes: 0 all modes equal, 1 a difference (the first one is named: prompt, token, head, row, byte, both values),
    2 bad input, 3 a mode that was asked for could not run here.
    """
    from harness.atomic import write_json
    from harness.cases import parse_modes
    from harness.gate import run_gate
    from harness.gate_report import gate_as_json, mode_list, print_gate
    from harness.progress import stages
    from harness.prompt_choice import choose_prompts
    from harness.synth import ensure_model

    if list_modes:
        mode_list()
        return
    sources = parse_modes(mode or [])
    with stages() as tell:
        path = model if model is not None else ensure_model("nano", cache_dir, tell)
        prompts = choose_prompts(path, prompt or [], prompt_file or [], tokens or [])
        result = run_gate(path, prompts, sources, generate, engine.value, tell)
    print_gate(result)
    if json_file is not None:
        write_json(json_file, gate_as_json(result))
    raise typer.Exit(result.exit_code)
