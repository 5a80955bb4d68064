"""Failures of installing an agent. `errors` draws them in its tree."""

from collections.abc import Sequence

from sandbox_agent.errors import SandboxAgentError


class RegistryUnavailable(SandboxAgentError):
    slug, title, status = "registry-unavailable", "Registry Unavailable", 502


class DownloadFailed(SandboxAgentError):
    slug, title, status = "download-failed", "Download Failed", 502


class ChecksumMismatch(SandboxAgentError):
    slug, title, status = "checksum-mismatch", "Checksum Mismatch", 502

    def __init__(self, name: str, expected: str, actual: str) -> None:
        super().__init__(
            f"{name} is not what was pinned: expected {expected}, got {actual}; nothing was installed",
            name=name,
            expected=expected,
            actual=actual,
        )


class HashMissing(SandboxAgentError):
    slug, title, status = "hash-missing", "Hash Missing", 422

    def __init__(self, agent: str, without: Sequence[str]) -> None:
        names = ", ".join(without[:5]) + (", …" if len(without) > 5 else "")
        super().__init__(
            f"agent {agent} is not installed, because no hash is known for {names} and --require-hashes is set; "
            "choose another version or agent, or allow it by leaving out --require-hashes",
            agent=agent,
            names=list(without[:100]),
        )


class UnsafeArchive(SandboxAgentError):
    slug, title, status = "unsafe-archive", "Unsafe Archive", 502


class InstallFailed(SandboxAgentError):
    slug, title, status = "install-failed", "Install Failed", 502


class UnsupportedAgent(SandboxAgentError):
    slug, title, status = "unsupported-agent", "Unsupported Agent", 422

    def __init__(self, agent: str, reason: str) -> None:
        super().__init__(f"agent {agent} is not supported: {reason}", agent=agent)


class UnsupportedPlatform(SandboxAgentError):
    slug, title, status = "unsupported-platform", "Unsupported Platform", 422

    def __init__(self, agent: str, platform: str, offered: list[str]) -> None:
        builds = f"; it has: {', '.join(offered)}" if offered else ""
        super().__init__(
            f"agent {agent} has no build for {platform}{builds}", agent=agent, platform=platform, offered=offered
        )


class UnknownVersion(SandboxAgentError):
    slug, title, status, rpc_code = "unknown-version", "Unknown Version", 422, -32602
