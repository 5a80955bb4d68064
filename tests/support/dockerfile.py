"""How a Dockerfile is read where there is no engine."""


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """The instructions with their arguments."""
    lines = [line for line in dockerfile.splitlines() if line and not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in whole]
