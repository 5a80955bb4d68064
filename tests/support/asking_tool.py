"""An MCP server on stdio with one tool, `ask`, that asks the user which database to take and repeats the answer.

A program of its own: agents start it.
"""

import json
import sys

QUESTION = {
    "message": "Which database?",
    "requestedSchema": {
        "type": "object",
        "properties": {"db": {"type": "string", "title": "Database", "enum": ["SQLite", "Postgres"]}},
        "required": ["db"],
    },
}
TOOL = {"name": "ask", "description": "Asks the user.", "inputSchema": {"type": "object"}}


def send(**envelope: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", **envelope}), flush=True)


def main() -> None:
    asked = None
    for line in sys.stdin:
        match json.loads(line):
            case {"id": id, "method": "initialize", "params": {"protocolVersion": version}}:
                about = {"name": "asker", "version": "1"}
                send(id=id, result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about})
            case {"id": id, "method": "tools/list"}:
                send(id=id, result={"tools": [TOOL]})
            case {"id": id, "method": "tools/call"}:
                asked = id
                send(id="question", method="elicitation/create", params=QUESTION)
            case {"id": "question", **answer}:
                text = f"The user said {json.dumps(answer.get('result'))}"
                send(id=asked, result={"content": [{"type": "text", "text": text}]})
            case {"id": id, "method": _}:
                send(id=id, error={"code": -32601, "message": "not known here"})
            case _:
                pass


if __name__ == "__main__":
    main()
