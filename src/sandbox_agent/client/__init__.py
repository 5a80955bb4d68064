"""The Python SDK: a client of a sandbox-agent server, async and typed.

`sandbox_agent.client.sync` has the same for scripts that do not want to be async.
"""

from acp import RequestError

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
    ElicitationRequest,
    PermissionRequest,
    Question,
    QuestionRequest,
)
from sandbox_agent.client.client import SandboxAgent
from sandbox_agent.client.errors import ClientError, ConnectionLost, ForeignAnswer, ServerProblem, StartFailed
from sandbox_agent.client.files import Entry, Files, Uploaded, Written
from sandbox_agent.client.inventory import SessionInfo
from sandbox_agent.client.past import LogEvent
from sandbox_agent.client.searching import Match, Search
from sandbox_agent.client.session import Attachment, Session
from sandbox_agent.client.sessions import Sessions
from sandbox_agent.client.turn import Turn
from sandbox_agent.client.updates import (
    Decision,
    Gap,
    MetadataUpdated,
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
    "Artifact",
    "Attachment",
    "Change",
    "Choice",
    "ClientError",
    "ConnectionLost",
    "Credential",
    "Decision",
    "ElicitationRequest",
    "Entry",
    "Features",
    "Files",
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
    "PermissionRequest",
    "Progress",
    "Question",
    "QuestionRequest",
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
    "Uploaded",
    "Watch",
    "Written",
    "text_of",
]
