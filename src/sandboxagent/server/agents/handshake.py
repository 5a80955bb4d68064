"""Define the server's own values in `initialize`, and represent an agent's answer."""

from msgspec import Raw, Struct

from sandboxagent.protocol.envelope import META, Object, at, object_at

HANDSHAKE_ID = b'"sandbox-agent-initialize"'
PROTOCOL_VERSION = 1
CLIENT_CAPABILITIES: Object = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "elicitation": {"form": {}, "url": {}},
    "plan": {},
    "_meta": {META: {"questions": True}},
}
NOT_OFFERED: Object = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}


class Handshake(Struct, frozen=True):
    """The answer of an agent to `initialize`."""

    result: Raw
    facts: Object

    @property
    def capabilities(self) -> Object:
        return object_at(self.facts, "agentCapabilities")

    def offers(self, *path: str) -> bool:
        """Whether the agent advertises a capability: `true`, or an object."""
        found = at(self.capabilities, *path)
        return found is not None and found is not False

    @property
    def resumes(self) -> bool:
        return self.offers("loadSession") or self.offers("sessionCapabilities", "resume")
