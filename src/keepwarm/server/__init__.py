"""The OpenAI-compatible server: HTTP in, plain requests to the engine, events out. It touches no
array and no cache; one event loop owns all of it."""
