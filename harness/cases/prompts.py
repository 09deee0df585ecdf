"""Prompts: the built-in texts, text to ids and back through a GGUF file's vocabulary, and ids that people bring.

Everything downstream works on ids. A file without a vocabulary, or with one this code does not know, can still be fed
ids (`--tokens`).
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.inputs import whole_number
from model_file.errors import InputError

if TYPE_CHECKING:
    from model_file.gguf_file import GgufFile

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type: taken from a text whole, before anything is split
_WANTED = "write ids as [1, 2, 3], [[1, 2], [3]] or 1 2 3"
_INSTEAD = "give the prompt as token ids with --tokens FILE"

# How each `tokenizer.ggml.pre` splits a text before merging: llama.cpp applies these one after the other.
_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SPLITS: dict[str, tuple[str, ...]] = {
    "qwen2": (rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",),
    "qwen35": (
        rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
    ),
    "gpt-2": (_GPT2,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}


@dataclass(frozen=True)
class Prompt:
    """A text with a name that reports and goldens use."""

    id: str
    text: str


def _builtin() -> tuple[Prompt, ...]:
    """The sections of `builtin_prompts.txt`: a line `=== id`, then the text, without its last newline."""
    content = resources.files("harness.cases").joinpath("builtin_prompts.txt").read_bytes().decode("utf-8")
    prompts = []
    for section in content.removeprefix("=== ").split("\n=== "):
        name, _, text = section.partition("\n")
        prompts.append(Prompt(name, text.removesuffix("\n")))
    return tuple(prompts)


BUILTIN_PROMPTS: tuple[Prompt, ...] = _builtin()


class TextTokenizer:
    """The vocabulary of one GGUF file, as the `tokenizers` library reads it.

    Raises: InputError when the file has no vocabulary or one of another kind; the message says what was found and to
    use --tokens.
    """

    def __init__(self, file: GgufFile) -> None:
        self._place = str(file.paths[0])
        self._inner = self._build(file)

    def _refuse(self, found: str, expected: str) -> InputError:
        return InputError(f"{self._place}: {found}, expected {expected}; {_INSTEAD}")

    def _build(self, file: GgufFile) -> Any:
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

        metadata = file.metadata
        needed = ("tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges")
        absent = [key for key in needed if key not in metadata]
        if absent:
            raise self._refuse(f"no {' and no '.join(absent)} in the metadata", "a vocabulary to encode text with")
        model, pre = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre", "default")
        if model != "gpt2":
            raise self._refuse(f"tokenizer.ggml.model is {model!r}", "'gpt2', a byte-level BPE")
        if pre not in _SPLITS:
            raise self._refuse(f"tokenizer.ggml.pre is {pre!r}", f"one of {', '.join(map(repr, _SPLITS))}")
        tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        ids = {token: number for number, token in enumerate(tokens)}
        merges = []
        for place, merge in enumerate(metadata["tokenizer.ggml.merges"]):
            left, space, right = merge.partition(" ")
            if not space or not {left, right, left + right} <= ids.keys():
                raise self._refuse(
                    f"tokenizer.ggml.merges[{place}] is {merge!r}", "two known tokens whose joint text is one too"
                )
            merges.append((left, right))
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in _SPLITS[pre]]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
        tokenizer.decoder = decoders.ByteLevel()
        kinds = metadata.get("tokenizer.ggml.token_type", [])
        whole = [token for token, kind in zip(tokens, kinds, strict=False) if kind in (_CONTROL, _USER_DEFINED)]
        tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in whole])
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """The text's ids; reserved tokens written out in the text (such as <|endoftext|>) become their own id."""
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of those ids; bytes that are no UTF-8 show as U+FFFD."""
        return str(self._inner.decode(list(ids), skip_special_tokens=False))


_last: tuple[GgufFile, TextTokenizer] | None = None


def _tokenizer_of(file: GgufFile) -> TextTokenizer:
    """The tokenizer of an open file; the last one is kept, a vocabulary of 248,320 tokens takes a second to build."""
    global _last
    if _last is None or _last[0] is not file:
        _last = (file, TextTokenizer(file))
    return _last[1]


def encode(file: GgufFile, text: str, name: str = "the prompt") -> list[int]:
    """Token ids of a text, with the file's own vocabulary.

    Raises: InputError as `TextTokenizer`, for a text without tokens, and for one that was no UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = ord(text[error.start])  # bytes of the command line that are no UTF-8 come as 0xdc00 + byte
        shown = f"byte 0x{found - 0xDC00:02x}" if 0xDC80 <= found <= 0xDCFF else f"half a character, 0x{found:04x}"
        raise InputError(f"{name}: character {error.start} is {shown}, expected UTF-8 text; {_INSTEAD}") from None
    ids = _tokenizer_of(file).encode(text)
    if not ids:
        raise InputError("the prompt is empty: it has no token; give a text with at least one character")
    return ids


