"""Learns the BPE merges of made models from our own text: `python -m tests.harness.synth.learn_merges > merges.txt`.

Run by a person when `corpus.txt` changes (then every recorded digest changes too), and by a test that compares the
result with the stored file. Ties go to the pair whose word comes first in the text, then to code point order: the
result depends on the text alone.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from harness.synth.vocabulary import byte_alphabet

NEW_TOKENS = 3838  # with 256 bytes and two reserved tokens: a vocabulary of 4096
Pair = tuple[str, str]


def words_of(text: str) -> Iterator[str]:
    """Pieces that no merge may cross: letters with one space or sign before, single digits, runs of signs or spaces."""
    start = 0
    while start < len(text):
        end = _end_of_word(text, start)
        yield text[start:end]
        start = end


def _end_of_word(text: str, start: int) -> int:
    first = text[start]
    if first.isnumeric():
        return start + 1
    after = start if _is_letter(first) else start + 1
    if first not in "\r\n" and after < len(text) and _is_letter(text[after]):
        return _run(text, after, _is_letter)
    after = start + 1 if first == " " else start
    if after < len(text) and _is_sign(text[after]):
        end = _run(text, after, _is_sign)
        return _run(text, end, lambda character: character in "\r\n")
    end = _run(text, start, str.isspace)
    newline = text.rfind("\n", start, end)
    if newline >= 0:
        return newline + 1
    return end - 1 if end < len(text) and end - start > 1 else end


def _is_letter(character: str) -> bool:
    return character.isalpha()


def _is_sign(character: str) -> bool:
    return not (character.isalpha() or character.isnumeric() or character.isspace())


def _run(text: str, start: int, belongs: Callable[[str], bool]) -> int:
    while start < len(text) and belongs(text[start]):
        start += 1
    return start


def learn(text: str, count: int) -> list[Pair]:
    """The merges that make `count` new tokens, best first: always the pair that is most frequent now.

    Two merges can make the same token, so there may be more of them than tokens.
    """
    alphabet = byte_alphabet()
    frequency = Counter(words_of(text))
    words = [[alphabet[byte] for byte in word.encode("utf-8")] for word in frequency]
    weights = list(frequency.values())
    pairs: Counter[Pair] = Counter()
    places: dict[Pair, list[int]] = {}  # numbers of the words it was ever seen in, rising at first: [0] is the earliest
    for number, symbols in enumerate(words):
        _count_pairs(symbols, weights[number], number, pairs, places)
    merges: list[Pair] = []
    tokens: set[str] = set()
    while len(tokens) < count and pairs:
        best = min(pairs, key=lambda pair: (-pairs[pair], places[pair][0], pair))
        merges.append(best)
        tokens.add("".join(best))
        for number in sorted(set(places[best])):
            _count_pairs(words[number], -weights[number], number, pairs, places)
            words[number] = _merged(words[number], best)
            _count_pairs(words[number], weights[number], number, pairs, places)
        del pairs[best]
    return merges


def _count_pairs(
    symbols: list[str], weight: int, number: int, pairs: Counter[Pair], places: dict[Pair, list[int]]
) -> None:
    for pair in pairwise(symbols):
        pairs[pair] += weight
        if pairs[pair] <= 0:
            del pairs[pair]
        places.setdefault(pair, []).append(number)


def _merged(symbols: list[str], pair: Pair) -> list[str]:
    result: list[str] = []
    for symbol in symbols:
        if result and (result[-1], symbol) == pair:
            result[-1] += symbol
        else:
            result.append(symbol)
    return result


def corpus() -> str:
    """The text that merges are learned from."""
    return Path(__file__).with_name("corpus.txt").read_bytes().decode("utf-8")


def main() -> None:
    """Print the merges, one a line, best first."""
    for left, right in learn(corpus(), NEW_TOKENS):
        sys.stdout.buffer.write(f"{left} {right}\n".encode())


if __name__ == "__main__":
    main()
