"""`plegate golden`: recorded answers are checked, recorded as candidates, promoted with a reason, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Arms, CacheDir, Common, JsonFile, strict
from harness.engines.table import EngineName

golden_app = typer.Typer(
    no_args_is_help=True,
    help="Recorded answers, with their provenance. A run never writes into goldens/: `record` writes a candidate "
    "elsewhere, `promote` moves it, with a reason.",
)
Cases = Annotated[list[str] | None, typer.Argument(metavar="[CASE]...", help="Cases by name. Default: all of them.")]
Candidates = Annotated[
    Path, typer.Option("--candidates", metavar="DIR", help="Where candidates are written and looked for.")
]
_DEFAULT = Path("candidates")


@golden_app.command()
def check(
    case: Cases = None,
    engine: Annotated[EngineName, typer.Option(help="What answers.")] = EngineName.fast,
    mode: Annotated[str, typer.Option(help="How table rows are read.")] = "auto",
    json_file: JsonFile = None,
    cache_dir: CacheDir = None,
) -> None:
    """Answer every case again and compare with what is recorded: rows, intermediates, logits, tokens.

    Where a token differs it says whether the margin there was large enough. A missing golden is a failure that says how
    to make it.

    Examples:

        plegate golden check

        plegate golden check tiny-quant --engine reference

    Exit codes: 0 all equal, 1 a difference, 2 bad input, 3 a case's model is not here.
    """
    from harness.answers.store import golden_folder
    from harness.commands.outputs import outputs
    from harness.commands.progress import stages
    from harness.gate.golden_check import check_goldens
    from harness.pages.gate_text import gate_as_json, print_check

    write = outputs({"--json": json_file}, [Path(str(golden_folder()))])
    with stages() as report:
        checked = check_goldens(case or [], engine.value, mode, cache_dir, report)
    print_check(checked)
    runs = [gate_as_json(checked.result)] if checked.result is not None else []
    write({"--json": lambda: {"schema": "plegate.golden-check/2", "runs": runs}})
    raise typer.Exit(checked.exit_code)


@golden_app.command()
@strict
def record(
    case: Annotated[str | None, typer.Argument(metavar="[CASE]", help="The case to answer.")] = None,
    engine: Annotated[EngineName, typer.Option(help="What answers.")] = EngineName.reference,
    confirm: Annotated[
        bool, typer.Option(help="Run the other engine too, and measure how far their logits are apart.")
    ] = True,
    candidates: Candidates = _DEFAULT,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="MODEL", readable=False, help="A model of yours, in place of a case."),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option("--prompts", metavar="FILE", readable=False, help="With --model: ids, or a text (.txt)."),
    ] = None,
    generate: Annotated[int, typer.Option(min=1, metavar="N", help="With --model: greedy tokens of each.")] = 64,
    arm: Arms = None,
    common: Common = "",
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="With --model: where it goes.")] = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why the answers of an --out that is there change.")
    ] = "",
    cache_dir: CacheDir = None,
) -> None:
    """Run a case and write what it answers as a candidate; goldens/ is not touched.

    With --model, a golden of your own: the first --arm answers, the others confirm it. `plegate gate --golden` uses it.

    Examples:

        plegate golden record nano-texts

        plegate golden record --model m.gguf --prompts ids.json --arm was='llama-server -lzm off' --out mine.json

    Exit codes: 0 written, 1 the arms differ, 2 bad input, 3 an engine or a model is not here.
    """
    if model is not None or case is None or out is not None:
        from harness.commands.gate_arms import record_arms

        record_arms(case, model, prompts or [], generate, arm or [], common, out, reason, cache_dir)
    from harness.answers.produce import produce
    from harness.answers.record import dumps
    from harness.answers.store import candidate_path, check_not_golden
    from harness.cases.models import model_path
    from harness.cases.registry import case_by_id
    from harness.commands.outputs import outputs
    from harness.commands.progress import stages
    from harness.pages.tables import print_line

    chosen = case_by_id(case)
    check_not_golden(candidates)
    target = candidate_path(case, candidates)
    write = outputs({"--candidates": target}, made=candidates)
    with stages() as report:
        path = model_path(chosen.model, cache_dir, report)
        golden = produce(chosen, path, engine.value, confirm, "candidate, not promoted", report)
    candidates.mkdir(parents=True, exist_ok=True)
    write({"--candidates": lambda: dumps(golden)})
    margin, prompt, step = golden.smallest_margin
    by = f"answers of {golden.producer['engine']}, confirmed by: {', '.join(golden.confirmed_by) or 'nobody'}"
    print_line(f"{target}: {len(golden.prompts)} prompts, {by}")
    print_line(f"smallest margin {margin:g} (prompt {prompt}, step {step}), needed {golden.needed_margin:g}")
    print_line(f'next: plegate golden diff {case}; plegate golden promote {case} --reason "..."')


@golden_app.command()
def promote(
    case: Annotated[str, typer.Argument(metavar="CASE", help="The case whose candidate becomes the golden.")],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why this answer is right, and why it changes.")
    ] = "",
    candidates: Candidates = _DEFAULT,
) -> None:
    """Make a candidate the golden. Refused without a reason, on a tree with uncommitted changes, for small margins.

    Example:

        plegate golden promote nano-texts --reason "the prompts are longer"

    Exit codes: 0 promoted, 2 refused (the reason is named).
    """
    from harness.answers.promote import promote as move
    from harness.cases.registry import case_by_id
    from harness.pages.tables import print_line

    print_line(f"{move(case, reason, candidates, registered=case_by_id(case))}: promoted; commit it")


@golden_app.command()
def diff(
    case: Annotated[str, typer.Argument(metavar="CASE", help="The case to compare.")],
    candidates: Candidates = _DEFAULT,
) -> None:
    """Say how a candidate differs from its golden.

    Example:

        plegate golden diff nano-texts

    Exit codes: 0 same answers, 1 different ones, 2 bad input.
    """
    from harness.answers.diff import differences
    from harness.answers.store import candidate_path, how_to_make, read_golden
    from harness.cases.registry import case_by_id
    from harness.errors import EXIT_DIFFERENT, EXIT_EQUAL
    from harness.pages.tables import print_line
    from model_file.errors import InputError

    case_by_id(case)
    new, old = read_golden(case, candidates), read_golden(case)
    if new is None:
        raise InputError(f"{candidate_path(case, candidates)}: no such candidate; {how_to_make(case)}")
    lines = differences(old, new) if old is not None else ["there is no golden yet"]
    for line in lines or [f"{case}: candidate and golden answer alike"]:
        print_line(line)
    raise typer.Exit(EXIT_DIFFERENT if lines else EXIT_EQUAL)
