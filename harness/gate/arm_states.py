"""What servers lose in state, each asked for by name: prompts together, cached prefixes, rewinds, slots, repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from harness.cases.case import TokenPrompt
from harness.engines.protocol import Completion
from harness.errors import CannotRun
from harness.gate.arm_runs import OfServer, Subject
from harness.gate.arm_verdicts import ArmVerdict
from harness.gate.verdicts import DIFFERENT, EQUAL, NOT_RUN

SLOTS = 4
_BACK = 5  # tokens that a rewind goes back by
Check = Callable[[OfServer, Sequence[TokenPrompt], Mapping[str, Completion]], str]


def together(server: OfServer, prompts: Sequence[TokenPrompt], right: Mapping[str, Completion]) -> str:
    """Up to four different prompts at once, each in a slot of its own (-np 4)."""
    asked = prompts[:SLOTS]
    with ThreadPoolExecutor(SLOTS) as pool:
        running = [
            pool.submit(server.complete, prompt.ids, len(right[prompt.name].tokens), False, slot)
            for slot, prompt in enumerate(asked)
        ]
        done = [one.result() for one in running]
    return _all(
        f"{len(asked)} prompts at once",
        [(f"{p.name} in slot {slot}", d, right[p.name]) for slot, (p, d) in enumerate(zip(asked, done, strict=True))],
    )


def prefix(server: OfServer, prompts: Sequence[TokenPrompt], right: Mapping[str, Completion]) -> str:
    """A prompt of which a half is in the prompt cache."""
    found = []
    for prompt in prompts:
        half = prompt.ids[: max(1, len(prompt.ids) // 2)]
        server.complete(half, 1, True, 0)
        done = server.complete(prompt.ids, len(right[prompt.name].tokens), True, 0)
        found.append(
            (f"{prompt.name} with {done.cached_tokens} of {len(half)} tokens cached", done, right[prompt.name])
        )
    return _all("half a prompt from the cache", found, sum(done.cached_tokens for _, done, _ in found))


def rewind(server: OfServer, prompts: Sequence[TokenPrompt], right: Mapping[str, Completion]) -> str:
    """A prompt whose cached form goes on otherwise: the server goes back into the middle of what it has."""
    found = []
    for prompt in prompts:
        if len(prompt.ids) <= _BACK:
            continue
        other = [*prompt.ids[:-_BACK], *reversed(prompt.ids[-_BACK:]), *prompt.ids[:_BACK]]
        server.complete(other, 1, True, 0)
        done = server.complete(prompt.ids, len(right[prompt.name].tokens), True, 0)
        found.append((f"{prompt.name} after going back, {done.cached_tokens} tokens cached", done, right[prompt.name]))
    return _all("going back into what is cached", found, sum(done.cached_tokens for _, done, _ in found))


def erase(server: OfServer, prompts: Sequence[TokenPrompt], right: Mapping[str, Completion]) -> str:
    """A slot that is erased and filled again."""
    found = []
    for prompt, other in zip(prompts, (*prompts[1:], prompts[0]), strict=True):
        server.complete(other.ids, 1, True, 0)
        _slot(server, 0, "erase")
        done = server.complete(prompt.ids, len(right[prompt.name].tokens), True, 0)
        if done.cached_tokens:
            return f"{DIFFERENT}: {prompt.name}: {done.cached_tokens} tokens were cached after the slot was erased"
        found.append((f"{prompt.name} in the erased slot", done, right[prompt.name]))
    return _all("slot erased and filled again", found)


def restore(server: OfServer, prompts: Sequence[TokenPrompt], right: Mapping[str, Completion]) -> str:
    """A slot saved, and restored into another one."""
    found = []
    for prompt in prompts:
        server.complete(prompt.ids, 1, True, 0)
        _slot(server, 0, "save", "plegate.slot")
        _slot(server, 1, "restore", "plegate.slot")
        done = server.complete(prompt.ids, len(right[prompt.name].tokens), True, 1)
        found.append((f"{prompt.name} restored, {done.cached_tokens} tokens cached", done, right[prompt.name]))
    return _all("saved and restored into another slot", found, sum(done.cached_tokens for _, done, _ in found))


def again(server: OfServer, prompts: Sequence[TokenPrompt], right: Mapping[str, Completion]) -> str:
    """The identical request a second time, with what the first one left in the cache."""
    found = []
    for prompt in prompts:
        count = len(right[prompt.name].tokens)
        server.complete(prompt.ids, count, True, 0)
        done = server.complete(prompt.ids, count, True, 0)
        found.append((f"{prompt.name} again, {done.cached_tokens} tokens cached", done, right[prompt.name]))
    return _all("an identical request again", found, sum(done.cached_tokens for _, done, _ in found))


STATES: dict[str, Check] = {one.__name__: one for one in (together, prefix, rewind, erase, restore, again)}


def check_states(
    verdict: ArmVerdict,
    subject: Subject,
    names: Sequence[str],
    prompts: Sequence[TokenPrompt],
    right: Mapping[str, Completion],
) -> None:
    """Run the named checks in one server with four slots; each answer must be the one given alone, without a cache."""
    try:
        with subject.answering(verdict.arm, SLOTS) as server:
            assert isinstance(server, OfServer)
            if server.adapter.server.process_id is not None and not right[prompts[0].name].tokens:
                raise CannotRun("it tells no ids")
            for name in names:
                try:
                    verdict.states[name] = STATES[name](server, prompts, right)
                except CannotRun as reason:
                    verdict.states[name] = f"{NOT_RUN}: {reason}"
    except CannotRun as reason:
        verdict.states |= dict.fromkeys(names, f"{NOT_RUN}: {reason}")


def _slot(server: OfServer, number: int, action: str, file: str = "") -> None:
    act = getattr(server.adapter, "slot", None)
    if act is None:
        raise CannotRun(f"{server.adapter.server.name}: its protocol has no slots")
    act(number, action, file)


def _all(what: str, found: Sequence[tuple[str, Completion, Completion]], cached: int | None = None) -> str:
    """`equal` with what was compared, or the first difference."""
    for name, done, right in found:
        step = next((n for n, (a, b) in enumerate(zip(done.tokens, right.tokens, strict=True)) if a != b), None)
        if step is not None:
            ids = f"{done.tokens[step]}, expected {right.tokens[step]}"
            return f"{DIFFERENT}: {what}: {name}, step {step}: found {ids}"
    steps = sum(len(done.tokens) for _, done, _ in found)
    used = (
        "" if cached is None else f", {cached:,} tokens from the cache" if cached else ", nothing came from the cache"
    )
    return f"{EQUAL}: {what}: {steps:,} tokens of {len(found)} prompts{used}"
