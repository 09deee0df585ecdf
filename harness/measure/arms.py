"""Arms, the things that are compared: a mode or an engine, with settings that are parsed by their declared types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from harness.inputs import byte_count, whole_number
from model_file.errors import InputError

DEVICE = "device"  # no mode: random reads past the page cache, which is what the best reader could reach
OUTSIDE = ("llama-server", "transformers")
TWIN = "#aa"  # what the name of the baseline's second run ends in
LARGEST_COUNT = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
_NOT_OF_AN_ARM = ("context", "cache_dir", "syscall", "metering")  # the run's own, or the tests'
_OF_OUTSIDE = {"program": "str", "threads": "int", "cache_type": "str"}  # of llama-server or transformers
_SHORT = {"cache": "cache_bytes"}


@dataclass(frozen=True)
class Arm:
    """One of the things that are compared. mode: of a row reader, `device`, or an outside engine.

    settings: pairs of name and value, typed as they are declared. commit: the full id, None for this tree.
    """

    name: str
    mode: str
    settings: tuple[tuple[str, Any], ...] = ()
    commit: str | None = None

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
    """An arm from a mode, or from NAME=PART[,PART...], where a part is a mode, commit:REV or setting=value.

    The commit is not resolved here. Raises: InputError naming the part that is not understood.
    """
    from fast.rows import canonical_mode

    name, equals, rest = text.partition("=")
    if not equals:
        return Arm(text, text) if text in (DEVICE, *OUTSIDE) else Arm(canonical_mode(text), canonical_mode(text))
    if not _NAME.fullmatch(name):
        raise InputError(f"--arm {text}: {name!r} is no name for an arm, expected letters, digits and . _ + -")
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


def _modes() -> tuple[str, ...]:
    from fast.rows import MODES

    return (*MODES, DEVICE, *OUTSIDE)


def _mode(text: str) -> str | None:
    from fast.rows import ALIASES

    name = ALIASES.get(text, text)
    return name if name in _modes() else None


def _settings_of(mode: str) -> dict[str, str]:
    of_rows, of_engine = setting_types()
    return _OF_OUTSIDE if mode in OUTSIDE else {"queue_depth": "int"} if mode == DEVICE else of_rows | of_engine


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
    from fast.rows import RowSettings

    named = _mode(arm.name)
    if named is not None and named != arm.mode:
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


def parse_arms(texts: Sequence[str], baseline: str | None) -> list[Arm]:
    """The arms in order, the baseline first. Raises: InputError for a double name or an unknown baseline."""
    arms = [parse_arm(text) for text in texts]
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
    return Arm(**{**values, "settings": pairs})


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)
