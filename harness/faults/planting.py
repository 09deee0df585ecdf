"""Ways to plant a fault in this process, or in a copy of a file: nothing on disk that was there before is changed.

A fault in code is a piece of a function's text replaced, and the function compiled anew in its own module. When the
text is not there any more, planting fails loudly: a fault that cannot be planted proves nothing.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


class CannotPlant(RuntimeError):
    """The code that a fault changes is not as the fault expects it."""


def rewrite(owner: ModuleType | type, name: str, old: str, new: str) -> None:
    """Replace `old` by `new` in the function `name` of a module or class, for this process.

    Raises: CannotPlant unless `old` stands there exactly once.
    """
    if name not in vars(owner):
        raise CannotPlant(f"{owner.__name__}: has no {name}: adapt the fault to the code")
    function = inspect.unwrap(vars(owner)[name])
    source = textwrap.dedent(inspect.getsource(function))
    source = source.replace("super()", f"super({owner.__name__}, self)")  # compiled alone, it is in no class
    if source.count(old) != 1:
        place = f"{getattr(owner, '__module__', owner.__name__)}.{name}"
        raise CannotPlant(
            f"{place}: found {source.count(old)} times {old!r}, expected once: adapt the fault to the code"
        )
    module = sys.modules[function.__module__]
    code = compile(
        source.replace(old, new),
        f"<{name} with a fault>",
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    made: dict[str, Any] = {}
    exec(code, vars(module), made)
    if isinstance(owner, type):
        setattr(owner, name, made[name])
    else:  # in place: others may have imported it by name
        function.__code__ = inspect.unwrap(made[name]).__code__


@contextmanager
def planted_text(module: ModuleType, name: str, old: str, new: str) -> Iterator[None]:
    """`rewrite` of a module's function, taken back at the end. Raises: CannotPlant."""
    rewritten = inspect.unwrap(vars(module)[name]) if name in vars(module) else None
    code = getattr(rewritten, "__code__", None)
    rewrite(module, name, old, new)
    try:
        yield
    finally:
        assert rewritten is not None
        rewritten.__code__ = code


def replace_function(owner: ModuleType | type, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(original)` in the place of a function. Raises: CannotPlant when there is none of that name."""
    original = vars(owner).get(name)
    if original is None:
        raise CannotPlant(f"{owner.__name__}: has no {name}: adapt the fault to the code")
    setattr(owner, name, make(original))


def flipped_copy(original: Path, folder: Path, offset_bytes: int) -> tuple[Path, int]:
    """A copy of a file with the lowest bit of one byte flipped, and the value that the byte had."""
    content = bytearray(original.read_bytes())
    old = content[offset_bytes]
    content[offset_bytes] ^= 1
    path = folder / f"flipped-{original.name}"
    path.write_bytes(content)
    return path, old
