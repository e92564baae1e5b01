"""What is rendered, and where the boundaries lie, with this repository's own templates: one for
each way in which chat templates treat thoughts."""

from __future__ import annotations

import copy
from datetime import datetime
from typing import Any

import pytest

from keepwarm.errors import BadInput, RenderError
from keepwarm.prompt.boundaries import BoundaryKind
from keepwarm.prompt.plain import render_text
from keepwarm.prompt.render import render_chat
from tests.prompt.conversations import (
    TOOLS,
    assistant,
    call,
    common_len,
    set_day,
    shown,
    system,
    tool,
    user,
)
from tests.prompt.tokenizers_for_tests import make_tokenizer, own

OWN = (
    "drops_thoughts",
    "never_writes_thoughts",
    "thinks_on_its_own",
    "keeps_thoughts",
    "plain",
)

LOOP = [
    user("Is it warm?"),
    assistant("", tool_calls=[call()], reasoning_content="I have to look."),
    tool("21 degrees"),
]


def show(name: str, messages: list[dict[str, Any]], **arguments: Any) -> str:
    return shown(own(name), render_chat(own(name), messages, **arguments))


class TestPlaces:
    def test_single_message_chat_has_its_boundary(self) -> None:
        assert show("drops_thoughts", [user("Hi")]) == (
            "<|im_start|>user\nHi<|im_end|>\n⟦M⟧<|im_start|>assistant\n⟦G⟧<think>\n"
        )

    def test_system_ends_behind_its_markup(self) -> None:
        assert show("drops_thoughts", [system(), user("Hi")]) == (
            "<|im_start|>system\nBe brief.<|im_end|>\n⟦S⟧"
            "<|im_start|>user\nHi<|im_end|>\n⟦M⟧<|im_start|>assistant\n⟦G⟧<think>\n"
        )

    @pytest.mark.parametrize("name", OWN)
    def test_tools_without_system_message_end_before_the_first_message(self, name: str) -> None:
        before, _, behind = show(name, [user("Hi")], tools=TOOLS).partition("⟦S⟧")
        assert "get_weather" in before
        assert "The time of day" in before
        assert "Hi" not in before
        assert behind.count("⟦M⟧") == 1

    def test_default_system_prompt_is_a_system_part(self) -> None:
        assert show("plain", [user("Hi")]) == (
            "<s>System: Answer the question.\n\n⟦S⟧User: Hi\n\n⟦M⟧Assistant:⟦G⟧"
        )

    def test_tokens_every_chat_begins_with_are_no_system_part(self) -> None:
        assert show("never_writes_thoughts", [user("Hi")]) == (
            "<s><｜User｜>Hi⟦M⟧<｜Assistant｜>⟦G⟧<think>\n"
        )

    def test_every_message_of_a_tool_loop_ends(self) -> None:
        text = show("drops_thoughts", LOOP)
        assert text == (
            "<|im_start|>user\nIs it warm?<|im_end|>\n⟦M⟧"
            "<|im_start|>assistant\n<think>\nI have to look.\n</think>\n\n\n<tool_call>\n"
            "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
            "</tool_call><|im_end|>\n⟦M⟧"
            "<|im_start|>user\n<tool_response>\n21 degrees\n</tool_response>⟦M⟧<|im_end|>\n⟦M⟧"
            "<|im_start|>assistant\n⟦G⟧<think>\n"
        )

    def test_result_that_another_result_follows_ends_before_the_block_does(self) -> None:
        calls = [call("call00001"), call("call00002", city="Rome")]
        results = [tool("21 degrees"), tool("25 degrees", "call00002")]
        text = show("plain", [user("Is it warm?"), assistant("", tool_calls=calls), *results])
        assert text.endswith("⟦M⟧[21 degrees⟦M⟧, 25 degrees⟦M⟧]\n\n⟦M⟧Assistant:⟦G⟧")

    def test_two_system_messages_both_end(self) -> None:
        text = show("keeps_thoughts", [system("One."), system("Two."), user("Hi")])
        assert text.startswith(
            "<|open|>system<|sep|>One.<|close|>system<|sep|>⟦M⟧"
            "<|open|>system<|sep|>Two.<|close|>system<|sep|>⟦S⟧<|open|>user"
        )

    def test_tools_that_come_first_end_before_the_system_message(self) -> None:
        """Applications with the same tools share them, whatever their system messages say."""
        text = show("keeps_thoughts", [system(), user("Hi")], tools=TOOLS)
        before, _, behind = text.partition("⟦H⟧")
        assert before.endswith("<|close|>tools<|sep|>")
        assert behind.startswith("<|open|>system<|sep|>⟦H⟧Be brief.<|close|>system<|sep|>⟦S⟧")

    @pytest.mark.parametrize("name", OWN)
    def test_last_message_ends_where_the_generation_prompt_begins(self, name: str) -> None:
        tokenizer = own(name)
        for messages in ([user("Hi")], LOOP, [*LOOP, assistant("Yes."), user("Good.")]):
            prompted = render_chat(tokenizer, messages)
            closed = render_chat(tokenizer, messages, add_generation_prompt=False)
            assert prompted.last_message_end == len(closed)
            assert all(b.kind is not BoundaryKind.GENERATION for b in closed.boundaries)

    def test_where_the_user_speaks_is_told_from_results(self) -> None:
        """Some clients send the results of tools as the user's messages."""
        as_users = user("<tool_response>\n21 degrees\n</tool_response>")
        for result in (tool("21 degrees"), as_users, user("21") | {"tool_call_id": "1"}):
            prompt = render_chat(own("drops_thoughts"), [*LOOP[:2], result, assistant("Yes.")])
            kinds = [end.kind for end in prompt.ends if end.kind is not BoundaryKind.SYSTEM]
            assert len(kinds) > 3
            assert set(kinds[1:]) == {BoundaryKind.MESSAGE}
            assert kinds[0] is BoundaryKind.USER


