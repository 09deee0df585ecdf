"""A server in place of llama-server, over our own engine: both protocols, slots, and faults on demand.

`stand_in.py -m MODEL --port N [--lazy-fault NAME=VALUE,...]`. Answers are kept in PLEGATE_STAND_IN_CACHE, so
that only the first one of a model and prompt loads an engine. Faults: id=K another id at step K; noise=X on logprobs;
prompt_n=N more than were sent; slow=S seconds an answer; hang=N and die=N at request N; leak a child; slot: ids that
depend on the slot; vocab an id outside; short one token fewer; stale after a cached prefix; text: ids are not told;
flaky=N another id from request N on; restart: another id from the second start on; forgets what it was to remember;
made-up: ids of a hash, without an engine; known=NUMBER of a fault of harness/diagnose. A second one beside it does not
start.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

TOP = 20
BEHIND = 4  # a cached prefix is taken up this many tokens before its end
Step = tuple[int, list[tuple[int, float]]]


class Engine:
    """Greedy steps with the best logprobs of each, from the kept answers or our engine."""

    def __init__(self, model: Path, context: int, made_up: bool, known: str) -> None:
        self.model, self.context, self.inner = model, context, None
        self.made_up, self.known = made_up, known
        self.digest = "" if made_up else hashlib.sha256(model.read_bytes()).hexdigest() + known
        self.folder = Path(os.environ["PLEGATE_STAND_IN_CACHE"])

    def steps(self, ids: list[int], count: int) -> list[Step]:
        found: list[Step] = []
        if self.made_up:
            draw = random.Random(str(ids))
            return [(draw.randrange(3, 60), [(3, -0.1), (4, -2.0)]) for _ in range(count)]
        while len(found) < count:
            so_far = [*ids, *(token for token, _ in found)]
            if (kept := self._place(so_far)).exists():
                found.append(json.loads(kept.read_text()))
                continue
            for step in self._computed(so_far, count - len(found)):
                part = self.folder / f"{os.getpid()}.part"
                part.write_text(json.dumps(step))
                part.replace(self._place([*ids, *(token for token, _ in found)]))
                found.append(step)
        return found

    def _place(self, ids: list[int]) -> Path:
        return self.folder / hashlib.sha256(json.dumps([self.digest, ids]).encode()).hexdigest()

    def _computed(self, ids: list[int], count: int) -> list[Step]:
        import numpy as np

        if self.known:
            return self._wrong(ids, count)
        from fast.engine.engine import FastEngine
        from fast.rows import locate_table, open_rows
        from harness.engines.settings import engine_settings
        from model_file.gguf_file import open_gguf

        if self.inner is None:
            file = open_gguf(self.model)
            self.inner = FastEngine(file, open_rows(locate_table(file), "mmap"), engine_settings(self.context))
        sequence, found = self.inner.new_sequence(), []
        logits = sequence.feed(ids, last_only=True)
        for _ in range(count):
            exact = logits.astype(np.float64)
            logprobs = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
            best = np.argsort(-logprobs, kind="stable")[:TOP]
            found.append((int(best[0]), [(int(i), float(logprobs[i])) for i in best]))
            logits = sequence.feed([found[-1][0]], last_only=True)
        return found

    def _wrong(self, ids: list[int], count: int) -> list[Step]:
        """As an engine with a known fault answers."""
        import numpy as np

        from harness.diagnose.diagnosis import Diagnoser
        from harness.diagnose.known import known_faults
        from harness.diagnose.planted import changed
        from harness.gate.arm_runs import best_of
        from model_file.gguf_file import open_gguf

        fault = known_faults()[int(self.known)]
        found: list[Step] = []
        with open_gguf(self.model) as file, Diagnoser(file, self.context) as diagnoser, changed(fault):
            sequence = diagnoser.planted(fault, len(ids))
            logits = sequence.feed(ids, 1)[-1]
            for _ in range(count):
                found.append((int(np.argmax(logits)), list(best_of(logits, TOP).items())))
                logits = sequence.feed([found[-1][0]], 1)[-1]
        return found


class Server:
    """Slots, their prompts, and the faults."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.lock, self.requests = given, threading.Lock(), 0
        self.faults = dict(part.partition("=")[::2] for part in given.lazy_fault.split(",") if part)
        self.slots: list[list[int]] = [[] for _ in range(given.parallel)]
        self.engine = Engine(given.model, given.ctx_size, "made-up" in self.faults, self.faults.get("known", ""))
        self.vocab = 0
        self.held = self._open_table()
        mark = self.engine.folder / f"started {given.lazy_fault}"
        self.started_before = "restart" in self.faults and mark.exists()
        mark.touch()
        if "leak" in self.faults:
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            print(f"leaked {child.pid}", flush=True)

    def _open_table(self) -> Any:
        """What the kernel sees: the whole file mapped and touched, or the table alone without read-ahead."""
        from fast.rows import locate_table
        from harness.oracle import HashOracle
        from model_file.config import config_from
        from model_file.gguf_file import open_gguf

        with open_gguf(self.given.model) as file:
            self.vocab, table, self.oracle = config_from(file).vocab, locate_table(file), HashOracle(file)
        self.table = table
        segment = table.segments[0]
        fd = os.open(segment.path, os.O_RDONLY)
        if self.given.lazy_mode == "on-direct":
            return fd, os.open(segment.path, os.O_RDONLY | os.O_DIRECT)
        whole = self.given.lazy_mode != "on"
        start = 0 if whole else segment.offset_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        size = os.fstat(fd).st_size if whole else segment.offset_bytes + table.size_bytes - start
        view = mmap.mmap(fd, size, prot=mmap.PROT_READ, offset=start)
        if not whole:
            view.madvise(mmap.MADV_RANDOM)
        if whole:
            view.madvise(mmap.MADV_WILLNEED)
            sum(view[:: mmap.PAGESIZE])
        return view, start

    def read_rows(self, ids: list[int]) -> None:
        """Touch the rows of these tokens through the mapping, as an engine would."""
        view, start = self.held
        for row in self.oracle.rows([token for token in ids if token < self.vocab]).reshape(-1).tolist():
            offset = self.table.place(row)[1]
            if isinstance(view, mmap.mmap):
                view[offset - start : offset - start + self.table.row_bytes]

    def choose(self, step: int, top: list[tuple[int, float]], slot: int, cached: int, seed: str) -> Step:
        if noise := float(self.faults.get("noise", 0)):
            draw = random.Random(f"{seed} {step}")
            top = sorted(((i, p + draw.uniform(-noise, noise)) for i, p in top), key=lambda pair: -pair[1])
        wrong = step == int(self.faults.get("id", -1))
        wrong |= step == 2 and self.requests >= int(self.faults.get("flaky", 1 << 30))
        wrong |= step == 2 and self.started_before
        wrong |= "slot" in self.faults and slot > 0 and step == 2
        wrong |= "stale" in self.faults and cached > 0 and step == 3
        chosen = top[1][0] if wrong else top[0][0]
        return 10**6 if "vocab" in self.faults and step == 1 else chosen, top

    def complete(self, ids: list[int], count: int, remember: bool, wanted: int) -> dict[str, Any]:
        with self.lock:
            self.requests += 1
            if self.requests == int(self.faults.get("die", 0)):
                print("about to die of a planted fault", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1e6 if self.requests == int(self.faults.get("hang", 0)) else float(self.faults.get("slow", 0)))
            shared = [_common(held, ids) for held in self.slots]
            slot = wanted if wanted >= 0 else shared.index(max(shared)) if remember else 0
            cached = max(0, min(shared[slot], len(ids) - 1) - BEHIND) if remember else 0
            cached = 0 if "forgets" in self.faults else cached
            steps: list[Step] = []
            while len(steps) < count:
                so_far = [*ids, *(token for token, _ in steps)]
                for token, top in self.engine.steps(so_far, count - len(steps)):
                    steps.append(self.choose(len(steps), top, slot, cached, str(ids)))
                    if steps[-1][0] != token:
                        break
                if steps[-1][0] >= self.vocab:  # nothing follows an id that is none
                    steps += [steps[-1]] * (count - len(steps))
            steps = steps[: -1 if "short" in self.faults else None]
            self.read_rows([*ids, *(token for token, _ in steps)])
            self.slots[slot] = [*ids, *(token for token, _ in steps)]
            sent = len(ids) - cached + int(self.faults.get("prompt_n", 0))
            return {"steps": steps, "cached": cached, "prompt_n": sent, "slot": slot}

    def slot_action(self, number: int, action: str, name: str) -> dict[str, Any]:
        path = Path(self.given.slot_save_path or ".") / name
        if action == "save":
            path.write_text(json.dumps(self.slots[number]))
        self.slots[number] = {"save": self.slots[number], "erase": []}.get(action) or (
            json.loads(path.read_text()) if action == "restore" else []
        )
        return {"id_slot": number, "filename": name, "n_restored": len(self.slots[number])}


