"""Arms, the things that are compared: a mode of ours with settings, a commit of ours, a server program, or an address.

One notion for the gate, goldens and benchmarks, with one spelling.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from harness.inputs import byte_count, whole_number
from model_file.errors import InputError

DEVICE = "device"  # no mode: random reads past the page cache, which is what the best reader could reach
LLAMA, OPENAI, TRANSFORMERS = "llama-server", "openai", "transformers"
SERVERS = (LLAMA, OPENAI)
"""Kinds of servers: `llama-server` speaks its own protocol, `openai` the /v1/completions of vLLM and others."""
OUTSIDE = (*SERVERS, TRANSFORMERS)
TWIN = "#aa"  # what the name of the baseline's second run ends in
LARGEST_COUNT = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
_NOT_OF_AN_ARM = ("context", "cache_dir", "syscall", "metering")  # the run's own, or the tests'
_OF_TRANSFORMERS = {"program": "str", "threads": "int"}
_SHORT = {"cache": "cache_bytes"}


@dataclass(frozen=True)
class Arm:
    """One of the things that are compared. mode: of a row reader, `device`, or the kind of an outside engine.

    settings: pairs of name and value, typed as they are declared. commit: the full id, None for this tree.
    words: a server's program and its arguments; address: of one that is running; environment: what is set for it.
    """

    name: str
    mode: str
    settings: tuple[tuple[str, Any], ...] = ()
    commit: str | None = None
    words: tuple[str, ...] = ()
    address: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def row_settings(self) -> dict[str, Any]:
        """The settings that are the row reader's."""
        return {name: value for name, value in self.settings if name in setting_types()[0]}

    @property
    def engine_settings(self) -> dict[str, Any]:
        """The settings that are the engine's."""
        return {name: value for name, value in self.settings if name not in setting_types()[0]}

    @property
    def ran(self) -> str:
        """What runs under the name, for tables: nothing more where the name says it all."""
        if self.mode in SERVERS:
            given = [f"{name}={value}" for name, value in self.environment]
            return self.address or shlex.join([*given, *self.words])
        parts = [self.mode] if self.mode != self.name.removesuffix(TWIN) else []
        parts += [f"{name}={_spelled(value)}" for name, value in self.settings]
        parts += [f"at {self.commit[:10]}"] if self.commit else []
        return ", ".join(parts)

    @property
    def label(self) -> str:
        """The name, and what runs under it."""
        return f"{self.name} ({self.ran})" if self.ran else self.name


def setting_types() -> tuple[dict[str, str], dict[str, str]]:
    """Every setting that an arm can name with its declared type: the row reader's, and the engine's."""
    from fast.engine.settings import EngineSettings
    from fast.rows import RowSettings

    of_rows = {f.name: str(f.type) for f in fields(RowSettings) if f.name not in _NOT_OF_AN_ARM}
    of_engine = {f.name: str(f.type) for f in fields(EngineSettings) if f.name not in _NOT_OF_AN_ARM}
    return of_rows, of_engine


def parse_setting(name: str, declared: str, text: str) -> Any:
    """The value of a setting by its declared type. Raises: InputError saying what was expected."""
    kind = declared.partition(" |")[0]
    if kind == "bool":
        if text not in _WORDS:
            raise InputError(f"{name}={text}: expected on or off")
        return _WORDS[text]
    if kind == "int" and name.endswith("_bytes"):
        return 0 if text == "0" else byte_count(text, name)
    if kind == "int":
        return whole_number(text, name, 0, LARGEST_COUNT)
    if kind.startswith("tuple[int"):
        return tuple(whole_number(part, name, 0, LARGEST_COUNT) for part in text.split("+"))
    if kind == "str" and text:
        return text
    raise InputError(f"{name}={text}: cannot be set for an arm")


