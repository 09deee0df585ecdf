"""`plegate gate`: the main job. Do all ways of reading the table give the same rows and the same tokens?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import (
    ArmChoice,
    Arms,
    ArmsFile,
    CacheDir,
    Common,
    DefaultModel,
    ExpertMode,
    JsonFile,
    Memory,
    Modes,
    TextFiles,
    Texts,
    TokenFiles,
    memory_settings,
)  # fmt: skip
from harness.engines.table import EngineName
from model_file.errors import InputError


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
    memory: Memory = None,
    expert_mode: ExpertMode = None,
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
    arm: Arms = None,
    arms_file: ArmsFile = None,
    common: Common = "",
    golden: Annotated[
        Path | None,
        typer.Option("--golden", metavar="FILE", help="A golden of yours that arms are compared with."),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="NAME",
            help="With --arm: ask for what servers lose in state: together, prefix, rewind, erase, restore, again.",
        ),
    ] = None,
    close_calls: Annotated[
        bool, typer.Option("--close-calls", help="Let arms differ by close calls that must be equal otherwise.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart/--no-restart", help="Start each server again, for its control.")
    ] = True,
    diagnose: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="With --arm: how long to look for the known fault that a differing engine's answers follow; 0s: not.",
        ),
    ] = "10min",
    top: Annotated[int, typer.Option(min=2, max=100, metavar="N", help="Best logprobs that arms are asked for.")] = 10,
    start_limit: Annotated[
        str, typer.Option(metavar="TIME", help="How long a server may take to start, such as 90s.")
    ] = "30min",
    answer_limit: Annotated[str, typer.Option(metavar="TIME", help="How long an answer may take.")] = "60min",
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write it for a pull request.")
    ] = None,
    cache_dir: CacheDir = None,
) -> None:
    """Judge every way of reading the table: same rows, byte for byte, and same tokens, id for id?

    Without a MODEL it makes small ones on first use, `pico`, `femto` and `nano` (with --quick no `nano`), keeps them,
    and compares with recorded goldens. With a model and prompts of yours it compares each mode with the first one. Each
    mode runs twice, and a mode that does not agree with itself is `unsteady`. Models are opened read-only.

    With --arm it judges these arms and nothing else: servers, started one after the other, and modes of ours.

    Examples:

        plegate gate

        plegate gate model.gguf --prompt "Once upon a time" --mode uring --mode auto --html gate.html

        plegate gate large.gguf --memory 12GiB --prompt "Once upon a time"

        plegate gate model.gguf --mode mmap@copy.gguf --tokens ids.json

        plegate gate model.gguf --arm off='llama-server --lazy-mode off' --arm pr='/pr/llama-server --lazy-mode on'

    Exit codes: 0 all modes equal, 1 a difference (the first one is named: prompt, token, head, row, byte, both values),
    2 bad input, 3 a mode or arm could not run here, too many close calls to decide, or a file changed meanwhile.
    """
    from harness.cases.case import parse_modes
    from harness.commands.outputs import outputs
    from harness.commands.progress import stages
    from harness.gate.choice import choose
    from harness.gate.run import GateOptions, run_gates
    from harness.pages.gate_page import gate_as_html, gate_as_junit
    from harness.pages.gate_text import gate_as_json, gate_as_markdown, print_cases, print_gate, print_modes

    if list_modes or list_cases:
        print_modes() if list_modes else print_cases()
        return
    given = (prompt or [], prompt_file or [], tokens or [])
    files = {"--json": json_file, "--html": html_file, "--junit": junit_file, "--markdown": markdown_file}
    if (golden or state or close_calls or common) and not (arm or arms_file):
        raise InputError("--golden, --state, --close-calls and --common are of arms: expected --arm or --arms too")
    if (memory or expert_mode) and (arm or arms_file):
        raise InputError("--memory and --expert-mode are of all modes: of one arm, write NAME=MODE,memory_bytes=12GiB")
    if arm or arms_file:
        from harness.commands.gate_arms import gate_arms

        chosen = ArmChoice(arm or [], arms_file, common, golden, state or [], close_calls, restart, top, diagnose)
        limits = {"start_limit_s": start_limit, "answer_limit_s": answer_limit}
        gate_arms(model, case or [], given, generate, quick, chosen, limits, files, cache_dir)
    sources = parse_modes(mode or [])
    inputs = [model, *(source.path for source in sources), *(prompt_file or []), *(tokens or [])]
    write = outputs(files, inputs)
    with stages() as report:
        copies = any(source.path is not None for source in sources)
        settings = memory_settings(memory, expert_mode)
        options = GateOptions(engine.value, whole=whole, engine_settings=settings)
        jobs, options = choose(model, case or [], given, generate, quick, cache_dir, copies, options, report)
        result = run_gates(jobs, sources, options, report)
    print_gate(result)
    write(
        {
            "--json": lambda: gate_as_json(result),
            "--html": lambda: gate_as_html(result),
            "--junit": lambda: gate_as_junit(result),
            "--markdown": lambda: gate_as_markdown(result),
        }
    )
    raise typer.Exit(result.exit_code)
