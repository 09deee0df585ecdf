"""A prompt as a conversation, by the chat template that a file carries."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from model_file.errors import InputError

if TYPE_CHECKING:
    from model_file.gguf_file import GgufFile

KEY = "tokenizer.chat_template"


def conversation(file: GgufFile, text: str, system: str | None = None) -> str:
    """The text as a user's message, after a system's where there is one, and the beginning of an answer.

    The template is the file's and runs in a sandbox: it sees the messages, the names of the tokens that begin and end
    a text, and nothing else. Raises: InputError for a file without a template, and for one that fails, with its line.
    """
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    path, template = file.paths[0], file.metadata.get(KEY)
    if not isinstance(template, str):
        raise InputError(
            f"{path}: no {KEY} in the metadata, expected one for --chat: leave --chat out, or convert anew"
        )
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    messages = [{"role": "system", "content": system}] * (system is not None) + [{"role": "user", "content": text}]
    tokens = {f"{name}_token": _token(file, name) for name in ("bos", "eos")}
    try:
        compiled = environment.from_string(template)
        return compiled.render(messages=messages, add_generation_prompt=True, tools=None, **tokens)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        place = f"line {line} of {KEY}" if line else KEY
        raise InputError(
            f"{path}: {place}: {error}, expected a template for these messages: leave --chat out"
        ) from None


def _refuse(message: str) -> NoReturn:
    """What templates call to refuse messages."""
    from jinja2 import TemplateError

    raise TemplateError(message)


def _token(file: GgufFile, name: str) -> str:
    tokens: Any = file.metadata.get("tokenizer.ggml.tokens", [])
    number = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return str(tokens[number]) if isinstance(number, int) and 0 <= number < len(tokens) else ""
