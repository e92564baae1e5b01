"""Templates that do what a cache does not expect: each is small and shows one habit of real ones."""

from __future__ import annotations

import copy
import itertools
import pickle
from types import NoneType
from typing import Any

import jinja2
import pytest
from mlx_lm.chat_templates import deepseek_v32
from mlx_lm.tokenizer_utils import TokenizerWrapper

from keepwarm.prompt.boundaries import BoundaryKind
from keepwarm.prompt.endings import find_call_form
from keepwarm.prompt.markup import ALPHA
from keepwarm.prompt.messages import NULL, CallForm
from keepwarm.prompt.render import render_chat
from keepwarm.prompt.template import Template
from tests.prompt.conversations import (
    TOOLS,
    assistant,
    call,
    common_len,
    lasting,
    shown,
    system,
    tool,
    user,
)
from tests.prompt.test_encode import Slow
from tests.prompt.tokenizers_for_tests import EOS, make_sentencepiece, make_tokenizer, own

THINKING = ("<think>", "</think>")
DEEPSEEK_ENDS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")

MARKUP = (
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|tool|>",
    "<|end|>",
    "<|last|>",
    "<|return|>",
)

ALTERNATES = """\
{%- set prefix = messages[0].content + '\n\n' if messages[0].role == 'system' else '' -%}
{%- for m in (messages[1:] if prefix else messages) -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('Roles must alternate') -}}{%- endif -%}
{{- '<|' + m.role + '|>' + (prefix if loop.first else '') + m.content | trim + '<|end|>' -}}
{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""

WRAPS_THE_SYSTEM_TEXT = """\
{%- set rest = messages[1:] if messages[0].role == 'system' else messages -%}
{%- for m in rest -%}{{- '[INST] ' if m.role == 'user' -}}
{{- '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' if loop.first and rest != messages -}}
{{- m.content + (' [/INST] ' if m.role == 'user' else eos_token) -}}{%- endfor -%}"""

TOOLS_BEFORE_LAST_QUESTION = """\
{{- '[SYS]' + messages[0].content + '[/SYS]' if messages[0].role == 'system' -}}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}
{{- '[AVAILABLE]' + tools | tojson + '[/AVAILABLE]' if tools and m == users[-1] -}}
{{- '[INST]' + m.content + '[/INST]' -}}
{%- elif m.role == 'assistant' -%}{{- m.content + eos_token -}}{%- endif -%}{%- endfor -%}"""

ALWAYS_PROMPTS = """\
{%- for m in messages -%}{{- '<|' + m.role + '|>' + m.content + '<|end|>' -}}{%- endfor -%}
{{- '<|assistant|><think></think>' -}}"""

ENDS_UNPROMPTED_CHATS = """\
{%- for m in messages -%}{{- '<|' + m.role + '|>\n' + m.content + '<|end|>\n' -}}{%- endfor -%}
{{- '<|assistant|>\n' if add_generation_prompt else eos_token -}}"""

CLOSES_THE_LAST_OTHERWISE = """\
{%- for m in messages -%}{{- '<|' + m.role + '|>' + m.content -}}
{{- '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' -}}{%- endfor -%}
{{- '<|assistant|>' if add_generation_prompt -}}"""

LEAVES_THE_LAST_OPEN = """\
{%- for m in messages -%}{{- '<|' + m.role + '|>' + m.content -}}
{{- '<|end|>' if not loop.last -}}{%- endfor -%}
{{- '<|assistant|>' if add_generation_prompt and messages[-1].role != 'assistant' -}}"""

MARKS_THE_LAST = """\
{%- for m in messages -%}{{- '<|last|>' if loop.last -}}
{{- '<|' + m.role + '|>' + m.content + '<|end|>' -}}{%- endfor -%}
{{- '<|assistant|>' if add_generation_prompt -}}"""

COUNTS_MESSAGES = """\
{{- '<|system|>There are ' ~ messages | length ~ ' messages.<|end|>' -}}
{%- for m in messages -%}{{- '<|' + m.role + '|>' ~ loop.index ~ ': ' + m.content + '<|end|>' -}}
{%- endfor -%}{{- '<|assistant|>' if add_generation_prompt -}}"""

WRITES_NO_MARKUP = """\
{%- for m in messages -%}{{- m.role | upper + ': ' + m.content | upper + '\n' -}}{%- endfor -%}
{{- 'ASSISTANT:' if add_generation_prompt -}}"""

TRIMS_LINES_ONLY = """\
{%- for m in messages -%}{{- '<|' + m.role + '|>' + m.content.strip('\n') + '<|end|>' -}}
{%- endfor -%}{{- '<|assistant|>' if add_generation_prompt -}}"""

JOINS_ARGUMENT_TEXT = """\
{%- for m in messages -%}{{- '<|' + m.role + '|>' + (m.content or '') -}}
{%- for c in m.tool_calls or [] -%}{{- c.function.name + ' ' + c.function.arguments -}}{%- endfor -%}
{{- '<|end|>' -}}{%- endfor -%}{{- '<|assistant|>' if add_generation_prompt -}}"""

CALLS_WHERE_CONTENT_IS_NONE = """\
{%- for m in messages -%}{{- '<|' + m.role + '|>' -}}
{%- if m.content is none -%}{{- m.tool_calls | tojson -}}{%- else -%}{{- m.content -}}{%- endif -%}
{{- '<|end|>' -}}{%- endfor -%}{{- '<|assistant|>' if add_generation_prompt -}}"""

SWITCHED_BY_THE_USER = """\
{%- set ns = namespace(thinks=true) -%}
{%- for m in messages -%}{%- if '/no_think' in m.content -%}{%- set ns.thinks = false -%}
{%- endif -%}{{- '<|' + m.role + '|>' + m.content | replace('/no_think', '') | trim + '<|end|>' -}}
{%- endfor -%}
{{- '<|assistant|>' + ('<think>' if ns.thinks else '<think></think>') if add_generation_prompt -}}"""

ALL = {name: text for name, text in globals().items() if name.isupper() and "{%-" in str(text)}

CHAT = [user("Kestrel"), assistant("Plover"), user("Godwit")]


def make(template: str) -> Any:
    return make_tokenizer(template, extra_tokens=MARKUP)


def show(template: str, messages: list[dict[str, Any]], **arguments: Any) -> str:
    tokenizer = make(template)
    return shown(tokenizer, render_chat(tokenizer, messages, **arguments))


def test_roles_that_must_alternate_are_no_obstacle() -> None:
    assert show(ALTERNATES, CHAT) == (
        "<|user|>Kestrel<|end|>⟦M⟧<|assistant|>Plover<|end|>⟦M⟧<|user|>Godwit<|end|>⟦M⟧<|assistant|>⟦G⟧"
    )


def test_system_text_inside_the_first_question_ends_there() -> None:
    assert show(ALTERNATES, [system(), user("Kestrel")]) == (
        "<|user|>Be brief.\n\n⟦S⟧Kestrel<|end|>⟦M⟧<|assistant|>⟦G⟧"
    )


def test_system_text_ends_once_behind_what_wraps_it() -> None:
    assert show(WRAPS_THE_SYSTEM_TEXT, [system(), user("Kestrel")]) == (
        "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n⟦S⟧Kestrel [/INST] ⟦M⟧"
    )


def test_tools_that_move_with_the_last_question_end_a_first_turn_only() -> None:
    first = show(TOOLS_BEFORE_LAST_QUESTION, [system(), user("Kestrel")], tools=TOOLS)
    assert first.startswith("[SYS]Be brief.[/SYS]⟦S⟧[AVAILABLE]")
    assert first.endswith("[/AVAILABLE]⟦H⟧[INST]Kestrel[/INST]⟦M⟧")
    second = show(TOOLS_BEFORE_LAST_QUESTION, [system(), *CHAT], tools=TOOLS)
    assert second.startswith("[SYS]Be brief.[/SYS]⟦S⟧[INST]Kestrel[/INST]⟦M⟧Plover</s>⟦M⟧[AVAIL")
    assert second.count("⟦S⟧") == 1


def test_tools_that_move_are_the_system_part_of_a_first_turn_without_system_message() -> None:
    first = show(TOOLS_BEFORE_LAST_QUESTION, CHAT[:1], tools=TOOLS)
    assert first.endswith("[/AVAILABLE]⟦S⟧[INST]Kestrel[/INST]⟦M⟧")
    second = show(TOOLS_BEFORE_LAST_QUESTION, CHAT, tools=TOOLS)
    assert "⟦S⟧" not in second
    assert second.count("⟦M⟧") == 3


def test_generation_prompt_written_unasked_is_not_part_of_the_last_message() -> None:
    assert show(ALWAYS_PROMPTS, CHAT[:1]) == (
        "<|user|>Kestrel<|end|>⟦M⟧<|assistant|>⟦G⟧<think></think>"
    )


def test_end_of_text_in_an_unprompted_chat_is_not_part_of_the_last_message() -> None:
    tokenizer = make(ENDS_UNPROMPTED_CHATS)
    prompt = render_chat(tokenizer, CHAT[:1], add_generation_prompt=False)
    assert shown(tokenizer, prompt) == f"<|user|>\nKestrel<|end|>\n⟦M⟧{EOS}"
    assert show(ENDS_UNPROMPTED_CHATS, CHAT[:1]) == (
        "<|user|>\nKestrel<|end|>\n⟦M⟧<|assistant|>\n⟦G⟧"
    )


@pytest.mark.parametrize("template", [CLOSES_THE_LAST_OTHERWISE, LEAVES_THE_LAST_OPEN])
def test_answer_closed_differently_at_the_end_is_closed_as_in_the_past(template: str) -> None:
    assert "<|assistant|>Plover<|end|>⟦M⟧<|user|>" in show(template, CHAT)


def test_header_that_only_the_last_message_has_moves_no_boundary() -> None:
    assert show(MARKS_THE_LAST, CHAT) == (
        "<|user|>Kestrel<|end|>⟦M⟧<|assistant|>Plover<|end|>⟦M⟧"
        "<|last|><|user|>Godwit<|end|>⟦M⟧<|assistant|>⟦G⟧"
    )


def test_count_of_messages_is_no_system_part_of_a_longer_chat() -> None:
    text = show(COUNTS_MESSAGES, CHAT)
    assert "⟦S⟧" not in text
    assert text.count("⟦M⟧") == 3


def test_template_without_any_token_of_its_own_has_boundaries() -> None:
    assert show(WRITES_NO_MARKUP, [system("Be kind."), *CHAT]) == (
        "SYSTEM: BE KIND.\n⟦S⟧USER: KESTREL\n⟦M⟧ASSISTANT: PLOVER\n⟦M⟧USER: GODWIT\n⟦M⟧ASSISTANT:⟦G⟧"
    )


def test_white_space_trimmed_in_part_is_no_obstacle() -> None:
    assert show(TRIMS_LINES_ONLY, [user("Kestrel \t\n\n")]) == (
        "<|user|>Kestrel \t<|end|>⟦M⟧<|assistant|>⟦G⟧"
    )


def test_arguments_stay_text_for_templates_that_join_them() -> None:
    calling = assistant(None, tool_calls=[call(city="Paris")])
    calling["tool_calls"][0]["function"]["arguments"] = '{"city":"Paris"}'
    text = show(JOINS_ARGUMENT_TEXT, [user("Kestrel"), calling, tool("21")])
    assert '<|assistant|>get_weather {"city":"Paris"}<|end|>⟦M⟧<|tool|>' in text


@pytest.mark.parametrize("drops_none", [False, True])
def test_content_is_none_for_templates_that_ask_for_it(drops_none: bool) -> None:
    """Whether or not transformers takes what is None out of a message, as 5.23 began to do."""
    tokenizer = make(CALLS_WHERE_CONTENT_IS_NONE)
    compiled = jinja2.Template(CALLS_WHERE_CONTENT_IS_NONE)
    plain = (str, int, float, list, dict, NoneType)

    def apply(messages: list[dict[str, Any]], **given: Any) -> Any:
        if drops_none:
            messages = [{k: v for k, v in m.items() if v is not None} for m in messages]
            messages = [
                {k: v if isinstance(v, plain) else v.model_dump() for k, v in m.items()}
                for m in messages
            ]
        text = compiled.render(messages=messages, **given)
        return tokenizer.encode(text) if given["tokenize"] else text

    tokenizer.apply_chat_template = apply
    calling = assistant("", tool_calls=[call()])
    prompt = render_chat(tokenizer, [user("Kestrel"), calling, tool("21")])
    text = shown(tokenizer, prompt)
    assert "get_weather" in text
    assert text.count("⟦M⟧") == 3


def test_content_is_none_for_templates_that_ask_for_it_with_this_transformers() -> None:
    calling = assistant("", tool_calls=[call()])
    text = show(CALLS_WHERE_CONTENT_IS_NONE, [user("Kestrel"), calling, tool("21")])
    assert "get_weather" in text
    assert text.count("⟦M⟧") == 3


def test_stand_in_for_none_is_one_and_never_written() -> None:
    assert copy.deepcopy(NULL) is NULL
    assert pickle.loads(pickle.dumps(NULL)) is NULL  # noqa: S301 - its own
    tokenizer = make(CALLS_WHERE_CONTENT_IS_NONE)

    def apply(messages: list[dict[str, Any]], **given: Any) -> str:
        """Refuses a call without content, and writes whatever it is given."""
        if any("tool_calls" in m and m["content"] in ("", None) for m in messages):
            raise ValueError("content, please")
        return "".join(f"{m['content']}{m.get('tool_calls', '')}" for m in messages)

    tokenizer.apply_chat_template = apply
    assert find_call_form(Template(tokenizer)) == CallForm()


def test_switch_in_the_text_decides_on_the_tail_and_hides_no_boundary() -> None:
    assert show(SWITCHED_BY_THE_USER, [user("Kestrel /no_think"), *CHAT[1:]]) == (
        "<|user|>Kestrel<|end|>⟦M⟧<|assistant|>Plover<|end|>⟦M⟧<|user|>Godwit<|end|>⟦M⟧"
        "<|assistant|>⟦G⟧<think></think>"
    )


def test_made_up_words_never_reach_the_tokens() -> None:
    for template in ALL.values():
        text = show(template, CHAT)
        assert ALPHA not in text
        assert "0316425" not in text


@pytest.mark.parametrize("name", ALL)
def test_next_turn_finds_the_boundaries_of_the_last(name: str) -> None:
    tokenizer = make(ALL[name])
    turns = [CHAT[:1], CHAT, [*CHAT, assistant("Curlew"), user("Dunlin")]]
    prompts = [render_chat(tokenizer, turn) for turn in turns]
    for shorter, longer in itertools.pairwise(prompts):
        shared = common_len(shorter, longer)
        assert lasting(shorter, shared) == lasting(longer, shared)


@pytest.mark.parametrize("name", ["drops_thoughts", "never_writes_thoughts", "keeps_thoughts"])
def test_tokenizer_without_offsets_finds_the_same_boundaries(name: str) -> None:
    tokenizer = own(name)
    messages = [system(), *CHAT[:1], assistant("", tool_calls=[call()]), tool("21 degrees")]
    fast = render_chat(tokenizer, messages, tools=TOOLS)
    slow = render_chat(Slow(tokenizer), messages, tools=TOOLS)
    assert fast.boundaries == slow.boundaries
    assert fast.tokens.tolist() == slow.tokens.tolist()


@pytest.mark.parametrize("name", ["drops_thoughts", "never_writes_thoughts", "plain"])
def test_sentencepiece_tokenizer_has_boundaries_at_the_same_places(name: str) -> None:
    messages = [system(), *CHAT[:1], assistant("", tool_calls=[call()]), tool("21 degrees")]
    bytewise, piecewise = own(name), make_sentencepiece(own(name).chat_template)

    def chars(tokenizer: Any) -> list[int]:
        """Where boundaries lie in the text, by the tokenizer's own account."""
        prompt = render_chat(tokenizer, messages, tools=TOOLS)
        text = tokenizer.apply_chat_template(
            messages, tools=TOOLS, add_generation_prompt=True, tokenize=False
        )
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ends = [end for _, end in offsets["offset_mapping"]]
        return [ends[boundary.position - 1] for boundary in prompt.boundaries]

    assert chars(piecewise) == chars(bytewise)


