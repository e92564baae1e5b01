"""mlx-lm's own server with keepwarm's prompt cache in the place of its own.

    python examples/mlx_lm_server.py --model mlx-community/Qwen3-0.6B-4bit --port 8080

Takes every flag that `mlx_lm.server` takes; docs/mlx-lm.md says what they mean here. Ask the
same thing twice, and look at `usage.prompt_tokens_details.cached_tokens` of the second answer:

    curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \
      -d '{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}'
"""

from __future__ import annotations

import mlx_lm.server

from keepwarm.compat.mlx_lm import LRUPromptCache


def main() -> None:
    # The server looks the name up when it starts, so this is all it takes.
    mlx_lm.server.LRUPromptCache = LRUPromptCache
    mlx_lm.server.main()


if __name__ == "__main__":
    main()
