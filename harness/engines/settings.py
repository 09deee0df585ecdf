"""The settings of an engine as people run it: one function for `run`, `bench`, `logits` and the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.synth import cache_folder

if TYPE_CHECKING:
    from fast.engine.settings import EngineSettings

ROOM_STEP = 1024


def engine_settings(room: int, **chosen: Any) -> EngineSettings:
    """Settings for sequences of up to `room` tokens; `chosen` names any field of `EngineSettings` that is to differ.

    The context is rounded up in steps of 1,024, so that the next prompt of about this length finds its programs
    compiled; `context` in `chosen` is taken as it is. A chunk is never longer than the context. Programs are kept in
    the cache folder, unless `cache_dir` says otherwise. Raises: InputError naming every setting that cannot be.
    """
    from fast.engine.settings import EngineSettings

    context = chosen.pop("context", None)
    context = -(-room // ROOM_STEP) * ROOM_STEP if context is None else context
    if chosen.get("chunk", 0) > context > 0:
        chosen["chunk"] = context
    wanted = EngineSettings(context=context, **chosen)
    fields: dict[str, Any] = {**vars(wanted), "chunk": min(wanted.chunk, wanted.context)}
    if "cache_dir" not in chosen:
        fields["cache_dir"] = cache_folder() / "programs"
    return EngineSettings(**fields)