def test_tokenizer_that_does_not_encode_its_text_gets_its_own_tokens() -> None:
    class Own(Slow):
        def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
            if kwargs["tokenize"]:
                return [1, 2, 3]
            return super().apply_chat_template(conversation, **kwargs)

    prompt = render_chat(Own(make(MARKS_THE_LAST)), CHAT)
    assert prompt.tokens.tolist() == [1, 2, 3]
    assert prompt.boundaries == ()


def test_renderer_written_in_python_has_boundaries() -> None:
    """mlx-lm brings one for DeepSeek V3.2, which thinks unless it is told not to."""
    inner = make_tokenizer(
        "", extra_tokens=("<｜User｜>", "<｜Assistant｜>", *THINKING, *DEEPSEEK_ENDS)
    )
    tokenizer = TokenizerWrapper(inner, chat_template=deepseek_v32.apply_chat_template)
    prompt = render_chat(tokenizer, [system(), *CHAT])
    assert shown(tokenizer, prompt) == (
        "<｜begin▁of▁sentence｜>Be brief.⟦S⟧<｜User｜>Kestrel⟦M⟧<｜Assistant｜></think>Plover"
        "<｜end▁of▁sentence｜>⟦M⟧<｜User｜>Godwit⟦M⟧<｜Assistant｜>⟦G⟧<think>"
    )
    assert prompt.tokens.tolist() == tokenizer.apply_chat_template(
        [system(), *CHAT], add_generation_prompt=True
    )


