"""The APIs that clients speak, each an adapter: it reads a body into `server/asked.py` and writes an
answer from `server/exchange.py`. None of them knows the model."""
