"""Every chat template of the shared folder, in every kind of conversation: the boundaries stand
where messages end, and the next turn can reuse what the template leaves as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from keepwarm.errors import RenderError
from keepwarm.prompt.boundaries import BoundaryKind, Prompt
from keepwarm.prompt.render import render_chat
from tests.prompt.conversations import (
    TOOLS,
    assistant,
    call,
    common_len,
    lasting,
    system,
    tool,
    user,
)
from tests.prompt.test_render_laws import (
    ANY_TEXT,
    GIVEN_TOOLS,
    check_boundaries,
    check_growth,
    steps,
)
from tests.prompt.tokenizers_for_tests import SHARED_TEMPLATES, shared

NAMES = sorted(path.stem for path in SHARED_TEMPLATES.glob("*.jinja"))

pytestmark = pytest.mark.skipif(not NAMES, reason="the shared templates are not here")

Messages = list[dict[str, Any]]

# Words that occur once: the test finds the messages by them without asking the code under test.
LOOP: Messages = [
    user("Kestrel"),
    assistant("", tool_calls=[call(city="Plover")], reasoning_content="Avocet"),
    tool("Godwit"),
]
TEN_TURNS: Messages = [
    message
    for i in range(9)
    for message in (user(f"Knot{i} asks"), assistant(f"Ruff{i} answers", reasoning_content="Hm"))
] + [user("Knot9 asks")]

# What is asked, what comes back and what is asked next.
SCENARIOS: dict[str, tuple[Messages, Messages]] = {
    "plain": (
        [user("Kestrel"), assistant("Plover"), user("Godwit")],
        [assistant("Curlew"), user("Dunlin")],
    ),
    "system": ([system("Whimbrel."), user("Kestrel")], [assistant("Plover"), user("Godwit")]),
    "tools": ([user("Kestrel")], [assistant("Plover"), user("Godwit")]),
    "tool loop": (LOOP, [assistant("Curlew", reasoning_content="Turnstone"), user("Dunlin")]),
    "loop goes on": (
        LOOP,
        [assistant("", tool_calls=[call("call00002", city="Curlew")]), tool("Dunlin", "call00002")],
    ),
    "thought echoed": (
        [user("Kestrel")],
        [assistant("Plover", reasoning_content="Avocet"), user("Godwit")],
    ),
    "thought lost": ([user("Kestrel")], [assistant("Plover"), user("Godwit")]),
    "single": ([user("Kestrel")], [assistant("Plover"), user("Godwit")]),
    "ten turns": (TEN_TURNS, [assistant("Ruff9 answers"), user("Dunlin")]),
}
WITH_TOOLS = ("tools", "tool loop", "loop goes on")
LOOPS = ("tool loop", "loop goes on")

NEEDS = {
    "fireworks-ai-llama-3-firefunction-v2": {"functions": "x", "datetime": "y"},
}

SANDBOX = "appends to a list, which the sandbox forbids"

# (template, scenario) → why it refuses.
REFUSES = {
    ("Kimi-K2-Instruct", "tool loop"): SANDBOX,
    ("Kimi-K2-Instruct", "loop goes on"): SANDBOX,
    ("Kimi-K2-Thinking", "tool loop"): SANDBOX,
    ("Kimi-K2-Thinking", "loop goes on"): SANDBOX,
    ("google-gemma-2-2b-it", "system"): "knows no system role",
    ("google-gemma-2-2b-it", "tool loop"): "knows no tool role",
    ("google-gemma-2-2b-it", "loop goes on"): "knows no tool role",
}

# (template, what) → why it is not in the prompt, so that no boundary can be where it ends.
UNWRITTEN = {
    ("LFM2-8B-A1B", "call"): "writes an assistant's content only",
    ("ibm-granite-granite-3.3-2B-Instruct", "call"): "writes an assistant's content only",
    ("llama-cpp-rwkv-world", "call"): "knows no tools",
    ("llama-cpp-rwkv-world", "tool"): "knows no tools",
    ("microsoft-Phi-3.5-mini-instruct", "call"): "knows no tools",
    ("microsoft-Phi-3.5-mini-instruct", "tool"): "knows no tools",
}

# (template, role) → why some of these messages have no boundary although they are written.
DROPPED: dict[tuple[str, str], str] = {}

LOOP_ENDS = "the thoughts of a tool loop are dropped when a question follows"
TOOLS_MOVE = "tools move with the last question"

# (template, scenario) → why the past changes before the end of the last message.
REWRITES = {
    ("GLM-4.6", "tool loop"): LOOP_ENDS,
    ("GLM-4.7-Flash", "tool loop"): LOOP_ENDS,
    ("LFM2.5-8B-A1B", "tool loop"): LOOP_ENDS,
    ("MiniMax-M2", "tool loop"): LOOP_ENDS,
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "tool loop"): LOOP_ENDS,
    ("Qwen-Qwen3-0.6B", "tool loop"): LOOP_ENDS,
    ("Qwen3.5-4B", "tool loop"): LOOP_ENDS,
    ("StepFun3.5-Flash", "tool loop"): LOOP_ENDS,
    ("google-gemma-4-31B-it-interleaved", "tool loop"): LOOP_ENDS,
    ("openai-gpt-oss-120b", "tool loop"): LOOP_ENDS,
    ("openbmb-MiniCPM5-1B", "tool loop"): LOOP_ENDS,
    ("Mistral-Small-3.2-24B-Instruct-2506", "tools"): TOOLS_MOVE,
    ("Mistral-Small-3.2-24B-Instruct-2506", "tool loop"): TOOLS_MOVE,
    ("mistralai-Mistral-Nemo-Instruct-2407", "tools"): TOOLS_MOVE,
    ("mistralai-Mistral-Nemo-Instruct-2407", "tool loop"): TOOLS_MOVE,
    ("mistralai-Mistral-Nemo-Instruct-2407", "system"): "the system text moves as well",
    (
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "loop goes on",
    ): "results are closed before an answer, not before another call",
}

# What a message may begin with before its own text: that much may be shared behind a boundary.
MAX_HEADER_LEN = 6

# The behaviour that the folder's README lists: is turn 1 with its generation prompt a prefix of
# turn 2, where the thought was sent back?
IS_PREFIX = {
    "Qwen3.5-4B": False,
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": False,
    "StepFun3.5-Flash": False,
    "MiniMax-M2": False,
    "GLM-4.7-Flash": False,
    "NVIDIA-Nemotron-Nano-v2": False,
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": False,
    "google-gemma-4-31B-it-interleaved": False,
    "Qwen-Qwen3-0.6B": True,
    "openai-gpt-oss-120b": True,
    "GLM-4.6": True,
    "LFM2.5-8B-A1B": True,
    "openbmb-MiniCPM5-1B": True,
    "tencent-Hy3": True,
    "Kimi-K3": True,
    "ibm-granite-granite-4.0": True,
    "ibm-granite-granite-4.1": True,
    "LFM2-8B-A1B": True,
    "deepseek-ai-DeepSeek-V3.1": True,
    "deepseek-ai-DeepSeek-V4-Flash-0731": True,
    "Qwen3-Coder": True,
}


def tools_for(name: str, scenario: str) -> Any:
    # Hermes' template loops over the tools without asking whether there are any.
    return TOOLS if scenario in WITH_TOOLS or "Hermes" in name else None


def render(name: str, scenario: str, messages: Messages) -> Prompt:
    if (name, scenario) in REFUSES:
        with pytest.raises(RenderError):
            render_chat(shared(name), messages, tools=tools_for(name, scenario))
        pytest.skip(REFUSES[name, scenario])
    return render_chat(
        shared(name),
        messages,
        tools=tools_for(name, scenario),
        template_kwargs=NEEDS.get(name, {}),
    )


def word(message: dict[str, Any]) -> str:
    """The last word of a message that occurs nowhere else."""
    calls = message.get("tool_calls")
    return str(calls[-1]["function"]["arguments"]["city"] if calls else message["content"])


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", NAMES)
def test_every_written_message_ends_at_a_boundary(name: str, scenario: str) -> None:
    asked, added = SCENARIOS[scenario]
    messages = [*asked, *added]
    prompt = render(name, scenario, messages)
    tokenizer = shared(name)
    check_boundaries(tokenizer, prompt)
    text = tokenizer.decode(prompt.tokens)
    ends = {
        len(tokenizer.decode(prompt.tokens[: b.position])) for b in lasting(prompt, len(prompt))
    }
    spoken = [m for m in messages if m["role"] != "system"]
    for message, following in zip(spoken, [*spoken[1:], None]):
        what = "call" if "tool_calls" in message else message["role"]
        if word(message) not in text:
            assert (name, what) in UNWRITTEN
            continue
        assert (name, what) not in UNWRITTEN
        end = text.index(word(message)) + len(word(message))
        limit = text.find(word(following)) if following is not None else len(text)
        found = any(end <= place <= (limit if limit >= 0 else len(text)) for place in ends)
        assert found != ((name, what) in DROPPED)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_apply_chat_template(name: str, scenario: str) -> None:
    messages = SCENARIOS[scenario][0]
    if scenario in LOOPS and name in ("meetkai-functionary-medium-v3.2",):
        pytest.skip("joins arguments as text, which the loop's are not")
    if scenario in LOOPS and name == "deepseek-ai-DeepSeek-R1-Distill-Llama-8B":
        pytest.skip("writes calls only where the content is none")
    prompt = render(name, scenario, messages)
    expected = shared(name).apply_chat_template(
        messages,
        tools=tools_for(name, scenario),
        add_generation_prompt=True,
        return_dict=False,
        **NEEDS.get(name, {}),
    )
    assert prompt.tokens.tolist() == expected


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", NAMES)
def test_next_turn_reuses_all_that_the_template_leaves(name: str, scenario: str) -> None:
    asked, added = SCENARIOS[scenario]
    first, second = render(name, scenario, asked), render(name, scenario, [*asked, *added])
    kept = common_len(first, second)
    assert lasting(first, kept) == lasting(second, kept)
    reusable = max((b.position for b in lasting(first, kept)), default=0)
    if (name, scenario) in REWRITES:
        assert first.last_message_end is not None
        assert first.last_message_end > kept
        assert kept - reusable <= MAX_HEADER_LEN
    else:
        # Where the last message of the first turn ends, before the generation prompt.
        assert reusable == first.last_message_end


@pytest.mark.parametrize("name", NAMES)
def test_generation_boundary_lies_within_what_the_next_turn_keeps(name: str) -> None:
    asked, added = SCENARIOS["single"]
    first, second = render(name, "single", asked), render(name, "single", [*asked, *added])
    ends = [b.position for b in first.boundaries if b.kind is BoundaryKind.GENERATION]
    assert all(end <= common_len(first, second) for end in ends)


@pytest.mark.parametrize("name", sorted(set(IS_PREFIX) & set(NAMES)))
def test_templates_behave_as_listed(name: str) -> None:
    asked, added = SCENARIOS["thought echoed"]
    first, second = (
        render(name, "thought echoed", asked),
        render(name, "thought echoed", [*asked, *added]),
    )
    assert (common_len(first, second) == len(first)) == IS_PREFIX[name]


@pytest.mark.parametrize("name", NAMES)
def test_users_of_one_application_share_its_system_part(name: str) -> None:
    scenario = "tools" if (name, "system") in REFUSES else "system"
    opening = [] if scenario == "tools" else [system("Whimbrel.")]
    one = render(name, scenario, [*opening, user("Kestrel")])
    other = render(name, scenario, [*opening, user("Sanderling, and more")])
    parts = [b for b in one.boundaries if b.kind is BoundaryKind.SYSTEM]
    assert parts == [b for b in other.boundaries if b.kind is BoundaryKind.SYSTEM]
    assert all(b.position <= common_len(one, other) for b in parts)
    if opening:
        assert "Whimbrel." in shared(name).decode(one.tokens[: parts[-1].position])


@pytest.mark.stress
@pytest.mark.parametrize("name", NAMES)
@given(grown=steps(ANY_TEXT), tools=GIVEN_TOOLS)
def test_longer_conversation_has_the_boundaries_of_a_shorter_one(
    name: str, grown: list[Messages], tools: Any
) -> None:
    check_growth(shared(name), grown, tools)
