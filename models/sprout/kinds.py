"""How a conversation of each kind is put together: scene, past turns, last question."""

from __future__ import annotations

from models.sprout.chat import Chat, Turn
from models.sprout.documents import document, prose
from models.sprout.turns import absent_turn, corrected_turn, recall_turn, told_turn

_INTROS = (
    "Here are some notes.", "Read this text.", "Please read this:", "Document:", "I have some notes for you:",
    "Here is a text.", "These are my notes:", "Keep this in mind:", "Here is what I know:", "Text:", "",
)  # fmt: skip
_READ = (
    "I have read it. What would you like to know?",
    "Thank you. What is your question?",
    "Ok, I have read your text. Ask me anything about it.",
    "Done. What do you want to know?",
    "I read it. Go ahead and ask.",
)


def set_facts(chat: Chat, room: int) -> None:
    """Puts facts worth about `room` tokens into the system prompt, a document or told turns."""
    rng = chat.rng
    roll = rng.random()
    if room < 20:
        return
    if roll < 0.2:
        chat.add_system(prose(chat, room, "system"))
        return
    if roll < 0.3:
        part = room // 2
        chat.add_system(prose(chat, part, "system"))
        room -= part
    text = document(chat, room)
    if not text:
        return
    intro = rng.choice(_INTROS)
    if room < 60:
        chat.add_pending(text)
        return
    chat.add_pending(f"{intro}\n{text}".strip())
    if rng.random() < 0.25:
        chat.say("", rng.choice(_READ))


def past_turns(chat: Chat, reserve: int) -> None:
    """Questions and answers while there is room."""
    rng = chat.rng
    num_fails = 0
    while chat.room > reserve + 36 and num_fails < 6:
        roll = rng.random()
        turn: Turn | None
        if roll < 0.72:
            turn = recall_turn(chat)
        elif roll < 0.84:
            turn = absent_turn(chat)
        elif roll < 0.94:
            turn = told_turn(chat)
        else:
            turn = corrected_turn(chat)
        if turn is None:
            num_fails += 1
            continue
        chat.say(turn.user, turn.answer)


def last_turn(chat: Chat, kind: str) -> Turn:
    """The question that the sample is for."""
    if kind == "absent":
        turn = absent_turn(chat)
        if turn is not None:
            return turn
    return recall_turn(chat) or told_turn(chat) or last_turn(chat, kind)


def compose(chat: Chat, kind: str, reserve: int) -> Turn:
    """Fills `chat` up to its last question, which is returned."""
    room = chat.target_len - reserve
    set_facts(chat, int(room * chat.rng.uniform(0.35, 0.9)))
    past_turns(chat, reserve)
    return last_turn(chat, kind)


# Kind → (share of the mixture, shortest length in tokens that it fits in).
KINDS: dict[str, tuple[float, int]] = {
    "recall": (0.8, 0),
    "absent": (0.2, 0),
}
