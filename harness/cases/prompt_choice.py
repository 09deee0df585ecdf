"""Which prompts a command runs: the ones given, as text or ids, else the built-in ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.cases.case import TokenPrompt
from harness.cases.prompts import BUILTIN_PROMPTS, encode, read_token_file
from model_file.errors import InputError
from model_file.gguf_file import open_gguf


def choose_prompts(
    model: Path, texts: Sequence[str], text_files: Sequence[Path], token_files: Sequence[Path]
) -> list[TokenPrompt]:
    """The prompts of a command line as ids: `--prompt`, `--prompt-file`, `--tokens`; none given: the built-in texts.

    Raises: InputError for an unreadable file, an empty prompt, or text for a model without a vocabulary.
    """
    named = texts_of(texts, text_files, token_files)
    prompts = []
    if named:
        with open_gguf(model) as opened:
            for name, text in named.items():
                if not text:
                    raise InputError(f"{name}: the prompt is empty, expected at least one character")
                prompts.append(TokenPrompt(name, tuple(encode(opened, text, name))))
    for path in token_files:
        lists = read_token_file(path)
        prompts += [
            TokenPrompt(str(path) if len(lists) == 1 else f"{path}[{number}]", tuple(ids))
            for number, ids in enumerate(lists)
        ]
    return prompts


def texts_of(texts: Sequence[str], text_files: Sequence[Path], token_files: Sequence[Path]) -> dict[str, str]:
    """The texts among the prompts of a command line, by their names; none given at all: the built-in ones."""
    named = {f"--prompt {number}": text for number, text in enumerate(texts, 1)}
    named |= {str(path): _read_text(path) for path in text_files}
    return named or ({} if token_files else {prompt.id: prompt.text for prompt in BUILTIN_PROMPTS})


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}: check the path of --prompt-file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8, expected a text file") from None
