"""An MCP server of one tool, over stdin and stdout."""

from __future__ import annotations

import json
import sys
from typing import Any

TOOL = {
    "name": "look",
    "description": "Looks up a word.",
    "inputSchema": {"type": "object", "properties": {"word": {"type": "string"}}},
}


def answer(asked: dict[str, Any]) -> Any:
    match asked["method"]:
        case "initialize":
            version = asked["params"]["protocolVersion"]
            about = {"name": "words", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            word = asked["params"]["arguments"].get("word")
            return {"content": [{"type": "text", "text": f"{word} means a small bird."}]}
    return {}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        told = {"jsonrpc": "2.0", "id": asked["id"], "result": answer(asked)}
        print(json.dumps(told), flush=True)
