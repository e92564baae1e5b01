"""Which of several answers a model finds likeliest, as evaluations ask it.

    python examples/choices.py

The question is read once: each answer is scored from there on.
"""

from __future__ import annotations

from keepwarm import Engine, load, render_chat

FACTS = "Anna lives in Lund. Bruno lives in Porto. Carla lives in Ghent."
TOWNS = ("Lund", "Porto", "Ghent")


def main() -> None:
    with Engine(load) as engine:
        for name in ("Anna", "Bruno", "Carla"):
            asked = {"role": "user", "content": f"{FACTS} Where does {name} live?"}
            settings = {"enable_thinking": False}
            prompt = render_chat(engine.tokenizer, [asked], template_kwargs=settings)
            question = prompt.tokens.tolist()
            prompts = [question + engine.tokenizer.encode(f"In {town}.") for town in TOWNS]
            scores = list(engine.score(prompts, start=len(question)))
            likeliest = max(zip(TOWNS, scores), key=lambda pair: pair[1].logprob)
            read = sum(score.prompt_tokens - score.cached_tokens for score in scores)
            print(
                f"{name}: {likeliest[0]} ({likeliest[1].logprob:.2f}),"
                f" {read} of {sum(score.prompt_tokens for score in scores)} tokens read"
            )


if __name__ == "__main__":
    main()
