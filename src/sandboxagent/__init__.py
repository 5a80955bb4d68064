"""Run and control coding agents inside a sandbox, over HTTP.

The Python SDK is imported from here: a client of a sandbox-agent server, async and typed. `sandboxagent.client.sync`
offers the same API for scripts that are not async.

A name is imported on its first use. A program that needs only a part of the SDK does not wait for the rest.
"""

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
    from sandboxagent.client.api import (
        Data,
    )
    from sandboxagent.client.client import (
        FleetNode,
        SandboxAgent,
    )
    from sandboxagent.client.errors import (
        AlreadyAnswered,
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
    from sandboxagent.client.events import (
        SessionEvent,
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
    from sandboxagent.client.following import (
        Following,
        SessionLog,
    )
    from sandboxagent.client.incoming import (
        LogEvent,
    )
    from sandboxagent.client.reducer import (
        SessionReducer,
        reduce,
    )
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
        Session,
        SessionInfo,
        Updates,
    )
    from sandboxagent.client.sessions import (
        SessionChanges,
        Sessions,
        SessionWatch,
    )
    from sandboxagent.client.turn import (
        Turn,
    )
    from sandboxagent.client.updates import (
        ContentBlock,
        Decision,
        Gap,
        MetadataUpdated,
        PromptBlock,
        PromptSent,
        RequestOpened,
        SessionEnded,
        SessionItem,
        SessionOpened,
        SessionUpdate,
        TurnEnded,
        TurnItem,
        TurnStarted,
        UnknownUpdate,
        text_of,
    )
    from sandboxagent.client.view import (
        AttachedFile,
        ContentItem,
        Context,
        Cost,
        EventRange,
        FailureItem,
        FileWrite,
        GapItem,
        NoticeItem,
        OpenCall,
        PlanItem,
        QueuedPrompt,
        RequestDecision,
        RequestItem,
        SessionEnd,
        SessionStatus,
        SessionUsage,
        SessionView,
        TerminalExit,
        TerminalView,
        TextItem,
        ThoughtItem,
        TokenCounts,
        ToolCallItem,
        TurnError,
        TurnView,
        UserItem,
        ViewItem,
    )
    from sandboxagent.protocol.errors import (
        SandboxAgentError,
    )

__version__ = "0.1.0"

__all__ = [
    "Activity",
    "Agent",
    "AgentHealth",
    "Agents",
    "AlreadyAnswered",
    "Answer",
    "ArchiveFormat",
    "Artifact",
    "AttachedFile",
    "Attachment",
    "Change",
    "Choice",
    "ClientError",
    "ConfigOption",
    "ConnectionLost",
    "ContentBlock",
    "ContentItem",
    "Context",
    "Cost",
    "Credential",
    "Data",
    "Decision",
    "ElicitationHandler",
    "ElicitationRequest",
    "Entry",
    "EventRange",
    "FailureItem",
    "Features",
    "FileWrite",
    "Files",
    "FleetNode",
    "Following",
    "ForeignAnswer",
    "Gap",
    "GapItem",
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
    "NoticeItem",
    "OpenCall",
    "PermissionHandler",
    "PermissionRequest",
    "PlanItem",
    "Progress",
    "PromptBlock",
    "PromptSent",
    "Question",
    "QuestionHandler",
    "QuestionRequest",
    "QueuedPrompt",
    "RemotePath",
    "Request",
    "RequestDecision",
    "RequestError",
    "RequestItem",
    "RequestOpened",
    "SandboxAgent",
    "SandboxAgentError",
    "Search",
    "ServerProblem",
    "ServerStatus",
    "Session",
    "SessionChanges",
    "SessionEnd",
    "SessionEnded",
    "SessionEvent",
    "SessionInfo",
    "SessionItem",
    "SessionLog",
    "SessionOpened",
    "SessionReducer",
    "SessionStatus",
    "SessionUpdate",
    "SessionUsage",
    "SessionView",
    "SessionWatch",
    "Sessions",
    "StartFailed",
    "Stderr",
    "TerminalExit",
    "TerminalView",
    "TextItem",
    "ThoughtItem",
    "TlsFailed",
    "TokenCounts",
    "ToolCallItem",
    "Turn",
    "TurnEnded",
    "TurnError",
    "TurnItem",
    "TurnStarted",
    "TurnView",
    "UnknownUpdate",
    "Updates",
    "Uploaded",
    "UserItem",
    "ViewItem",
    "Watch",
    "Written",
    "__version__",
    "reduce",
    "text_of",
]

_NAMES = {
    "agents": (
        "Agent AgentHealth Agents Artifact Credential Features Health Install InstallInfo InstallResult Mode "
        "Model Models Modes Progress ServerStatus Stderr"
    ),
    "api": ("Data"),
    "client": ("FleetNode SandboxAgent"),
    "errors": (
        "AlreadyAnswered ClientError ConnectionLost ForeignAnswer InvalidCall LocalFileFailed RequestError "
        "ServerProblem StartFailed TlsFailed"
    ),
    "events": ("SessionEvent"),
    "files": ("ArchiveFormat Change Entry Files Match RemotePath Search Uploaded Watch Written"),
    "following": ("Following SessionLog"),
    "incoming": ("LogEvent"),
    "reducer": ("SessionReducer reduce"),
    "requests": (
        "Answer Choice ElicitationHandler ElicitationRequest PermissionHandler PermissionRequest Question "
        "QuestionHandler QuestionRequest Request"
    ),
    "session": ("Activity Attachment ConfigOption Session SessionInfo Updates"),
    "sessions": ("SessionChanges SessionWatch Sessions"),
    "turn": ("Turn"),
    "updates": (
        "ContentBlock Decision Gap MetadataUpdated PromptBlock PromptSent RequestOpened SessionEnded "
        "SessionItem SessionOpened SessionUpdate TurnEnded TurnItem TurnStarted UnknownUpdate text_of"
    ),
    "view": (
        "AttachedFile ContentItem Context Cost EventRange FailureItem FileWrite GapItem NoticeItem OpenCall "
        "PlanItem QueuedPrompt RequestDecision RequestItem SessionEnd SessionStatus SessionUsage SessionView "
        "TerminalExit TerminalView TextItem ThoughtItem TokenCounts ToolCallItem TurnError TurnView UserItem "
        "ViewItem"
    ),
}
"""The exported names, by the module of `sandboxagent.client` that defines them."""
_HOMES = {name: f"sandboxagent.client.{module}" for module, names in _NAMES.items() for name in names.split()}
_HOMES["SandboxAgentError"] = "sandboxagent.protocol.errors"
"""The full name of the module that defines each exported name."""

if not TYPE_CHECKING:
    # Hidden, so that type checkers still report an unknown name.

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
