"""Built-in prompts, text to ids and back, ids from files, ids for benchmarks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cases.prompts import BUILTIN_PROMPTS, TextTokenizer, check_ids, decode, encode, read_token_file, varied_ids
from harness.synth import make_recipe
from model_file.errors import InputError
from model_file.gguf_file import GgufFile, open_gguf
from tests.gguf_edit import read, write

V = gguf.GGUFValueType


def header_only(folder: Path, name: str) -> Path:
    """A made model whose data is a hole: all that a vocabulary needs."""
    recipe = make_recipe(name, rows=2000)
    path = folder / f"{name}.gguf"
    with path.open("wb") as file:
        file.write(recipe.header)
        file.truncate(recipe.size_bytes)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    return open_gguf(header_only(tmp_path_factory.mktemp("made"), "nano"))


def test_builtin_prompts_are_five_and_varied() -> None:
    assert [prompt.id for prompt in BUILTIN_PROMPTS] == ["prose", "code", "list", "languages", "dialogue"]
    assert all(prompt.text and not prompt.text.endswith("\n") for prompt in BUILTIN_PROMPTS)
    assert BUILTIN_PROMPTS[1].text.startswith("def merge_ranges(") and "\n\n\n" in BUILTIN_PROMPTS[1].text


@pytest.mark.parametrize("prompt", BUILTIN_PROMPTS, ids=lambda prompt: prompt.id)
def test_builtin_prompts_go_to_ids_and_back(prompt: object, made: GgufFile) -> None:
    ids = encode(made, prompt.text)  # type: ignore[attr-defined]
    assert 100 <= len(ids) <= 400
    assert decode(made, ids) == prompt.text  # type: ignore[attr-defined]


@given(text=st.text(min_size=1))
def test_any_text_goes_to_ids_and_back(text: str, made: GgufFile) -> None:
    assert decode(made, encode(made, text)) == text


def test_ids_of_known_texts(made: GgufFile) -> None:
    """Counted by hand: single digits, one space before a word, a reserved token written out."""
    tokens = made.metadata["tokenizer.ggml.tokens"]
    assert [tokens[token] for token in encode(made, "The table 12 reads\n\n  the")] == [
        "The",
        "Ġtable",
        "Ġ",
        "1",
        "2",
        "Ġreads",
        "ĊĊ",
        "Ġ",
        "Ġthe",
    ]
    assert encode(made, "<|endoftext|>") == [1]
    assert encode(made, "a<|endoftext|>b") == [*encode(made, "a"), 1, *encode(made, "b")]


def test_tokenizer_kept_for_one_file_is_not_used_for_another(made: GgufFile, tiny: Path) -> None:
    first = encode(made, "the table")
    with open_gguf(tiny) as other:
        assert encode(other, "the table") != first
    assert encode(made, "the table") == first


def test_a_large_vocabulary_loads(tmp_path: Path) -> None:
    with open_gguf(header_only(tmp_path, "table")) as model:
        text = BUILTIN_PROMPTS[3].text
        assert decode(model, encode(model, text)) == text
        assert encode(model, "<|endoftext|>") == [248044]


def _changed(tmp_path: Path, tiny: Path, **changes: object) -> GgufFile:
    keys, tensors = read(tiny)
    for name, value in changes.items():
        key = f"tokenizer.ggml.{name}"
        if value is None:
            del keys[key]
        else:
            keys[key] = (value, *keys[key][1:])
    return open_gguf(write(tmp_path / "changed.gguf", keys, tensors))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": None}, "no tokenizer.ggml.tokens in the metadata"),
        ({"model": None, "merges": None}, "no tokenizer.ggml.model and no tokenizer.ggml.merges"),
        ({"model": "llama"}, "tokenizer.ggml.model is 'llama', expected 'gpt2'"),
        ({"pre": "viking"}, "tokenizer.ggml.pre is 'viking', expected one of .*'qwen35'"),
        ({"merges": ["a b", "a"]}, r"tokenizer.ggml.merges\[1\] is 'a', expected"),
        ({"merges": ["a b", "a 大"]}, r"tokenizer.ggml.merges\[1\]"),
    ],
)
def test_files_without_a_known_vocabulary_are_refused(
    changes: dict[str, object], said: str, tmp_path: Path, tiny: Path
) -> None:
    with (
        _changed(tmp_path, tiny, **changes) as model,
        pytest.raises(InputError, match=rf"changed\.gguf: {said}.*--tokens"),
    ):
        TextTokenizer(model)


def test_an_empty_text_is_refused(made: GgufFile) -> None:
    with pytest.raises(InputError, match="empty"):
        encode(made, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 2, 3]", [[1, 2, 3]]),
        ("[[1, 2], [3]]", [[1, 2], [3]]),
        ("1 2\n3\t-4\n", [[1, 2, 3, -4]]),
        ("  [7]\n", [[7]]),
    ],
)
def test_token_files_are_read(text: str, expected: list[list[int]], tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_text(text)
    assert read_token_file(path) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no token ids"),
        ("[]", "no token ids"),
        ("[[1], []]", "prompt 1: no token ids"),
        ("1 two 3", "token 1 is 'two'"),
        ("1, 2", "token 0 is '1,'"),
        ("[1, 2.5]", "token 1 is 2.5"),
        ("[true]", "token 0 is True"),
        ("[1, [2]]", r"token 1 is \[2\]"),
        ("[[1], [2, null]]", "prompt 1: token 1 is None"),
        ("[1, 2", "not valid JSON"),
        ('{"a": 1}', "token 0 is"),
        ("\N{SUPERSCRIPT TWO}", "token 0 is"),
    ],
)
def test_bad_token_files_are_refused_with_the_place(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_text(text)
    with pytest.raises(InputError, match=f"ids: .*{said}"):
        read_token_file(path)


def test_unreadable_token_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none: cannot read the token file"):
        read_token_file(tmp_path / "none")
    with pytest.raises(InputError, match="cannot read the token file"):
        read_token_file(tmp_path)
    (tmp_path / "binary").write_bytes(b"1 2 \xff")
    with pytest.raises(InputError, match="byte 4 is no UTF-8"):
        read_token_file(tmp_path / "binary")


@pytest.mark.parametrize(
    ("ids", "said"),
    [([], "empty"), ([0, -1], "token 1 is -1, expected 0..9.*start at 0"), ([3, 10], "token 1 is 10.*another model")],
)
def test_check_ids_names_the_position(ids: list[int], said: str) -> None:
    with pytest.raises(InputError, match=f"prompt 3: .*{said}"):
        check_ids(ids, 10, "prompt 3")


def test_check_ids_takes_the_whole_vocabulary() -> None:
    check_ids(range(10), 10)


def test_varied_ids_never_repeat_a_pair() -> None:
    ids = varied_ids(32768, 4096, 0, avoid=(0, 1))
    assert len(ids) == 32768 and min(ids) >= 2 and max(ids) < 4096
    assert len(set(pairwise(ids))) == 32767
    assert len(set(ids)) > 4000


def test_varied_ids_depend_on_seed_alone() -> None:
    assert varied_ids(8, 4096, 0) == [0, 238, 50, 1304, 1033, 315, 3669, 3982]
    assert varied_ids(100, 4096, 0)[:8] == varied_ids(8, 4096, 0)
    assert varied_ids(8, 4096, 1) != varied_ids(8, 4096, 0)


def test_varied_ids_end_even_when_every_pair_is_used_up() -> None:
    ids = varied_ids(200, 3, 0)
    assert len(ids) == 200 and len(set(pairwise(ids))) == 9
    with pytest.raises(InputError, match="none to draw from"):
        varied_ids(1, 2, 0, avoid=(0, 1))
