"""What Codex has to know of a model, in the form of its own catalogue: without it, it assumes a
window of 272,000 tokens and leaves apply_patch out. Plain data; any thread.

The fields are those that version 0.169.0 reads (`codex debug models`); further ones have defaults.
"""

from __future__ import annotations

from typing import Any

# What stays free for a reply, and for the summary that lets a long session go on.
_COMPACTED_SHARE = 0.8
_OUTPUT_TOKENS = 10_000

_INSTRUCTIONS = """\
You are a coding agent in a terminal, and you work in the user's project with the tools you are given.

- Look before you change: read the files that matter, and search instead of guessing.
- Run commands with exec_command. Keep their output short.
- Edit files with apply_patch and nothing else. Its input is a patch as text:

*** Begin Patch
*** Update File: path/to/file.py
@@ def greet():
-    print("Hi")
+    print("Hello")
*** End Patch

  Lines that stay begin with a blank, three of them around each change. `*** Add File: path` adds a file, each of its
  lines begins with +; `*** Delete File: path` deletes one. Paths are relative.
- After a change, run what shows that it works. Do what was asked and no more.
- When you are done, say in a few sentences what you did.
"""


def card(model: str, context_len: int | None) -> dict[str, Any]:
    """One model of the catalogue."""
    about: dict[str, Any] = {
        "slug": model,
        "display_name": model,
        "description": "Served by keepwarm",
        "supported_reasoning_levels": [
            {"effort": effort, "description": f"Thinks {words}, where its template can tell it to"}
            for effort, words in (("low", "little"), ("medium", "some"), ("high", "much"))
        ],
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 1,
        "base_instructions": _INSTRUCTIONS,
        "supports_reasoning_summaries": True,
        "default_reasoning_summary": "auto",
        "support_verbosity": False,
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "tokens", "limit": _OUTPUT_TOKENS},
        "supports_parallel_tool_calls": True,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
    }
    if context_len is not None:
        about |= {
            "context_window": context_len,
            "auto_compact_token_limit": int(context_len * _COMPACTED_SHARE),
        }
    return about
