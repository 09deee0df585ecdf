"""The vocabulary of made models: original, complete, and what GPT-2's byte alphabet means."""

from __future__ import annotations

import pytest

from harness.synth.presets import PRESETS
from harness.synth.vocabulary import CONTROL, NORMAL, UNUSED, build_vocabulary, byte_alphabet, learned_merges
from tests.harness.synth.learn_merges import NEW_TOKENS, corpus, learn, words_of


def test_byte_alphabet_is_that_of_gpt2() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    assert sorted(byte_alphabet()) == sorted(ByteLevel.alphabet())
    split = ByteLevel(add_prefix_space=False, use_regex=False)
    for code in range(128):  # one character, one byte
        assert split.pre_tokenize_str(chr(code))[0][0] == byte_alphabet()[code]


def test_stored_merges_are_learned_from_the_storedcorpus() -> None:
    assert tuple(f"{left} {right}" for left, right in learn(corpus(), NEW_TOKENS)) == learned_merges()


def test_learning_takes_the_most_frequent_pair_first() -> None:
    assert learn("abab abab ab", 2) == [("a", "b"), ("ab", "ab")]


def test_words_cover_the_text() -> None:
    assert "".join(words_of(corpus())) == corpus()
    assert list(words_of("a  b, 12\n\n  x's")) == ["a", " ", " b", ",", " ", "1", "2", "\n\n", " ", " x", "'s"]


@pytest.mark.parametrize("name", PRESETS)
def test_vocabulary_is_complete(name: str) -> None:
    preset = PRESETS[name]
    vocabulary = build_vocabulary(preset.config.vocab, preset.special, preset.served)
    assert not preset.served or UNUSED not in vocabulary.types
    assert len(vocabulary.tokens) == len(vocabulary.types) == preset.config.vocab == len(set(vocabulary.tokens))
    known = set(vocabulary.tokens)
    assert set(byte_alphabet()) <= known
    for merge in vocabulary.merges:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= known
    for token, text in preset.special.items():
        assert (vocabulary.tokens[token], vocabulary.types[token]) == (text, CONTROL)
    assert {kind for token, kind in enumerate(vocabulary.types) if token not in preset.special} <= {NORMAL, UNUSED}
    assert vocabulary.quiet == {token for token, kind in enumerate(vocabulary.types) if kind != NORMAL}


def test_a_small_vocabulary_takes_the_best_merges() -> None:
    vocabulary = build_vocabulary(300, {0: "<|pad|>"})
    assert len(vocabulary.tokens) == 300 and UNUSED not in vocabulary.types
    assert tuple(vocabulary.merges) == learned_merges()[: len(vocabulary.merges)]
