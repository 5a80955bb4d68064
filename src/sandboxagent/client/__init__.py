"""Provide the Python SDK: a client of a sandbox-agent server, async and typed.

`sandboxagent.client.sync` offers the same API for scripts that are not async.

A name is imported on its first use. A program that needs only a part of the SDK does not wait for the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxagent.client.agents import (
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
        Stderr,
    )
    from sandboxagent.client.api import Data
    from sandboxagent.client.client import FleetNode, SandboxAgent
    from sandboxagent.client.errors import (
        ClientError,
        ConnectionLost,
        ForeignAnswer,
        InvalidCall,
        LocalFileFailed,
        RequestError,
        ServerProblem,
        StartFailed,
        TlsFailed,
    )
    from sandboxagent.client.files import (
        ArchiveFormat,
        Change,
        Entry,
        Files,
        Match,
        RemotePath,
        Search,
        Uploaded,
        Watch,
        Written,
    )
    from sandboxagent.client.incoming import LogEvent
    from sandboxagent.client.requests import (
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
    from sandboxagent.client.session import (
        Activity,
        Attachment,
        ConfigOption,
        Context,
        Cost,
        Following,
        Session,
        SessionInfo,
        Updates,
    )
    from sandboxagent.client.sessions import SessionChanges, Sessions, SessionWatch
    from sandboxagent.client.turn import Turn
    from sandboxagent.client.updates import (
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
    from sandboxagent.protocol.errors import SandboxAgentError

__all__ = [
    "Activity",
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
    "Context",
    "Cost",
    "Credential",
    "Data",
    "Decision",
    "ElicitationHandler",
    "ElicitationRequest",
    "Entry",
    "Features",
    "Files",
    "FleetNode",
    "Following",
    "ForeignAnswer",
    "Gap",
    "Health",
    "Install",
    "InstallInfo",
    "InstallResult",
    "InvalidCall",
    "LocalFileFailed",
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
    "SandboxAgentError",
    "Search",
    "ServerProblem",
    "ServerStatus",
    "Session",
    "SessionChanges",
    "SessionEnded",
    "SessionInfo",
    "SessionItem",
    "SessionUpdate",
    "SessionWatch",
    "Sessions",
    "StartFailed",
    "Stderr",
    "TlsFailed",
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

_NAMES = {
    "agents": (
        "Agent AgentHealth Agents Artifact Credential Features Health Install InstallInfo InstallResult Mode "
        "Model Models Modes Progress ServerStatus Stderr"
    ),
    "api": "Data",
    "requests": (
        "Answer Choice ElicitationHandler ElicitationRequest PermissionHandler PermissionRequest Question "
        "QuestionHandler QuestionRequest Request"
    ),
    "client": "FleetNode SandboxAgent",
    "errors": (
        "ClientError ConnectionLost ForeignAnswer InvalidCall LocalFileFailed RequestError ServerProblem StartFailed "
        "TlsFailed"
    ),
    "files": "ArchiveFormat Change Entry Files Match RemotePath Search Uploaded Watch Written",
    "incoming": "LogEvent",
    "session": "Activity Attachment ConfigOption Context Cost Following Session SessionInfo Updates",
    "sessions": "SessionChanges SessionWatch Sessions",
    "turn": "Turn",
    "updates": (
        "ContentBlock Decision Gap MetadataUpdated PromptBlock SessionEnded SessionItem SessionUpdate "
        "TurnEnded TurnItem TurnStarted UnknownUpdate text_of"
    ),
}
"""The exported names, by the module that defines them."""
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}
_HOMES["SandboxAgentError"] = "sandboxagent.protocol.errors"
"""The full name of the module that defines each exported name."""

if not TYPE_CHECKING:
    # Hidden, so that type checkers still report an unknown name.

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