def parse_arm(text: str) -> Arm:
    """An arm from a mode, from NAME=PART[,PART...], where a part is a mode, commit:REV or setting=value, or a server.

    That is NAME=PROGRAM ARGUMENT..., split as a shell would, where the first word has a `/` or is `llama-server`;
    NAME=http://... for one that is running, NAME=openai:http://... for one that is OpenAI-compatible.
    The commit is not resolved here. Raises: InputError naming the part that is not understood.
    """
    from fast.rows import canonical_mode

    name, equals, rest = text.partition("=")
    if not equals:
        if text == LLAMA:
            return Arm(text, text, words=(text,))
        return Arm(text, text) if text in (DEVICE, TRANSFORMERS) else Arm(canonical_mode(text), canonical_mode(text))
    if not _NAME.fullmatch(name):
        raise InputError(f"--arm {text}: {name!r} is no name for an arm, expected letters, digits and . _ + -")
    if (server := _server(text, name, rest)) is not None:
        _check(text, server)
        return server
    mode, commit, given = "", None, []
    for part in rest.split(","):
        key, equals, value = part.partition("=")
        if equals:
            given.append((_SHORT.get(key, key), value))
        elif key.startswith("commit:") and len(key) > len("commit:") and commit is None:
            commit = key.removeprefix("commit:")
        elif not mode and (found := _mode(key)):
            mode = found
        else:
            raise InputError(
                f"--arm {text}: {part!r} is not understood, expected one mode ({', '.join(_modes())}), commit:REV, or "
                f"setting=value with one of {', '.join(_settings_of(mode))}"
            )
    arm = Arm(name, mode or "auto", _settings(text, mode, given), commit)
    _check(text, arm)
    return arm


def _server(text: str, name: str, rest: str) -> Arm | None:
    """The arm where it is a server, None where it is ours."""
    kind, address = (OPENAI, rest.removeprefix("openai:")) if rest.startswith("openai:") else (LLAMA, rest)
    if address.startswith(("http://", "https://")):
        return Arm(name, kind, address=address.rstrip("/"))
    head = rest.split(maxsplit=1)[0].partition(",")[0] if rest.split() else ""
    if head == LLAMA and rest.startswith(f"{LLAMA},"):
        raise InputError(f"--arm {text}: expected its own arguments, such as {name}={LLAMA} --threads 2 -ctk f32")
    if not (head == LLAMA or ("/" in head.strip("'\"") and not head.startswith("commit:"))):
        return None
    try:
        return Arm(name, LLAMA, words=tuple(shlex.split(rest)))
    except ValueError as error:
        raise InputError(f"--arm {text}: {error}: expected words as a shell takes them") from None


def with_common(arms: Sequence[Arm], arguments: str, environment: Mapping[str, str] | None = None) -> list[Arm]:
    """The arms, with these arguments before those of every server program, and this environment below its own."""
    try:
        words = tuple(shlex.split(arguments))
    except ValueError as error:
        raise InputError(f"--common {arguments}: {error}: expected words as a shell takes them") from None
    below = environment or {}
    return [
        replace(
            arm,
            words=(arm.words[0], *words, *arm.words[1:]),
            environment=tuple(sorted({**below, **dict(arm.environment)}.items())),
        )
        if arm.words
        else arm
        for arm in arms
    ]


_OF_FILE = {"arm", "arguments", "environment"}
_OF_ENTRY = {"name", "program", "address", "arguments", "environment", "mode", "kind"}