def decode(file: GgufFile, ids: Sequence[int]) -> str:
    """Text of token ids, with the file's own vocabulary. Raises: InputError as `TextTokenizer`."""
    return _tokenizer_of(file).decode(ids)


def read_token_file(path: str | Path) -> list[list[int]]:
    """Prompts as token ids: a JSON list of ids, a list of such lists, or ids with white space between (one prompt).

    Raises: InputError when the file cannot be read, or holds anything else; the message names the place.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors write a byte-order mark
    except OSError as error:
        raise InputError(
            f"{path}: cannot read the token file: {error.strerror}; check the path and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: byte {error.start} is no UTF-8; expected token ids as text: [1, 2, 3] or 1 2 3"
        ) from error
    if not text.lstrip().startswith("["):
        return [_numbers(path, "", [_number_or_text(word) for word in text.split()])]
    try:
        content = json.loads(text)
    except RecursionError:
        raise InputError(f"{path}: lists in lists in lists, too deep to read; {_WANTED}") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}; expected a list of token ids such as [1, 2, 3]") from error
    if content and all(isinstance(item, list) for item in content):
        return [_numbers(path, f"prompt {place}: ", item) for place, item in enumerate(content)]
    return [_numbers(path, "", content)]


def read_one_prompt(path: str | Path) -> list[int]:
    """The one prompt of a file of token ids. Raises: InputError as `read_token_file`, and for several prompts."""
    prompts = read_token_file(path)
    if len(prompts) != 1:
        raise InputError(f"{path}: found {len(prompts)} lists of ids, expected one: give one file for each prompt")
    return prompts[0]


def _number_or_text(word: str) -> int | str:
    try:
        return whole_number(word)
    except InputError:
        return word


def _numbers(path: Path, prompt: str, items: list[Any]) -> list[int]:
    if not items:
        raise InputError(f"{path}: {prompt}no token ids; expected at least one, such as [1, 2, 3] or 1 2 3")
    for place, item in enumerate(items):
        if not isinstance(item, int) or isinstance(item, bool):
            found = f"{path}: {prompt}token {place} is {reprlib.repr(item)}"
            raise InputError(f"{found}, expected a whole number; {_WANTED}")
    return items


def check_ids(ids: Sequence[int], vocab: int, name: str = "the prompt") -> None:
    """Raises: InputError when there is no id, or one outside 0..vocab-1, naming its position."""
    if not len(ids):
        raise InputError(f"{name}: is empty; expected at least one token id")
    for place, token in enumerate(ids):
        if not 0 <= token < vocab:
            advice = "is it meant for another model?" if token >= 0 else "ids start at 0"
            raise InputError(
                f"{name}: token {place} is {token}, expected 0..{vocab - 1}, the model's vocabulary; {advice}"
            )


def check_context(place: object, context: int, needed: int, advice: str) -> None:
    """Raises: InputError where a prompt and its answer do not fit the context that the model was made for."""
    if needed > context:
        raise InputError(
            f"{place}: has a context of {context} tokens, expected at least the {needed} that prompt and answer need: "
            f"{advice}"
        )


def varied_ids(n: int, vocab: int, seed: int, *, avoid: Collection[int] = ()) -> list[int]:
    """Ids for benchmark prompts: as uneven as text, but no two neighbours ever come again in the same order.

    A repeated n-gram reads rows that were just read, so repeated text hides the cost of the table. Philox bits only:
    the same on every machine. Low ids come more often (density as 1/sqrt), a pair that was there already is drawn
    again, and with few ids left the rule gives way only when every pair with the last token is used up. `avoid`: ids
    never drawn, such as EOS. Raises: InputError when no id is left to draw from.
    """
    allowed = sorted(set(range(vocab)) - set(avoid))
    if not allowed:
        raise InputError(f"a vocabulary of {vocab} ids leaves none to draw from")
    generator = np.random.Philox(key=seed)
    seen: set[tuple[int, int]] = set()
    ids: list[int] = []
    draws = (word >> 32 for block in iter(lambda: generator.random_raw(1024).tolist(), None) for word in block)
    fruitless = 0
    while len(ids) < n:
        draw = next(draws)
        token = allowed[(draw * draw >> 32) * len(allowed) >> 32]
        pair = (ids[-1] if ids else -1, token)
        if pair in seen and fruitless < 64:
            fruitless += 1
            continue
        fruitless = 0
        seen.add(pair)
        ids.append(token)
    return ids
