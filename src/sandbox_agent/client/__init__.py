"""The Python SDK: a client of a sandbox-agent server, async and typed.

`sandbox_agent.client.sync` has the same for scripts that do not want to be async.

Names are imported when they are first used, so that a program that needs only a part of it does not wait for the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox_agent.client.agents import (
        Agent,
        AgentHealth,
        Agents,
        Artifact,
        Credential,
        Features,
        Health,
        Install,
        InstallInfo,
        InstallResult,
        Mode,
        Model,
        Models,
        Modes,
        Progress,
        ServerStatus,
    )
    from sandbox_agent.client.asking import (
        Answer,
        Choice,
        ElicitationHandler,
        ElicitationRequest,
        PermissionHandler,
        PermissionRequest,
        Question,
        QuestionHandler,
        QuestionRequest,
        Request,
    )
    from sandbox_agent.client.client import SandboxAgent
    from sandbox_agent.client.contents import Data
    from sandbox_agent.client.errors import (
        ClientError,
        ConnectionLost,
        ForeignAnswer,
        RequestError,
        ServerProblem,
        StartFailed,
    )
    from sandbox_agent.client.files import ArchiveFormat, Entry, Files, RemotePath, Uploaded, Written
    from sandbox_agent.client.following import Following
    from sandbox_agent.client.inventory import SessionInfo
    from sandbox_agent.client.searching import Match, Search
    from sandbox_agent.client.session import Attachment, ConfigOption, Session, Updates
    from sandbox_agent.client.session_log import LogEvent
    from sandbox_agent.client.sessions import Sessions
    from sandbox_agent.client.turn import Turn
    from sandbox_agent.client.updates import (
        ContentBlock,
        Decision,
        Gap,
        MetadataUpdated,
        PromptBlock,
        SessionEnded,
        SessionItem,
        SessionUpdate,
        TurnEnded,
        TurnItem,
        TurnStarted,
        UnknownUpdate,
        text_of,
    )
    from sandbox_agent.client.watching import Change, Watch

__all__ = [
    "Agent",
    "AgentHealth",
    "Agents",
    "Answer",
    "ArchiveFormat",
    "Artifact",
    "Attachment",
    "Change",
    "Choice",
    "ClientError",
    "ConfigOption",
    "ConnectionLost",
    "ContentBlock",
    "Credential",
    "Data",
    "Decision",
    "ElicitationHandler",
    "ElicitationRequest",
    "Entry",
    "Features",
    "Files",
    "Following",
    "ForeignAnswer",
    "Gap",
    "Health",
    "Install",
    "InstallInfo",
    "InstallResult",
    "LogEvent",
    "Match",
    "MetadataUpdated",
    "Mode",
    "Model",
    "Models",
    "Modes",
    "PermissionHandler",
    "PermissionRequest",
    "Progress",
    "PromptBlock",
    "Question",
    "QuestionHandler",
    "QuestionRequest",
    "RemotePath",
    "Request",
    "RequestError",
    "SandboxAgent",
    "Search",
    "ServerProblem",
    "ServerStatus",
    "Session",
    "SessionEnded",
    "SessionInfo",
    "SessionItem",
    "SessionUpdate",
    "Sessions",
    "StartFailed",
    "Turn",
    "TurnEnded",
    "TurnItem",
    "TurnStarted",
    "UnknownUpdate",
    "Updates",
    "Uploaded",
    "Watch",
    "Written",
    "text_of",
]

_HOMES = {
    "Agent": "sandbox_agent.client.agents",
    "AgentHealth": "sandbox_agent.client.agents",
    "Agents": "sandbox_agent.client.agents",
    "Answer": "sandbox_agent.client.asking",
    "ArchiveFormat": "sandbox_agent.client.files",
    "Artifact": "sandbox_agent.client.agents",
    "Attachment": "sandbox_agent.client.session",
    "Change": "sandbox_agent.client.watching",
    "Choice": "sandbox_agent.client.asking",
    "ClientError": "sandbox_agent.client.errors",
    "ConfigOption": "sandbox_agent.client.session",
    "ConnectionLost": "sandbox_agent.client.errors",
    "ContentBlock": "sandbox_agent.client.updates",
    "Credential": "sandbox_agent.client.agents",
    "Data": "sandbox_agent.client.contents",
    "Decision": "sandbox_agent.client.updates",
    "ElicitationHandler": "sandbox_agent.client.asking",
    "ElicitationRequest": "sandbox_agent.client.asking",
    "Entry": "sandbox_agent.client.files",
    "Features": "sandbox_agent.client.agents",
    "Files": "sandbox_agent.client.files",
    "Following": "sandbox_agent.client.following",
    "ForeignAnswer": "sandbox_agent.client.errors",
    "Gap": "sandbox_agent.client.updates",
    "Health": "sandbox_agent.client.agents",
    "Install": "sandbox_agent.client.agents",
    "InstallInfo": "sandbox_agent.client.agents",
    "InstallResult": "sandbox_agent.client.agents",
    "LogEvent": "sandbox_agent.client.session_log",
    "Match": "sandbox_agent.client.searching",
    "MetadataUpdated": "sandbox_agent.client.updates",
    "Mode": "sandbox_agent.client.agents",
    "Model": "sandbox_agent.client.agents",
    "Models": "sandbox_agent.client.agents",
    "Modes": "sandbox_agent.client.agents",
    "PermissionHandler": "sandbox_agent.client.asking",
    "PermissionRequest": "sandbox_agent.client.asking",
    "Progress": "sandbox_agent.client.agents",
    "PromptBlock": "sandbox_agent.client.updates",
    "Question": "sandbox_agent.client.asking",
    "QuestionHandler": "sandbox_agent.client.asking",
    "QuestionRequest": "sandbox_agent.client.asking",
    "RemotePath": "sandbox_agent.client.files",
    "Request": "sandbox_agent.client.asking",
    "RequestError": "sandbox_agent.client.errors",
    "SandboxAgent": "sandbox_agent.client.client",
    "Search": "sandbox_agent.client.searching",
    "ServerProblem": "sandbox_agent.client.errors",
    "ServerStatus": "sandbox_agent.client.agents",
    "Session": "sandbox_agent.client.session",
    "SessionEnded": "sandbox_agent.client.updates",
    "SessionInfo": "sandbox_agent.client.inventory",
    "SessionItem": "sandbox_agent.client.updates",
    "SessionUpdate": "sandbox_agent.client.updates",
    "Sessions": "sandbox_agent.client.sessions",
    "StartFailed": "sandbox_agent.client.errors",
    "Turn": "sandbox_agent.client.turn",
    "TurnEnded": "sandbox_agent.client.updates",
    "TurnItem": "sandbox_agent.client.updates",
    "TurnStarted": "sandbox_agent.client.updates",
    "UnknownUpdate": "sandbox_agent.client.updates",
    "Updates": "sandbox_agent.client.session",
    "Uploaded": "sandbox_agent.client.files",
    "Watch": "sandbox_agent.client.watching",
    "Written": "sandbox_agent.client.files",
    "text_of": "sandbox_agent.client.updates",
}
"""The module that defines each name."""

if not TYPE_CHECKING:
    # Hidden, so that type checkers still report an unknown name.

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
