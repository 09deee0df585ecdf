"""`plegate gate`: the main job. Do all ways of reading the table give the same rows and the same tokens?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import CacheDir, DefaultModel, JsonFile, Modes, TextFiles, Texts, TokenFiles
from harness.engines.table import EngineName


def gate(
    model: DefaultModel = None,
    mode: Modes = None,
    prompt: Texts = None,
    prompt_file: TextFiles = None,
    tokens: TokenFiles = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            "--case", metavar="CASE", help="Only this registered case; give it several times. See `--list-cases`."
        ),
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option(
            "--generate", min=0, metavar="N", help="Greedy tokens for each prompt of yours (32); 0 compares rows only."
        ),
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="What runs the model.")] = EngineName.fast,
    quick: Annotated[
        bool, typer.Option("--quick", help="The short form: smaller cases, every mode, every check and every branch.")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Compare every row of the files that modes are given as MODE@FILE.")
    ] = False,
    list_modes: Annotated[
        bool, typer.Option("--list-modes", help="Name all modes and what they do, and stop.")
    ] = False,
    list_cases: Annotated[bool, typer.Option("--list-cases", help="Name all cases and checks, and stop.")] = False,
    json_file: JsonFile = None,
    html_file: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write one self-contained HTML page, whole or not at all."),
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML for continuous integration.")
    ] = None,
    cache_dir: CacheDir = None,
) -> None:
    """Judge every way of reading the table: same rows, byte for byte, and same tokens, id for id?

    Without a MODEL it makes small ones on first use, `pico`, `femto` and `nano` (with --quick no `nano`), keeps them,
    and compares with recorded goldens. With a model and prompts of yours it compares each mode with the first one. Each
    mode runs twice, and a mode that does not agree with itself is `unsteady`. Models are opened read-only.

    Examples:

        plegate gate

        plegate gate model.gguf --prompt "Once upon a time" --mode uring --mode auto --html gate.html

        plegate gate model.gguf --mode mmap@copy.gguf --tokens ids.json

    Exit codes: 0 all modes equal, 1 a difference (the first one is named: prompt, token, head, row, byte, both values),
    2 bad input, 3 a mode that was asked for could not run here, or a file changed meanwhile.
    """
    from harness.cases.case import parse_modes
    from harness.commands.outputs import outputs
    from harness.commands.progress import stages
    from harness.gate.choice import choose
    from harness.gate.run import GateOptions, run_gates
    from harness.pages.gate_page import gate_as_html, gate_as_junit
    from harness.pages.gate_text import gate_as_json, print_cases, print_gate, print_modes

    if list_modes or list_cases:
        print_modes() if list_modes else print_cases()
        return
    sources = parse_modes(mode or [])
    inputs = [model, *(source.path for source in sources), *(prompt_file or []), *(tokens or [])]
    write = outputs({"--json": json_file, "--html": html_file, "--junit": junit_file}, inputs)
    with stages() as report:
        prompts = (prompt or [], prompt_file or [], tokens or [])
        copies = any(source.path is not None for source in sources)
        options = GateOptions(engine.value, whole=whole)
        jobs, options = choose(model, case or [], prompts, generate, quick, cache_dir, copies, options, report)
        result = run_gates(jobs, sources, options, report)
    print_gate(result)
    write(
        {
            "--json": lambda: gate_as_json(result),
            "--html": lambda: gate_as_html(result),
            "--junit": lambda: gate_as_junit(result),
        }
    )
    raise typer.Exit(result.exit_code)