def _common(left: list[int], right: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def text_of(token: int) -> str:
    return f" t{token}"


def native(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    done = server.complete(body["prompt"], body["n_predict"], body["cache_prompt"], body["id_slot"])
    tops = [[{"id": i, "logprob": p} for i, p in top[: body["n_probs"]]] for _, top in done["steps"]]
    timings = {"prompt_n": done["prompt_n"], "prompt_ms": 1.0, "predicted_ms": 1.0, "cache_n": done["cached"]}
    tokens = [token for token, _ in done["steps"]]
    answer = {"tokens": tokens, "content": "".join(map(text_of, tokens)), "timings": timings}
    return answer | ({"completion_probabilities": [{"top_logprobs": top} for top in tops]} if body["n_probs"] else {})


def openai(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    done = server.complete(body["prompt"], body["max_tokens"], body.get("cache_prompt", False), -1)
    tokens = [token for token, _ in done["steps"]]
    steps = [
        {"id": token, "top_logprobs": [{"id": i, "logprob": p} for i, p in top[: body["logprobs"]]]}
        for token, top in done["steps"]
    ]
    choice: dict[str, Any] = {"text": "".join(map(text_of, tokens))}
    if "text" not in server.faults:
        choice["logprobs"] = {"content": steps}
    details = {"cached_tokens": done["cached"]}
    usage = {"prompt_tokens": done["prompt_n"] + done["cached"], "completion_tokens": len(tokens)}
    return {"choices": [choice], "usage": usage | {"prompt_tokens_details": details}}


class Handler(BaseHTTPRequestHandler):
    server_of: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send({"data": [{"id": "stand-in"}]} if self.path == "/v1/models" else {"status": "ok"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.startswith("/slots/"):
            number, _, action = self.path.removeprefix("/slots/").partition("?action=")
            self._send(self.server_of.slot_action(int(number), action, body.get("filename", "")))
        elif self.path == "/tokenize":
            self._send({"tokens": [3 + byte % 50 for byte in body["content"].encode()]})
        else:
            self._send((native if self.path == "/completion" else openai)(self.server_of, body))

    def _send(self, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--version", action="version", version="version: stand-in 7 (build 42)")
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("-c", "--ctx-size", type=int, default=1024)
    parser.add_argument("-np", "--parallel", type=int, default=1)
    parser.add_argument("-lzm", "--lazy-mode", choices=("on", "off", "auto", "on-direct"), default="auto")
    parser.add_argument("-ctk", "--cache-type-k", choices=("f16", "f32"), default="f16")
    parser.add_argument("-ctv", "--cache-type-v", choices=("f16", "f32"), default="f16")
    parser.add_argument("-fa", "--flash-attn", choices=("on", "off", "auto"), default="auto")
    parser.add_argument("--slot-save-path", type=Path)
    parser.add_argument("--slow-start", type=float, default=0)
    parser.add_argument("--lazy-fault", default="")
    given = parser.parse_args()
    ctypes.CDLL(None)  # loaded before anything is planted
    alone = (Path(os.environ["PLEGATE_STAND_IN_CACHE"]) / "alone").open("w")
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit("stand-in: another one is running")
    print("stand-in: loading", flush=True)
    time.sleep(given.slow_start)
    Handler.server_of = Server(given)
    server = ThreadingHTTPServer((given.host, given.port), Handler)
    server.daemon_threads = True
    print("stand-in: listening", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
