"""Add OpenCode's API to a server, and make the app at the first call of one of OpenCode's programs."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandboxagent.adapters.opencode.paths import ACCESS
from sandboxagent.protocol import methods
from sandboxagent.server.agents.environment import allowed_environment
from sandboxagent.server.capability import Capability, ServerCore
from sandboxagent.server.http.asgi import App as Asgi

if TYPE_CHECKING:
    from sandboxagent.adapters.opencode.app import OpenCodeBridge


class OpenCodeApi(Capability):
    """OpenCode's API below `/opencode`. `app.py` makes its parts."""

    name = "opencode"
    access = ACCESS

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self._bridge: OpenCodeBridge | None = None

    def app(self) -> Asgi:
        from sandboxagent.adapters.opencode.app import BridgeLimits, make_bridge
        from sandboxagent.adapters.opencode.file_routes import HostFiles

        core, settings = self._core, self._core.settings
        limits = BridgeLimits(settings.max_body, settings.stream_buffer, settings.opencode_memory)
        self._bridge = make_bridge(
            *(core.hub, core.requests, core.agent_views, core.terminals),
            HostFiles(core.roots, core.searches, core.pools.files),
            core.policy_check,
            allowed_environment(os.environ, ()),
            settings.default_agent,
            limits,
            shell=settings.opencode_shell == "on",
        )
        return self._bridge.app

    def notifications(self) -> Sequence[str]:
        return (methods.SHELL,)

    def reserves_name(self, name: str) -> bool:
        """Return whether OpenCode's programs use a name for a session or a draft."""
        if not name.startswith("ses_"):
            return False
        from sandboxagent.adapters.opencode.session_ids import find_session

        has_draft = self._bridge is not None and self._bridge.has_draft(name)
        return has_draft or find_session(self._core.hub, name, self._core.hub.clock()) is not None

    def stop(self) -> None:
        if self._bridge is not None:
            self._bridge.close()
