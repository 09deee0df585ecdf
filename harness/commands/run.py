"""`plegate run`: continue a prompt, text as it comes, and say how fast it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.commands.options import CacheDir, DefaultModel, JsonFile

if TYPE_CHECKING:
    from fast.engine.engine import FastEngine
    from fast.engine.timings import Timings
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
        typer.Option(min=1, metavar="N", help="Positions to make room for. Left out: what prompt and answer need."),
    ] = None,
    chunk: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of the prompt computed at a time.")] = 512,
    precision: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Of matrix products: highest, high or default. Below highest, tokens may differ."
        ),
    ] = "highest",
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end-of-text token.")] = False,
    json_file: JsonFile = None,
    cache_dir: CacheDir = None,
) -> None:
    """Continue a prompt greedily (temperature 0): text to standard output as it comes, speed to standard error.

    With `--tokens`, for a model without a vocabulary too, ids go in and ids come out.
    """
    from contextlib import ExitStack

    from fast.engine.engine import FastEngine
    from fast.rows import locate_table, open_rows
    from harness.cases.prompts import check_context, check_ids, encode, read_one_prompt
    from harness.commands.outputs import check_outputs
    from harness.commands.progress import stages
    from harness.engines.settings import engine_settings
    from harness.synth import cache_folder, ensure_model
    from model_file.config import config_from
    from model_file.errors import InputError
    from model_file.gguf_file import open_gguf

    if (prompt is None) == (tokens is None):
        raise InputError("give one of --prompt TEXT and --tokens FILE")
    check_outputs({"--json": json_file}, [model, tokens])
    with ExitStack() as stack:
        with stages() as say:
            say("opening the model")
            file = stack.enter_context(open_gguf(model or ensure_model("nano", cache_dir, say)))
            ids = encode(file, prompt) if prompt is not None else read_one_prompt(tokens)  # type: ignore[arg-type]
            config = config_from(file)
            check_ids(ids, config.vocab, str(tokens or "the prompt"))
            needed = context or len(ids) + generate
            check_context(file.paths[0], config.context, needed, "use a shorter prompt or a smaller --generate")
            reader = stack.enter_context(open_rows(locate_table(file), mode))
            chosen_room = {} if context is None else {"context": context}
            programs = cache_folder(cache_dir) / "programs"
            settings = engine_settings(needed, chunk=chunk, precision=precision, cache_dir=programs, **chosen_room)
            engine = stack.enter_context(FastEngine(file, reader, settings))
            say("compiling" if not ids else f"compiling, and {len(ids)} tokens of prompt")
            sequence = engine.new_sequence()
            sequence.feed(ids, last_only=True)
            of_prompt = _spent(engine.timings)
        out = _Words(file, prompt is not None)
        stops = set() if ignore_eos else _end_tokens(file, engine)
        chosen = []
        for token, _ in sequence.generate(min(generate, settings.context - len(ids))):
            if token in stops:
                break
            chosen.append(token)
            out.add(token)
        out.end()
        _report(engine, of_prompt, len(chosen))
        if json_file is not None:
            from harness.atomic import write_json

            write_json(json_file, {"prompt": ids, "tokens": chosen, "timings": engine.timings.as_dict()})


def _end_tokens(file: GgufFile, engine: FastEngine) -> set[int]:
    """The tokens that end a text: the tokenizer's and the n-gram table's, usually the same."""
    named = file.metadata.get("tokenizer.ggml.eos_token_id")
    return {engine.config.ple.hash.eos, *([] if named is None else [int(named)])}


class _Words:
    """Writes tokens as text, each as soon as it ends on a whole character; as ids where the prompt was ids."""

    def __init__(self, file: GgufFile, as_text: bool) -> None:
        self._file, self._as_text = file, as_text
        self._held: list[int] = []

    def add(self, token: int) -> None:
        if not self._as_text:
            print(token, end=" ", flush=True)
            return
        self._held.append(token)
        text = self._decode(self._held)
        # A token may end inside a character; four bytes later it has ended, or it was none.
        if not text.endswith("\ufffd") or len(self._held) > 4:
            print(text, end="", flush=True)
            self._held = []

    def end(self) -> None:
        print(self._decode(self._held) if self._held else "", flush=True)

    @property
    def _decode(self) -> Callable[[list[int]], str]:
        from harness.cases.prompts import decode

        return lambda ids: decode(self._file, ids)


def _spent(timings: Timings) -> tuple[int, float, float]:
    """Tokens so far, and the seconds of computing and of waiting for rows. A chunk of one token counts as any other."""
    tokens = timings.prefill_tokens + timings.decode_tokens
    return tokens, timings.prefill_compute_s + timings.decode_compute_s, timings.exposed_wait_s


def _report(engine: FastEngine, of_prompt: tuple[int, float, float], written: int) -> None:
    """Speed on standard error, compilation apart. of_prompt: what was spent when the prompt had been fed."""
    import sys

    timings = engine.timings
    tokens, compute_s, wait_s = of_prompt
    all_tokens, all_compute_s, all_wait_s = _spent(timings)

    def line(name: str, tokens: int, compute_s: float, wait_s: float) -> str:
        whole_s = compute_s + wait_s
        speed: Any = f"{tokens / whole_s:.1f} tokens/s" if whole_s else "-"
        return f"{name} {tokens} tokens, {speed}, {wait_s * 1e3:.1f} ms of it waiting for rows"

    print(
        "\n".join(
            [
                line("prompt:", *of_prompt),
                line("answer:", all_tokens - tokens, all_compute_s - compute_s, all_wait_s - wait_s),
                f"compiled in {timings.compile_s:.1f} s, rows read in {timings.gather_s * 1e3:.1f} ms, "
                f"{written} tokens written",
            ]
        ),
        file=sys.stderr,
    )
