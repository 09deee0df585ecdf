"""Prompts as conversations: by the file's template, in a sandbox, its failures named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cases.chat import KEY, conversation
from harness.cli import app
from model_file.errors import InputError

TEMPLATE = """{%- for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""


def file_with(template: Any, **metadata: Any) -> Any:
    tokens = {"tokenizer.ggml.tokens": ["a", "<end>"], "tokenizer.ggml.eos_token_id": 1}
    return SimpleNamespace(paths=(Path("m.gguf"),), metadata={KEY: template, **tokens, **metadata})


def test_a_prompt_is_a_message_and_an_answer_begins() -> None:
    assert conversation(file_with(TEMPLATE), "Hi <b>") == "<|im_start|>user\nHi <b><|im_end|><|im_start|>assistant\n"
    both = conversation(file_with(TEMPLATE), "Hi", "Be brief.")
    assert both.startswith("<|im_start|>system\nBe brief.<|im_end|><|im_start|>user\nHi")


def test_templates_have_what_they_expect() -> None:
    assert conversation(file_with("{{ eos_token }}|{{ bos_token }}|{{ messages | tojson }}"), "\u00e9").startswith(
        "<end>||["
    )
    assert "\u00e9" in conversation(file_with("{{ messages | tojson }}"), "\u00e9")
    assert conversation(file_with("{{ strftime_now('%Y') }}"), "x").isdecimal()
    loop = "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}"
    assert conversation(file_with(loop), "second", "first") == "second"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "no tokenizer.chat_template in the metadata"),
        (7, "no tokenizer.chat_template in the metadata"),
        ("a\nb {% if %}", "line 2 of tokenizer.chat_template"),
        ("{{ raise_exception('only one message') }}", "only one message"),
        ("{{ missing.name }}", "'missing' is undefined"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable|cannot"),
    ],
)
def test_what_fails_is_named(template: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        conversation(file_with(template), "Hi")


def test_run_takes_both_options_together_only() -> None:
    for arguments in (["run", "--chat", "--tokens", "x.json"], ["run", "--prompt", "x", "--system", "y"]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2 and "give what is missing" in " ".join(result.output.split())
