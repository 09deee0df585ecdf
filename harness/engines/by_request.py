"""Engines in a process of their own that answer whole requests: ids and a count in, ids out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from harness.engines.closing import Closing, Unable
from harness.engines.protocol import LOGITS, ROLLBACK, SAVE, Float32
from model_file.config import ModelConfig


class Answered(Protocol):
    """One answer: tokens, their margins (none where they are not given), logits [t, v] where they were asked for."""

    @property
    def tokens(self) -> list[int]: ...

    @property
    def margins(self) -> list[float]: ...

    @property
    def logits(self) -> Float32 | None: ...


Complete = Callable[[Sequence[int], int, bool], Answered]
"""Ids, how many tokens to continue by, and whether logits are wanted."""


class RequestSequence(Unable):
    """Remembers ids until an answer is asked for; every answer computes all of them anew."""

    def __init__(self, engine: RequestEngine) -> None:
        self.name, self._engine, self._ids = engine.name, engine, list[int]()

    @property
    def position(self) -> int:
        """Tokens fed so far."""
        return len(self._ids)

    def feed(self, ids: Sequence[int]) -> None:
        """Remember them."""
        self._ids += [int(token) for token in ids]

    def logits(self, ids: Sequence[int]) -> Float32:
        """Logits [t, v] at each of them."""
        if LOGITS not in self._engine.abilities:
            self.refuse(LOGITS)
        self.feed(ids)
        logits = self._engine.complete(self._ids, 0, True).logits
        assert logits is not None
        return logits[-len(ids) :]

    def generate(self, count: int) -> Iterator[tuple[int, float]]:
        """One request."""
        answer = self._engine.complete(self._ids, count, False)
        self.feed(answer.tokens)
        margins = answer.margins or [float("nan")] * len(answer.tokens)
        return iter(list(zip(answer.tokens, margins, strict=True)))

    def save(self) -> Any:
        """The ids."""
        return tuple(self._ids)

    def restore(self, saved: Any) -> None:
        """Take the ids."""
        self._ids = list(saved)

    def truncate(self, position: int) -> None:
        """Forget ids."""
        del self._ids[position:]


class RequestEngine(Unable, Closing):
    """An engine known by how it completes ids."""

    abilities = frozenset((SAVE, ROLLBACK))

    def __init__(self, name: str, config: ModelConfig, complete: Complete, close: Callable[[], None]) -> None:
        self.name, self.config, self.complete, self._close = name, config, complete, close
        self.reader: Any = None  # it reads the table its own way

    def new_sequence(self) -> RequestSequence:
        """A sequence at its start."""
        return RequestSequence(self)

    def close(self) -> None:
        """End the process."""
        self._close()
