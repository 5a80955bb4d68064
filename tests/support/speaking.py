"""Clients that can be asked in some forms and not in others."""

from typing import Any

from tests.support.client import META, Client, Json
from tests.support.running import Server

FORMS: Json = {"elicitation": {"form": {}}}
URLS: Json = {"elicitation": {"url": {}}}
QUESTIONS: Json = {"_meta": {META: {"questions": True}}}
NOTHING: Json = {}


class Speaking(Client):
    """A client that declares these capabilities."""

    def __init__(self, server: Server, capabilities: Json, agent: str = "scripted") -> None:
        super().__init__(server, agent)
        self.capabilities = capabilities

    async def initialize(self, **params: Any) -> Json:
        return await super().initialize(clientCapabilities=self.capabilities, **params)
