"""`plegate run`: continue a prompt, text as it comes, and say how fast it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.commands.options import CacheDir, DefaultModel, ExpertMode, JsonFile, Memory, memory_settings

if TYPE_CHECKING:
    from fast.engine.engine import FastEngine
    from fast.engine.timings import Timings
    from harness.engines.own_memory import OwnMemory
    from model_file.gguf_file import GgufFile


def run(
    model: DefaultModel = None,
    prompt: Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="The text to continue.")] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens", metavar="FILE", readable=False, help="A prompt as ids: a JSON list, or white space between."
        ),
    ] = None,
    generate: Annotated[
        int, typer.Option("--generate", "-n", min=1, metavar="N", help="Tokens to generate at most.")
    ] = 128,
    mode: Annotated[
        str, typer.Option(metavar="MODE", help="How table rows are read; `plegate gate --list-modes` names them.")
    ] = "auto",
    context: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Positions to make room for. Default: what prompt and answer need."),
    ] = None,
    chunk: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of the prompt computed at a time.")] = 512,
    precision: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Of matrix products: highest, high or default. Below highest, tokens may differ."
        ),
    ] = "highest",
    draft: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Tokens that the MTP head guesses before each step; the ids stay the same."
        ),
    ] = 0,
    mtp: Annotated[
        Path | None,
        typer.Option(
            "--mtp", metavar="FILE", readable=False, help="The file that holds the MTP head. Default: the model's own."
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask --prompt as a user's message, by the file's own chat template.")
    ] = False,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="With --chat: a message of the system before it.")
    ] = None,
    memory: Memory = None,
    expert_mode: ExpertMode = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end-of-text token.")] = False,
    json_file: JsonFile = None,
    cache_dir: CacheDir = None,
) -> None:
    """Continue a prompt greedily (temperature 0): text to standard output as it comes, speed to standard error.

    With `--tokens` ids go in and ids come out, for a model without a vocabulary too.

    Examples:

        plegate run --prompt "Once upon a time"

        plegate run model.gguf --chat --prompt "Why is the sky blue?"

        plegate run model.gguf --tokens ids.json -n 32 --mode prefetch

        plegate run large.gguf --memory 12GiB --prompt "Once upon a time"

        plegate run model.gguf --mtp head.gguf --draft 3 --prompt "Once upon a time"

    Exit codes: 0 done, 2 bad input, 3 the model or the mode cannot be run here.
    """
    from contextlib import ExitStack

    from fast.engine.engine import FastEngine
    from fast.rows import locate_table, open_rows
    from harness.cases.chat import conversation
    from harness.cases.prompts import check_context, check_ids, decode, encode, read_one_prompt
    from harness.commands.outputs import outputs
    from harness.commands.progress import stages
    from harness.engines.own_memory import OwnMemory
    from harness.engines.settings import engine_settings
    from harness.synth import cache_folder, ensure_model
    from model_file.config import config_from
    from model_file.errors import InputError
    from model_file.gguf_file import open_gguf

    if (prompt is None) == (tokens is None):
        raise InputError("give one of --prompt TEXT and --tokens FILE")
    if (chat and prompt is None) or (system is not None and not chat):
        raise InputError("--chat is of --prompt TEXT, and --system TEXT of --chat: give what is missing")
    write = outputs({"--json": json_file}, [model, tokens, mtp])
    with ExitStack() as stack:
        own = stack.enter_context(OwnMemory()) if memory else None
        with stages() as say:
            say("opening the model")
            file = stack.enter_context(open_gguf(model or ensure_model("nano", cache_dir, say)))
            asked = conversation(file, prompt, system) if chat and prompt is not None else prompt
            ids = encode(file, asked) if asked is not None else read_one_prompt(tokens)  # type: ignore[arg-type]
            config = config_from(file)
            check_ids(ids, config.vocab, str(tokens or "the prompt"))
            needed = context or len(ids) + generate
            check_context(file.paths[0], config.context, needed, "use a shorter prompt or a smaller --generate")
            reader = stack.enter_context(open_rows(locate_table(file), mode))
            programs = cache_folder(cache_dir) / "programs"
            chosen: dict[str, Any] = {"draft": draft, "mtp": None if mtp is None else str(mtp)}
            chosen |= {} if context is None else {"context": context}
            chosen |= memory_settings(memory, expert_mode)
            settings = engine_settings(needed, chunk=chunk, precision=precision, cache_dir=programs, **chosen)
            engine = stack.enter_context(FastEngine(file, reader, settings))
            say("compiling" if not ids else f"compiling, and {len(ids)} tokens of prompt")
            sequence = engine.new_sequence()
            sequence.feed(ids, last_only=True)
            of_prompt = _spent(engine.timings)
        out = _Words(file, prompt is not None)
        stops = set() if ignore_eos else _end_tokens(file, engine)
        answer = []
        steps = sequence.generate(min(generate, settings.context - len(ids)))
        for token, _ in steps:
            if token in stops:
                break
            answer.append(token)
            out.add(token)
        out.end()
        _report(engine.timings, of_prompt, len(answer))
        of_memory = _report_memory(engine, own) if own else {}
        timings: dict[str, Any] = {"timings": engine.timings.as_dict()}
        if draft:
            timings |= {"draft_n": engine.timings.drafted, "draft_n_accepted": engine.timings.accepted}
        text = {"text": decode(file, answer)} if prompt is not None else {}
        write({"--json": lambda: {"prompt": ids, "tokens": answer, **text, **of_memory, **timings}})


def _report_memory(engine: FastEngine, own: OwnMemory) -> dict[str, Any]:
    """What the memory went to, and what reading experts took; to standard error, and as values for JSON."""
    from fast.engine.layered import LayeredStep

    parts, step = engine.memory(), engine.step
    assert isinstance(step, LayeredStep)
    counters = step.store.counters
    held = ", ".join(f"{name} {size >> 20:,}" for name, size in parts.items() if size >> 20 and name != "total")
    typer.echo(f"memory: {own.peak_bytes >> 20:,} MiB at most, {parts['total'] >> 20:,} expected: {held}", err=True)
    typer.echo(
        f"experts by {step.store.mode}: {counters.asked:,} asked for, {counters.read:,} read, "
        f"{counters.bytes_read / 2**30:.1f} GiB in {counters.read_s:.1f} s, {counters.wait_s:.1f} s of it waited for",
        err=True,
    )
    return {"memory": {"peak_bytes": own.peak_bytes, **parts}, "experts": {"mode": step.store.mode, **vars(counters)}}


def _end_tokens(file: GgufFile, engine: FastEngine) -> set[int]:
    """The tokens that end a text: the tokenizer's and the n-gram table's, usually the same."""
    named = file.metadata.get("tokenizer.ggml.eos_token_id")
    return {engine.config.ple.hash.eos, *([] if named is None else [int(named)])}


class _Words:
    """Writes tokens as text, every character as soon as it is whole; as ids where the prompt was ids."""

    def __init__(self, file: GgufFile, as_text: bool) -> None:
        self._file, self._as_text = file, as_text
        self._held: list[int] = []
        self._written = 0  # characters of what is held

    def add(self, token: int) -> None:
        if not self._as_text:
            print(token, end=" ", flush=True)
            return
        self._held.append(token)
        text = self._decode(self._held)
        whole = text.rstrip("\ufffd")  # which may be a character that has only begun
        print(whole[self._written :], end="", flush=True)
        self._written = len(whole)
        if whole == text:
            self._held, self._written = [], 0

    def end(self) -> None:
        print(self._decode(self._held)[self._written :] if self._held else "", flush=True)

    @property
    def _decode(self) -> Callable[[list[int]], str]:
        from harness.cases.prompts import decode

        return lambda ids: decode(self._file, ids)


def _spent(timings: Timings) -> tuple[int, float, float]:
    """Tokens so far, and the seconds of computing and of waiting for rows. A chunk of one token counts as any other."""
    tokens = timings.prefill_tokens + timings.decode_tokens
    return tokens, timings.prefill_compute_s + timings.decode_compute_s, timings.exposed_wait_s


def _report(timings: Timings, of_prompt: tuple[int, float, float], written: int) -> None:
    """Speed on standard error, compilation apart. of_prompt: what was spent when the prompt had been fed."""
    from harness.pages.numbers import count, seconds, short
    from harness.pages.tables import print_line, screen

    def line(name: str, tokens: float, compute_s: float, wait_s: float) -> str:
        speed = short(tokens / (compute_s + wait_s) if compute_s + wait_s else None)
        return f"{name}: {count(tokens)} tokens, {speed} tokens/s, {seconds(wait_s)} of it waiting for rows"

    answer = (after - before for after, before in zip(_spent(timings), of_prompt, strict=True))
    last = (
        f"compiled in {seconds(timings.compile_s)}, rows read in {seconds(timings.gather_s)}, {written} tokens written"
    )
    if timings.drafted:
        last = f"{count(timings.accepted)} of {count(timings.drafted)} guesses of the MTP head accepted\n{last}"
    for text in (line("prompt", *of_prompt), line("answer", *answer), *last.splitlines()):
        print_line(text, screen(stderr=True))
