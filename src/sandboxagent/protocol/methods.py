"""Name the JSON-RPC methods that the server knows: those of ACP, and its own."""

PROTOCOL_VERSION = 1
"""The version of ACP that the server speaks."""

# --- ACP: sent by clients ---------------------------------------------------------------------------------------------

INITIALIZE = "initialize"
NEW = "session/new"
LOAD = "session/load"
RESUME = "session/resume"
FORK = "session/fork"
LIST = "session/list"
PROMPT = "session/prompt"
CANCEL = "session/cancel"
CLOSE = "session/close"
DELETE = "session/delete"
SET_MODE = "session/set_mode"
SET_MODEL = "session/set_model"
SET_CONFIG_OPTION = "session/set_config_option"

# --- ACP: sent by agents ----------------------------------------------------------------------------------------------

UPDATE = "session/update"
REQUEST_PERMISSION = "session/request_permission"
ELICITATION = "elicitation/create"
READ_TEXT_FILE = "fs/read_text_file"
WRITE_TEXT_FILE = "fs/write_text_file"
TERMINAL_CREATE = "terminal/create"
TERMINAL_OUTPUT = "terminal/output"
TERMINAL_WAIT = "terminal/wait_for_exit"
TERMINAL_KILL = "terminal/kill"
TERMINAL_RELEASE = "terminal/release"

# --- ACP: sent by both ------------------------------------------------------------------------------------------------

CANCEL_REQUEST = "$/cancel_request"

# --- ours: sent by clients --------------------------------------------------------------------------------------------

ATTACH = "_sandboxagent/session/attach"
DETACH = "_sandboxagent/session/detach"
GET_SESSION = "_sandboxagent/session/get"
LIST_SESSIONS = "_sandboxagent/session/list"
SESSION_CHANGES = "_sandboxagent/session/changes"
LIST_MODELS = "_sandboxagent/session/list_models"
SET_METADATA = "_sandboxagent/session/set_metadata"
TERMINATE = "_sandboxagent/session/terminate"
EVENTS = "_sandboxagent/session/events"
PENDING = "_sandboxagent/session/pending"
LIST_AGENTS = "_sandboxagent/agent/list"
GET_AGENT = "_sandboxagent/agent/get"
INSTALL_AGENT = "_sandboxagent/agent/install"
READ_FILE = "_sandboxagent/fs/read_file"
WRITE_FILE = "_sandboxagent/fs/write_file"
UPLOAD_BATCH = "_sandboxagent/fs/upload_batch"
LIST_ENTRIES = "_sandboxagent/fs/entries"
STAT = "_sandboxagent/fs/stat"
MAKE_DIRECTORY = "_sandboxagent/fs/mkdir"
MOVE = "_sandboxagent/fs/move"
SEARCH = "_sandboxagent/fs/search"
DELETE_FILE = "_sandboxagent/fs/delete"

# --- ours: received by clients ----------------------------------------------------------------------------------------

REQUEST_QUESTION = "_sandboxagent/session/request_question"
TURN = "_sandboxagent/session/turn"
DECISION = "_sandboxagent/session/decision"
METADATA_UPDATE = "_sandboxagent/session/metadata_update"
SHELL = "_sandboxagent/session/shell"
ENDED = "_sandboxagent/session/ended"
UNPARSED = "_sandboxagent/agent/unparsed"
GAP = "_sandboxagent/stream/gap"

MAKE_SESSIONS = frozenset({NEW, FORK})
"""Requests whose responses name a new session."""
READS = frozenset(
    {
        LIST,
        ATTACH,
        DETACH,
        EVENTS,
        GET_SESSION,
        LIST_SESSIONS,
        LIST_MODELS,
        PENDING,
        LIST_AGENTS,
    }
)
"""Requests that a client may repeat any number of times: they need no idempotency key."""