def read_arms(path: Path) -> list[Arm]:
    """The arms of a TOML file: `[[arm]]` with name, and program, address or mode (as after NAME=), and for a program
    arguments, environment and kind (`llama-server` or `openai`); arguments and environment at the top are for all.

    Raises: InputError naming the entry and what is wrong with it.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--arms {path}: cannot be read: {error}: expected a TOML file with [[arm]] entries") from None
    entries = content.get("arm", [])
    if not entries or not isinstance(entries, list) or not content.keys() <= _OF_FILE:
        raise InputError(f"--arms {path}: found {', '.join(content) or 'nothing'}, expected {', '.join(_OF_FILE)}")
    arms = [_entry(f"--arms {path}: arm {number}", entry) for number, entry in enumerate(entries)]
    words, environment = _words(f"--arms {path}", content), _environment(f"--arms {path}", content)
    return with_common(arms, shlex.join(words), environment)


def _entry(place: str, entry: Any) -> Arm:
    known = isinstance(entry, dict) and entry.keys() <= _OF_ENTRY and "name" in entry
    if not known or len(entry.keys() & {"program", "address", "mode"}) != 1:
        raise InputError(f"{place}: expected a name, one of program, address and mode, and of {', '.join(_OF_ENTRY)}")
    kind = entry.get("kind", LLAMA)
    if kind not in SERVERS:
        raise InputError(f"{place}: kind is {kind!r}, expected one of {', '.join(SERVERS)}")
    if "program" not in entry:
        return parse_arm(f"{entry['name']}={entry.get('mode', entry.get('address'))}")
    arm = parse_arm(f"{entry['name']}={LLAMA}")
    words = (str(entry["program"]), *_words(place, entry))
    return replace(arm, mode=kind, words=words, environment=tuple(_environment(place, entry).items()))


def _words(place: str, entry: dict[str, Any]) -> list[str]:
    given = entry.get("arguments", [])
    try:
        return shlex.split(given) if isinstance(given, str) else [str(word) for word in given]
    except (ValueError, TypeError) as error:
        raise InputError(f"{place}: arguments: {error}: expected a text or a list") from None


def _environment(place: str, entry: dict[str, Any]) -> dict[str, str]:
    given = entry.get("environment", {})
    if not isinstance(given, dict):
        raise InputError(f"{place}: environment is {given!r}, expected a table of names and values")
    return {name: str(value) for name, value in given.items()}


def _modes() -> tuple[str, ...]:
    from fast.rows import MODES

    return (*MODES, DEVICE, TRANSFORMERS)


def _mode(text: str) -> str | None:
    from fast.rows import ALIASES

    name = ALIASES.get(text, text)
    return name if name in _modes() else None


def _settings_of(mode: str) -> dict[str, str]:
    of_rows, of_engine = setting_types()
    return (
        _OF_TRANSFORMERS if mode == TRANSFORMERS else {"queue_depth": "int"} if mode == DEVICE else of_rows | of_engine
    )


def _settings(text: str, mode: str, given: Sequence[tuple[str, str]]) -> tuple[tuple[str, Any], ...]:
    known, found = _settings_of(mode), {}
    for name, value in given:
        if name not in known:
            raise InputError(f"--arm {text}: {name!r} is no setting, expected one of {', '.join(known)}")
        if name in found:
            raise InputError(f"--arm {text}: {name} is set twice, expected once")
        try:
            found[name] = parse_setting(name, known[name], value)
        except InputError as error:
            raise InputError(f"--arm {text}: {error}") from None
    return tuple(sorted(found.items()))


def _check(text: str, arm: Arm) -> None:
    """Raises: InputError for values that the settings refuse, and a name that says something else than what runs."""
    from fast.engine.settings import EngineSettings
    from fast.rows import ALIASES, RowSettings

    named = LLAMA if arm.name == LLAMA else _mode(arm.name)
    its_own = arm.mode in SERVERS and (arm.name == "auto" or arm.name in ALIASES)  # llama.cpp's --lazy-mode has them
    if named is not None and named != arm.mode and not its_own:
        raise InputError(
            f"--arm {text}: is named after the mode {named}, but runs {arm.mode}: give it another name, or that mode"
        )
    if arm.mode in OUTSIDE and arm.commit:
        raise InputError(f"--arm {text}: {arm.mode} has no commits here: name its program with program=PATH")
    if arm.mode in (DEVICE, *OUTSIDE):
        return
    try:
        RowSettings(**arm.row_settings)
        EngineSettings(**arm.engine_settings)
    except (ValueError, InputError) as error:
        raise InputError(f"--arm {text}: {error}") from None


def parse_arms(texts: Sequence[str], baseline: str | None, file: Path | None = None, common: str = "") -> list[Arm]:
    """The arms of the command line and of a file, in order, the baseline first; `common` is for all server programs.

    Raises: InputError for a double name or an unknown baseline.
    """
    arms = [*with_common([parse_arm(text) for text in texts], common), *(read_arms(file) if file else ())]
    names = [arm.name for arm in arms]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise InputError(f"--arm {double}: is there twice; the baseline's second run, for the noise, is added anyway")
    if baseline is not None:
        if baseline not in names:
            raise InputError(f"--baseline {baseline}: is no arm of this run, expected one of {', '.join(names)}")
        arms.sort(key=lambda arm: arm.name != baseline)
    return arms


def arm_as_dict(arm: Arm) -> dict[str, Any]:
    """The arm as plain values, for JSON."""
    return asdict(arm)


def arm_from(values: dict[str, Any]) -> Arm:
    """The inverse of `arm_as_dict`."""
    pairs = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in values["settings"])
    environment = tuple((name, value) for name, value in values.get("environment", ()))
    words = tuple(values.get("words", ()))
    return Arm(**{**values, "settings": pairs, "words": words, "environment": environment})


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)
