"""An OpenAI-compatible server by `/v1/completions` (vLLM, SGLang, llama-server's own): ids where it returns them.

llama-server tells no ids of tokens that end inside a character: an answer with one of them is text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from harness.engines.protocol import Completion
from harness.engines.serving import Server
from harness.errors import CannotRun


class Adapter:
    """Asks a running server. Its clock is ours: the protocol tells no times, and prompt and answer are one."""

    def __init__(self, server: Server) -> None:
        self.server = server
        models = server.ask("/v1/models").get("data", [])
        self._model = str(models[0]["id"]) if models else ""

    def complete(
        self, ids: Sequence[int], count: int, top: int = 0, remember: bool = False, slot: int = -1
    ) -> Completion:
        """Greedy continuation. Raises: CannotRun where the answer is none to what was asked."""
        request = {
            "model": self._model,
            "prompt": [int(token) for token in ids],
            "max_tokens": count,
            "temperature": 0,
            "logprobs": max(top, 1),
            "ignore_eos": True,
            "return_token_ids": True,  # vLLM's word
            "return_tokens": True,  # llama-server's
            "cache_prompt": remember,
            "id_slot": slot,
        }
        began = perf_counter()
        answer = self.server.ask("/v1/completions", request)
        spent_s = perf_counter() - began
        try:
            choice, usage = answer["choices"][0], answer["usage"]
            text, told = str(choice["text"]), int(usage["prompt_tokens"])
            cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
            written = int(usage["completion_tokens"])
            tokens, top_found = _ids(choice, written)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            found = f"{type(error).__name__} {error}"
            raise CannotRun(f"{self.server.name}: not the answer of an OpenAI-compatible server: {found}") from None
        return Completion(
            tokens=tokens or [],
            text=text,
            top=top_found,
            prompt_tokens=told - cached,
            cached_tokens=cached,
            prompt_s=spent_s,
            decode_s=spent_s,
            written=written,
        )

    def tokenize(self, text: str) -> list[int]:
        """By `/tokenize`, which vLLM and llama-server have beside the protocol, each with its own spelling."""
        asked = {
            "model": self._model,
            "prompt": text,
            "content": text,
            "add_special": False,
            "add_special_tokens": False,
        }
        return [int(token) for token in self.server.ask("/tokenize", asked)["tokens"]]


def _ids(choice: dict[str, Any], written: int) -> tuple[list[int] | None, list[dict[int, float]]]:
    """Ids of the answer where they are returned, and the best logprobs by id where those are."""
    logprobs = choice.get("logprobs") or {}
    steps = logprobs.get("content") or []
    if len(steps) == written and all("id" in step for step in steps):  # llama-server
        top = [{int(one["id"]): float(one["logprob"]) for one in step["top_logprobs"]} for step in steps]
        return [int(step["id"]) for step in steps], top
    ids = choice.get("token_ids")
    return (None if ids is None else [int(token) for token in ids]), []
