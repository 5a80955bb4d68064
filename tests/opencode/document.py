"""The OpenAPI document of OpenCode's own server: what it says of answers and events, and whether ours are so."""

import re
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import Any
from urllib.parse import quote

import jsonschema_rs
import msgspec

from tests.agents.real import INSTALLED
from tests.agents.recipe_opencode import RECIPE
from tests.opencode.program import environment, program
from tests.support.running import BOUND

Json = dict[str, Any]
BAD_REQUEST = 400


class Document:
    """The document, with a validator for each of its schemas that is asked for."""

    def __init__(self, content: Json) -> None:
        self._content = content
        self._paths = [(re.compile(re.sub(r"{\w+}", "[^/]+", path)), path) for path in content["paths"]]
        self._validator = cache(self._make_validator)

    def operation(self, method: str, path: str) -> str | None:
        """The path of the operation as the document writes it; None for one that it does not have."""
        # One without parameters is meant where both would do.
        found = sorted((written for pattern, written in self._paths if pattern.fullmatch(path)), key=lambda p: "{" in p)
        return next((written for written in found if method.lower() in self._content["paths"][written]), None)

    def faults_of_answer(self, method: str, path: str, status: int, body: str) -> list[str]:
        """Why an answer is not one that the document allows."""
        written = self.operation(method, path)
        if written is None:
            return [f"the document has no {method} {path}"]
        if status == BAD_REQUEST:
            # The document has other shapes; this is the one that the program answers.
            return self._faults(("components", "schemas", "BadRequestError"), msgspec.json.decode(body))
        answers = self._content["paths"][written][method.lower()]["responses"]
        if str(status) not in answers:
            return [f"the document has no {status}, only {', '.join(answers)}"]
        content = answers[str(status)].get("content")
        if content is None:
            return [f"no body is expected: {body}"] if body else []
        pointer = ("paths", written, method.lower(), "responses", str(status), "content", "application/json", "schema")
        return self._faults(pointer, msgspec.json.decode(body))

    def faults_of_event(self, event: Json) -> list[str]:
        """Why an event of /event is not one that the document allows."""
        return self._faults_of_kind(event, event["type"], ("components", "schemas", "Event"))

    def faults_of_global_event(self, event: Json) -> list[str]:
        """Why an event of /global/event is not one that the document allows."""
        kind = event["payload"]["type"]
        # The stream begins with one of no directory, whatever the document says.
        frame = [] if "directory" in event or kind.startswith("server.") else ["it has no directory"]
        pointer = ("components", "schemas", "GlobalEvent", "properties", "payload")
        return frame + self._faults_of_kind(event["payload"], kind, pointer)

    def _faults_of_kind(self, event: Json, kind: str, pointer: tuple[str, ...]) -> list[str]:
        if kind in ("server.heartbeat", "sync"):
            # OpenCode itself sends them: the one is in no document, the other tells between its servers what is told.
            return []
        if kind == "message.part.updated":
            # A part knows its message; older clients look for it beside the part.
            properties = {name: value for name, value in event["properties"].items() if name != "messageID"}
            event = {**event, "properties": properties}
        for number, schema in enumerate(self._at(pointer)["anyOf"]):
            if kind in self._resolved(schema)["properties"]["type"]["enum"]:
                return self._faults((*pointer, "anyOf", str(number)), event)
        return [f"the document has no event {kind}"]

    def _at(self, pointer: tuple[str, ...]) -> Json:
        found: Any = self._content
        for part in pointer:
            found = found[int(part) if isinstance(found, list) else part]
        return found

    def _resolved(self, schema: Json) -> Json:
        return self._at(tuple(schema["$ref"].split("/")[1:])) if "$ref" in schema else schema

    def _faults(self, pointer: tuple[str, ...], value: object) -> list[str]:
        return [
            f"{list(error.instance_path)}: {error.message}" for error in self._validator(pointer).iter_errors(value)
        ]

    def _make_validator(self, pointer: tuple[str, ...]) -> jsonschema_rs.Validator:
        escaped = "/".join(quote(part.replace("~", "~0").replace("/", "~1")) for part in pointer)
        return jsonschema_rs.Draft202012Validator({**self._content, "$ref": f"#/{escaped}"})


@cache
def document() -> Document:
    """The document that the program itself writes; kept beside the programs, because that takes it seconds."""
    kept = INSTALLED.parent / "opencode" / f"document-{RECIPE.version}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory() as folder:
            home = Path(folder) / "home"
            command = [program(), "generate"]
            written = subprocess.run(
                command, env=environment(home), cwd=folder, capture_output=True, check=True, timeout=BOUND
            )
            fresh = Path(mkstemp(dir=kept.parent)[1])
            fresh.write_bytes(written.stdout)
            fresh.replace(kept)
    return Document(msgspec.json.decode(kept.read_bytes()))