def test_wrapped_tokenizer_renders_as_it_does_by_itself() -> None:
    """The wrapper turns thinking on where the request says nothing."""
    tokenizer = TokenizerWrapper(own("drops_thoughts"))
    for kwargs in ({}, {"enable_thinking": False}):
        expected = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, **kwargs)
        prompt = render_chat(tokenizer, CHAT, template_kwargs=kwargs)
        assert prompt.tokens.tolist() == expected
        assert len(prompt.ends) == 3


def test_tokenizer_that_cannot_be_remembered_is_served() -> None:
    class Unhashable(Slow):
        __hash__ = None  # type: ignore[assignment]

    prompt = render_chat(Unhashable(make(MARKS_THE_LAST)), CHAT)
    assert len(prompt.ends) == 3


def test_known_template_renders_a_chat_twice_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the text, once with marks: what follows a message is remembered."""
    tokenizer = own("drops_thoughts")
    chat = [system(), *([user("Kestrel"), assistant("Plover")] * 50), user("Godwit")]
    render_chat(tokenizer, chat[:4])
    rendered: list[int] = []
    text = Template.text

    def counted(self: Template, messages: Any, *, add_generation_prompt: bool) -> str:
        rendered.append(len(messages))
        return text(self, messages, add_generation_prompt=add_generation_prompt)

    monkeypatch.setattr(Template, "text", counted)
    prompt = render_chat(tokenizer, chat)
    assert rendered == [len(chat)] * 2
    kinds = [end.kind for end in prompt.ends]
    assert kinds.count(BoundaryKind.USER) == 51
    assert kinds.count(BoundaryKind.MESSAGE) == 50


def test_template_changed_on_the_tokenizer_is_learned_anew() -> None:
    tokenizer = make(MARKS_THE_LAST)
    render_chat(tokenizer, CHAT)
    tokenizer.chat_template = MARKS_THE_LAST.replace("'<|end|>'", "'<|end|><|return|>'")
    assert shown(tokenizer, render_chat(tokenizer, CHAT)).count("<|end|><|return|>⟦M⟧") == 3


WITHOUT_CALLS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize("arguments", [{}, {"a": 1}, "{}", {"a": "b"}])
def test_call_whose_arguments_hold_no_text_may_come_last(arguments: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    last = {"role": "assistant", "tool_calls": [call]}
    prompt = render_chat(make_tokenizer(WITHOUT_CALLS), [user("w"), last])
    assert [b.kind for b in prompt.boundaries][-1] is BoundaryKind.GENERATION


def test_fault_in_finding_boundaries_leaves_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, messages = make_tokenizer(WITHOUT_CALLS), [user("w")]
    wanted = render_chat(tokenizer, messages).tokens.tolist()
    monkeypatch.setattr("keepwarm.prompt.render._Rendering._chars", lambda *_: 1 / 0)
    prompt = render_chat(tokenizer, messages)
    assert prompt.tokens.tolist() == wanted
    assert prompt.boundaries == ()
