"""What a warm cache saves, shown on a small hybrid model that is made on the spot.

    python examples/demo.py            (or: make demo)

The model has the layers of Qwen3.5 (three DeltaNet, one attention) and random weights, so it
speaks nonsense; what counts are the columns. Nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import qwen3_5
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from keepwarm import Placement, PrefixCache, Session

# Thoughts are stripped from history, as Qwen3.5's own template does.
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""

SYSTEM = (
    "You keep the log of a lighthouse. " + "Write down what the keeper says, word by word. " * 20
)
TURNS = [
    "The lamp was lit at six, the wind is from the west.",
    "Two ships passed, the larger one without lights.",
    "Who keeps the watch tonight?",
    "The fog bell rang from nine to midnight.",
]


def main() -> None:
    tokenizer = make_tokenizer()
    model = make_model(len(tokenizer))
    cache = PrefixCache(model, placement=Placement(min_span=64, prefill_step=512))
    session = Session(model, tokenizer, cache=cache, system=SYSTEM)
    assert cache.layout is not None
    print(f"a hybrid with random weights; its layers are kept as {cache.layout.summary()}\n")
    print(f"{'turn':<28}{'prompt':>8}{'cached':>8}{'read':>6}{'first token':>14}  why")
    for text in TURNS:
        show(text, session)
    session.messages = session.messages[:3]  # back to the first answer
    show("(edited) One ship passed.", session)
    show("A second conversation.", Session(model, tokenizer, cache=cache, system=SYSTEM))
    held = cache.stats()
    print(f"\nheld: {held.rows_bytes:,} bytes of rows, {held.snapshot_bytes:,} of snapshots")


def show(text: str, session: Session) -> None:
    result = session.chat(text, max_tokens=24).result
    print(
        f"{text[:26]:<28}{result.prompt_tokens:>8}{result.cached_tokens:>8}"
        f"{result.prefilled_tokens:>6}{result.timings.first_token_s:>12.3f} s  {result.reason}"
    )


def make_tokenizer() -> TokenizerWrapper:
    """One token a byte, plus the template's markup."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens(["<|im_start|>", "<|im_end|>", "<think>", "</think>"])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|im_end|>")
    wrapped.chat_template = TEMPLATE
    return TokenizerWrapper(wrapped)


def make_model(vocab_size: int) -> Any:
    text_config = {
        "model_type": "qwen3_5_text",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "rms_norm_eps": 1e-6,
        "vocab_size": vocab_size,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }
    mx.random.seed(0)
    config = {"model_type": "qwen3_5", "text_config": text_config}
    model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
    mx.eval(model.parameters())
    return model


if __name__ == "__main__":
    main()
