"""OpenAI's Responses API, which Codex and most SDKs speak by default."""
