"""The Python SDK: a client of a sandbox-agent server, async and typed.

`sandbox_agent.client.sync` has the same for scripts that do not want to be async.
"""

from acp import RequestError

from sandbox_agent.client.agents import Agent, Agents, Health, Install, InstallResult, Models, Modes, Progress
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
from sandbox_agent.client.files import Files
from sandbox_agent.client.inventory import SessionInfo
from sandbox_agent.client.past import LogEvent
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

__all__ = [
    "Agent",
    "Agents",
    "Answer",
    "Attachment",
    "Choice",
    "ClientError",
    "ConnectionLost",
    "Decision",
    "ElicitationRequest",
    "Files",
    "ForeignAnswer",
    "Gap",
    "Health",
    "Install",
    "InstallResult",
    "LogEvent",
    "MetadataUpdated",
    "Models",
    "Modes",
    "PermissionRequest",
    "Progress",
    "Question",
    "QuestionRequest",
    "RequestError",
    "SandboxAgent",
    "ServerProblem",
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
    "text_of",
]