class TestThinking:
    def test_thinking_tail_depends_on_the_request(self) -> None:
        def tail(**kwargs: Any) -> str:
            return show("drops_thoughts", [user("Hi")], template_kwargs=kwargs).split("⟦G⟧")[1]

        assert tail() == "<think>\n"
        assert tail(enable_thinking=True) == "<think>\n"
        assert tail(enable_thinking=False) == "<think>\n\n</think>\n\n"

    def test_generation_prompt_without_tail_ends_the_prompt(self) -> None:
        prompt = render_chat(own("thinks_on_its_own"), [user("Hi")])
        assert prompt.boundaries[-1].kind is BoundaryKind.GENERATION
        assert prompt.boundaries[-1].position == len(prompt)

    def test_tail_begins_with_its_tag_even_where_the_past_keeps_thoughts(self) -> None:
        text = show("keeps_thoughts", [user("Hi")])
        assert text.endswith("⟦M⟧<|open|>assistant<|sep|>⟦G⟧<think>")

    def test_tail_begins_where_the_past_is_written_differently(self) -> None:
        """Without a tag to go by, as in models that begin with `Here is my reasoning:`."""
        template = (
            "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>Here are my steps:\n{% endif %}"
        )
        tokenizer = make_tokenizer(template, extra_tokens=("<|user|>", "<|assistant|>"))
        text = shown(tokenizer, render_chat(tokenizer, [user("Hi")]))
        assert text == "<|user|>Hi<|end|>⟦M⟧<|assistant|>⟦G⟧Here are my steps:\n"

    def test_thought_stays_in_a_tool_loop_and_goes_with_the_next_question(self) -> None:
        tokenizer = own("drops_thoughts")
        looping = render_chat(tokenizer, LOOP)
        asked = render_chat(tokenizer, [*LOOP, assistant("Yes."), user("Good.")])
        assert "I have to look." in shown(tokenizer, looping)
        assert "I have to look." not in shown(tokenizer, asked)
        # Up to the thought, the loop's boundaries are the next turn's.
        first_end = looping.boundaries[0].position
        assert asked.boundaries[0].position == first_end <= common_len(looping, asked)

    @pytest.mark.parametrize("name", OWN)
    def test_echoed_and_dropped_reasoning_share_the_last_message_before_it(self, name: str) -> None:
        tokenizer = own(name)
        asked = render_chat(tokenizer, [user("Hi")])
        for reply in (assistant("Hello.", reasoning_content="A greeting."), assistant("Hello.")):
            again = render_chat(tokenizer, [user("Hi"), reply, user("Bye")])
            assert asked.last_message_end is not None
            assert asked.last_message_end <= common_len(asked, again)

    def test_reasoning_is_rendered_under_its_other_name(self) -> None:
        for name in ("reasoning", "reasoning_content", "thinking"):
            text = show(
                "keeps_thoughts", [user("Hi"), assistant("Hello.", **{name: "A greeting."})]
            )
            assert "<think>A greeting.</think>Hello." in text


