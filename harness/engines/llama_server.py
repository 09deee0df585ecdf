"""llama.cpp's server by its own protocol, `/completion`: token ids in, greedy ids, logprobs and its own timings out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fast.engine.settings import EngineSettings
from fast.rows import RowReader
from harness.engines.arms import LLAMA, Arm
from harness.engines.by_request import RequestEngine
from harness.engines.protocol import Completion
from harness.engines.serving import Room, Server
from harness.errors import CannotRun
from model_file.config import config_from
from model_file.gguf_file import GgufFile


class Adapter:
    """Asks a running server. Leaving it as a context manager ends the server."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def complete(
        self, ids: Sequence[int], count: int, top: int = 0, remember: bool = False, slot: int = -1
    ) -> Completion:
        """Greedy continuation. Raises: CannotRun where the answer is none to what was asked."""
        request = {
            "prompt": [int(token) for token in ids],
            "n_predict": count,
            "temperature": 0,
            "top_k": 1,
            "samplers": ["top_k"],
            "repeat_penalty": 1.0,
            "cache_prompt": remember,
            "ignore_eos": True,
            "return_tokens": True,
            "n_probs": top,
            "id_slot": slot,
        }
        answer = self.server.ask("/completion", request)
        try:
            return self._completion(answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CannotRun(
                f"{self.server.name}: not the answer of a llama-server: {type(error).__name__} {error}"
            ) from None

    def _completion(self, answer: dict[str, Any]) -> Completion:
        timings, tokens = answer["timings"], [int(token) for token in answer["tokens"]]
        return Completion(
            tokens=tokens,
            text=str(answer["content"]),
            top=by_step(tokens, answer.get("completion_probabilities", [])),
            prompt_tokens=int(timings["prompt_n"]),
            cached_tokens=int(timings.get("cache_n", 0)),
            prompt_s=timings["prompt_ms"] / 1e3,
            decode_s=timings["predicted_ms"] / 1e3,
            drafted=int(timings.get("draft_n", 0)),
            accepted=int(timings.get("draft_n_accepted", 0)),
        )

    def tokenize(self, text: str) -> list[int]:
        """The ids that it makes of a text, no special tokens added."""
        return [int(token) for token in self.server.ask("/tokenize", {"content": text, "add_special": False})["tokens"]]

    def slot(self, number: int, action: str, file: str = "") -> dict[str, Any]:
        """`erase`, `save` or `restore` a slot, the last two with a file of the server's folder."""
        return dict(self.server.ask(f"/slots/{number}?action={action}", {"filename": file} if file else {}))


def by_step(tokens: Sequence[int], told: Sequence[dict[str, Any]]) -> list[dict[int, float]]:
    """The best logprobs of each step; empty where none are told.

    llama-server leaves out a token that ends inside a character, and gives its bytes to the next one, whose bytes are
    then more than those of its own piece.
    """
    found: list[dict[int, float]] = [{} for _ in tokens] if told else []
    at = 0
    for step in told:
        best = step["top_logprobs"]
        own = next((one.get("bytes") for one in best if one["id"] == step.get("id", one["id"])), None)
        left_out = own is not None and len(step["bytes"]) > len(own)
        at = tokens.index(step.get("id", tokens[at]), at + left_out)
        found[at] = {int(one["id"]): float(one["logprob"]) for one in best}
        at += 1
    return found


def load(model: GgufFile, _: RowReader, settings: EngineSettings) -> RequestEngine:
    """A server over the model's file, keys and values in float32, on every core; it reads the table its own way."""
    threads = str(os.cpu_count() or 1)
    words = (LLAMA, "-t", threads, "-tb", threads, "-ctk", "f32", "-ctv", "f32")
    server = Server(Arm(LLAMA, LLAMA, words=words), Room(model.paths[0], settings.context))
    adapter = Adapter(server)

    def complete(ids: Sequence[int], count: int, with_logits: bool) -> Completion:
        assert not with_logits
        return adapter.complete(ids, count)

    return RequestEngine(LLAMA, config_from(model), complete, server.close)
