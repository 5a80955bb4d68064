"""Failures of the file API: what went wrong with a path. `errors` draws them in its tree."""

from sandbox_agent.errors import SandboxAgentError


class FileProblem(SandboxAgentError):
    """What went wrong with a path: `meaning` in the words of the file system, `errno` its name for it."""

    slug, title, status = "file-problem", "File Problem", 500

    def __init__(self, path: str, meaning: str, **fields: object) -> None:
        super().__init__(f"{path}: {meaning}", path=path, **fields)


class BadPath(FileProblem):
    slug, title, status, rpc_code = "bad-path", "Bad Path", 400, -32602


class OutsideRoots(FileProblem):
    slug, title, status, rpc_code = "outside-roots", "Outside The Roots", 403, -32602


class FileForbidden(FileProblem):
    slug, title, status, rpc_code = "file-forbidden", "File Forbidden", 403, -32603


class FileNotFound(FileProblem):
    slug, title, status, rpc_code = "file-not-found", "File Not Found", 404, -32002


class FileConflict(FileProblem):
    slug, title, status, rpc_code = "file-conflict", "File Conflict", 409, -32602


class RootReplaced(FileProblem):
    slug, title, status, rpc_code = "root-replaced", "Root Replaced", 409, -32602


class FileChanged(FileProblem):
    slug, title, status, rpc_code = "file-changed", "File Changed", 412, -32602


class FileTooLarge(FileProblem):
    slug, title, status, rpc_code = "file-too-large", "File Too Large", 413, -32602


class RangeNotSatisfiable(FileProblem):
    slug, title, status, rpc_code = "range-not-satisfiable", "Range Not Satisfiable", 416, -32602


class NoRoom(FileProblem):
    slug, title, status = "no-room", "No Room", 507