class TestTokens:
    @pytest.mark.parametrize("name", OWN)
    def test_tokens_are_those_of_apply_chat_template(self, name: str) -> None:
        tokenizer = own(name)
        messages = [system(), *LOOP, assistant("Yes."), user("Good. 👩‍👩‍👧 é")]
        for prompted in (True, False):
            expected = tokenizer.apply_chat_template(
                messages, tools=TOOLS, add_generation_prompt=prompted, return_dict=False
            )
            prompt = render_chat(tokenizer, messages, tools=TOOLS, add_generation_prompt=prompted)
            assert prompt.tokens.tolist() == expected

    def test_content_in_parts_is_one_text(self) -> None:
        parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
        assert show("plain", [user(parts)]) == show("plain", [user("Hello")])

    @pytest.mark.parametrize("arguments", ['{"city": "Paris"}', {"city": "Paris"}])
    def test_arguments_may_be_json_text(self, arguments: object) -> None:
        calling = assistant(None, tool_calls=[call()])
        calling["tool_calls"][0]["function"]["arguments"] = arguments
        text = show("never_writes_thoughts", [user("Hi"), calling, tool("21")])
        assert '<｜call｜>get_weather\n{"city": "Paris"}</s>⟦M⟧' in text

    def test_messages_are_not_changed(self) -> None:
        messages = [system(), *copy.deepcopy(LOOP), assistant("Yes.", reasoning="x"), user("Ok")]
        messages[2]["tool_calls"][0]["function"]["arguments"] = '{"city": "Paris"}'
        before, tools_before = copy.deepcopy(messages), copy.deepcopy(TOOLS)
        render_chat(own("drops_thoughts"), messages, tools=TOOLS)
        assert messages == before
        assert tools_before == TOOLS

    @pytest.mark.parametrize(
        "content",
        [
            " space before",
            "space behind ",
            "lines behind\n\n",
            "\n\nlines before",
            "<|im_end|>\n<|im_start|>assistant\n",
            "<think>typed</think>",
            "👩‍👩‍👧",
            "日本語",
            "0",
        ],
    )
    @pytest.mark.parametrize("name", OWN)
    def test_odd_content_keeps_its_boundaries(self, name: str, content: str) -> None:
        text = show(name, [user(content), assistant("Hm."), user(content)])
        usual = show(name, [user("Hi"), assistant("Hm."), user("Hi")])
        assert text.count("⟦M⟧") == usual.count("⟦M⟧") == 3
        assert text.endswith(usual[usual.rindex("⟦M⟧") :])

    def test_empty_content_keeps_its_boundary(self) -> None:
        assert show("keeps_thoughts", [user(""), assistant(""), user("")]).count("⟦M⟧") == 3


class TestRefusal:
    def test_template_that_refuses_is_quoted(self) -> None:
        with pytest.raises(RenderError, match=r"No user query found in messages\."):
            render_chat(own("drops_thoughts"), [assistant("Hello.")])

    def test_template_that_breaks_is_a_refusal(self) -> None:
        tokenizer = make_tokenizer("{{ messages[7].content }}{{ 1 // 0 }}")
        with pytest.raises(RenderError):
            render_chat(tokenizer, [user("Hi")])

    def test_template_that_refuses_shorter_chats_still_gives_boundaries(self) -> None:
        """The first message alone would be refused, so it cannot be rendered as a prefix."""
        text = show("drops_thoughts", [system(), assistant("Welcome."), user("Hi")])
        assert text.count("⟦M⟧") == 2

    def test_tokenizer_without_template_is_a_refusal(self) -> None:
        with pytest.raises(RenderError, match="template"):
            render_chat(make_tokenizer(None), [user("Hi")])

    def test_half_a_character_is_bad_input(self) -> None:
        """An emoji that a client cut in two arrives as a lone surrogate."""
        with pytest.raises(BadInput, match="half of a character"):
            render_chat(own("plain"), [user("Hi \ud83d")])
        with pytest.raises(BadInput, match="half of a character"):
            render_text(own("plain"), "Hi \ud83d")

    @pytest.mark.parametrize("reserved", ["tokenize", "messages", "chat_template", "tools"])
    def test_template_arguments_cannot_take_over_the_rendering(self, reserved: str) -> None:
        with pytest.raises(BadInput, match=reserved):
            render_chat(own("plain"), [user("Hi")], template_kwargs={reserved: "x"})


class TestTime:
    def test_clock_that_moves_on_between_renderings_breaks_no_proof(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The date changes right after the first rendering, as at midnight."""
        template = own("thinks_on_its_own").chat_template + "{# its own environment #}"
        tokenizer = make_tokenizer(template)
        days = iter([datetime(2030, 1, 1)])

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return next(days, datetime(2030, 1, 2))

        monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Clock)
        text = shown(tokenizer, render_chat(tokenizer, [user("Hi")]))
        assert text == (
            "<|start|>system<|message|>You are a model. Today is 2030-01-02.<|end|>⟦S⟧"
            "<|start|>user<|message|>Hi<|end|>⟦M⟧<|start|>assistant⟦G⟧"
        )

    def test_yesterdays_date_is_not_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        template = own("thinks_on_its_own").chat_template + "{# another environment #}"
        tokenizer = make_tokenizer(template)
        for day in (1, 2):
            set_day(monkeypatch, day)
            text = shown(tokenizer, render_chat(tokenizer, [user("Hi")]))
            assert f"Today is 2030-01-0{day}.<|end|>⟦S⟧" in text

    def test_template_that_writes_the_microsecond_gives_no_unproven_boundary(self) -> None:
        template = (
            "<|im_start|>system\n{{ strftime_now('%H:%M:%S.%f') }}<|im_end|>\n"
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )
        tokenizer = make_tokenizer(template)
        prompt = render_chat(tokenizer, [user("Hi"), assistant("Hello."), user("Bye")])
        assert {b.kind for b in prompt.boundaries} <= {BoundaryKind.GENERATION}
