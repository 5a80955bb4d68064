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
from sandbox_agent.client.errors import ClientError, ConnectionLost, ForeignAnswer, ServerProblem, StartFailed
from sandbox_agent.client.files import ArchiveFormat, Entry, Files, RemotePath, Uploaded, Written
from sandbox_agent.client.inventory import SessionInfo
from sandbox_agent.client.past import LogEvent
from sandbox_agent.client.searching import Match, Search
from sandbox_agent.client.session import Attachment, Session, Updates
from sandbox_agent.client.sessions import Sessions
from sandbox_agent.client.turn import Turn
from sandbox_agent.client.updates import (
    ContentBlock,
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
    "ArchiveFormat",
    "Artifact",
    "Attachment",
    "Change",
    "Choice",
    "ClientError",
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
