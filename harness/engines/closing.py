"""What every engine's adapter has: `with`, and a refusal by name of what the engine is not able to do."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NoReturn, Self

from harness.engines.protocol import ABILITIES, BATCH, RECORD, ROLLBACK, SAVE
from harness.errors import CannotRun


class Closing:
    """Closes itself at the end of a `with`."""

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Unable:
    """Refuses what an engine is not able to do; a sequence or an engine overrides what it is. Raises: CannotRun."""

    name: str

    def record(self, *_: Any) -> Any:
        """Not offered."""
        self.refuse(RECORD)

    def save(self, *_: Any) -> Any:
        """Not offered."""
        self.refuse(SAVE)

    def restore(self, *_: Any) -> None:
        """Not offered."""
        self.refuse(SAVE)

    def truncate(self, *_: Any) -> None:
        """Not offered."""
        self.refuse(ROLLBACK)

    def feed_batch(self, *_: Any) -> None:
        """Not offered."""
        self.refuse(BATCH)

    def greedy_batch(self, *_: Any) -> Any:
        """Not offered."""
        self.refuse(BATCH)

    def refuse(self, ability: str) -> NoReturn:
        """Raises: CannotRun naming the engine and what it is not able to do."""
        raise CannotRun(f"{self.name}: expected an engine that {ABILITIES[ability]}: this one does not")
