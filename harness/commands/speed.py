"""`plegate speed`: the fast engine against other engines, on the same file and the same token ids, taking turns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.commands.options import CacheDir, DefaultModel, JsonFile

if TYPE_CHECKING:
    from harness.measure.speed import Cell

AGAINST = ("llama.cpp", "transformers", "none")


def speed(
    model: DefaultModel = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against", metavar="ENGINE", help="llama.cpp, transformers or none; several times. Left out: llama.cpp."
        ),
    ] = None,
    depth: Annotated[
        list[int] | None,
        typer.Option("--depth", metavar="TOKENS", help="Tokens before the workload. Left out: 0, 4096, 16384, 32768."),
    ] = None,
    prefill: Annotated[int, typer.Option(metavar="TOKENS", help="Tokens of the prompt that are timed.")] = 512,
    decode: Annotated[int, typer.Option(metavar="TOKENS", help="Tokens generated and timed after it.")] = 128,
    repeats: Annotated[int, typer.Option(metavar="N", help="Repeats of every cell; engines take turns.")] = 3,
    threads: Annotated[int, typer.Option(metavar="N", help="Threads of every engine.")] = 2,
    mode: Annotated[str, typer.Option(metavar="MODE", help="How our engine reads the table.")] = "resident",
    llama_server: Annotated[
        Path | None, typer.Option("--llama-server", metavar="FILE", help="llama.cpp's server. Left out: found.")
    ] = None,
    llama_cache: Annotated[
        str,
        typer.Option(
            "--llama-cache", metavar="TYPE", help="Type of llama.cpp's keys and values: f16, its own, or f32."
        ),
    ] = "f16",
    python: Annotated[
        Path | None, typer.Option("--python", metavar="FILE", help="A Python with torch and transformers.")
    ] = None,
    json_file: JsonFile = None,
    cache_dir: CacheDir = None,
) -> None:
    """Compare prefill and decode with other engines: same file, same ids, same number of threads, engines taking turns.

    Ratios above 1 mean that plegate's engine is faster. transformers is measured at depth 0 only.
    """
    import os

    from harness.commands.outputs import check_outputs
    from harness.errors import CannotRun
    from model_file.errors import InputError

    check_outputs({"--json": json_file}, [model, llama_server, python])
    engines = list(against or ["llama.cpp"])
    depths = list(depth or ([0] if engines == ["transformers"] else [0, 4096, 16384, 32768]))
    wrong = [name for name in engines if name not in AGAINST]
    if wrong:
        raise InputError(f"--against {wrong[0]}: expected one of {', '.join(AGAINST)}")
    if min(prefill, repeats, threads) < 1 or decode < 0 or min(depths) < 0:
        raise InputError("--prefill, --repeats and --threads are at least 1, --decode and --depth at least 0")
    if threads > os.cpu_count():  # type: ignore[operator]
        raise CannotRun(f"--threads {threads}: this machine has {os.cpu_count()}")
    if engines != ["none"]:
        _keep_to(threads)
    cells = _measure(
        model, engines, depths, (prefill, decode, repeats, threads), mode, llama_server, llama_cache, python, cache_dir
    )
    _print(cells)
    if json_file is not None:
        from harness.atomic import write_json
        from harness.environment import environment

        record = {"environment": environment(), "device": _device(), "cells": [cell.as_dict() for cell in cells]}
        write_json(json_file, record)


def _device() -> dict[str, str]:
    """What our engine ran on."""
    import jax

    device = jax.devices()[0]
    return {"platform": str(device.platform), "kind": str(device.device_kind)}


def _keep_to(threads: int) -> None:
    """Let this process have `threads` processors: XLA makes as many threads as it may use, once, when it starts."""
    import os

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def _measure(
    model: Path | None,
    engines: Sequence[str],
    depths: Sequence[int],
    sizes: tuple[int, int, int, int],
    mode: str,
    llama_server: Path | None,
    llama_cache: str,
    python: Path | None,
    cache_dir: Path | None,
) -> list[Cell]:
    from fast.engine.engine import FastEngine
    from fast.engine.settings import EngineSettings
    from fast.rows import locate_table, open_rows
    from harness.cases.prompts import check_context, varied_ids
    from harness.commands.progress import stages
    from harness.engines.llama_cpp import LlamaServer, find_server
    from harness.engines.transformers_engine import TransformersEngine
    from harness.measure.speed import LlamaContender, OursContender, TransformersContender, compare
    from harness.synth import cache_folder, ensure_model
    from model_file.config import config_from
    from model_file.gguf_file import open_gguf

    prefill, decode, repeats, threads = sizes
    context = max(depths) + prefill + decode + 64
    with ExitStack() as stack:
        say = stack.enter_context(stages())
        say("opening the model")
        path = model or ensure_model("nano", cache_dir, say)
        file = stack.enter_context(open_gguf(path))
        check_context(path, config_from(file).context, context - 64, "use a smaller --depth")
        reader = stack.enter_context(open_rows(locate_table(file), mode))
        programs = cache_folder(cache_dir) / "programs"
        settings = EngineSettings(context=context, chunk=min(512, max(16, prefill)), cache_dir=programs)
        engine = stack.enter_context(FastEngine(file, reader, settings))
        contenders: list[Any] = [OursContender(engine)]
        if "llama.cpp" in engines:
            say("starting llama.cpp")
            server = LlamaServer(find_server(llama_server), path, context, threads, llama_cache)
            contenders.append(LlamaContender(stack.enter_context(server)))
        if "transformers" in engines:
            say("starting transformers")
            contenders.append(TransformersContender(stack.enter_context(TransformersEngine(path, threads, python))))
        say("compiling")
        engine.warm_up(with_logits=False)
        compiled = engine.compilations
        ids = varied_ids(context + repeats * prefill, engine.config.vocab, seed=1, avoid=(engine.config.ple.hash.eos,))
        cells = []
        for depth in sorted(depths):
            taking = [c for c in contenders if depth == 0 or c.name != "transformers"]
            cells.append(
                compare(
                    taking,
                    depth,
                    prefill,
                    decode,
                    repeats,
                    partial(_prompt, ids, depth, prefill),
                    say,
                )
            )
        assert engine.compilations == compiled, (
            f"{engine.compilations - compiled} programs were compiled while measuring"
        )
    return cells


def _prompt(ids: list[int], depth: int, prefill: int, repeat: int) -> list[int]:
    """What a repeat feeds: always the same before the depth, other ids after it."""
    return ids[:depth] + ids[depth + repeat * prefill :][:prefill]


def _print(cells: Sequence[Cell]) -> None:
    from harness.measure.speed import OURS
    from harness.pages.numbers import ratio, short
    from harness.pages.tables import Column, print_table, text_column

    columns = [Column("depth"), text_column("what"), Column("plegate"), text_column("other")]
    columns += [Column("tokens/s"), Column("times faster"), Column("same first token", 0)]
    rows = []
    for cell in cells:
        for kind, tokens in (("prefill", cell.prefill_tokens), ("decode", cell.decode_tokens)):
            start = [str(cell.depth), f"{kind} {tokens}", short(cell.speed(OURS, kind)) if tokens else "-"]
            if tokens and len(cell.runs) == 1:
                rows.append([*start, "-", "-", "-", "-"])
            for name in (name for name in cell.runs if name != OURS and tokens):
                ratios = sorted(cell.ratios(name, kind))
                pairs = list(zip(cell.runs[OURS], cell.runs[name], strict=True))
                same = sum(ours.first_token == theirs.first_token for ours, theirs in pairs)
                times = ratio(ratios[len(ratios) // 2], ratios[0], ratios[-1])
                rows.append([*start, name, short(cell.speed(name, kind)), times, f"{same} of {len(pairs)}"])
    title = "tokens per second, and how many times as fast plegate is (median, lowest to highest)"
    print_table(columns, rows, title=title)
