# An image for the gateways and nodes of a fleet. A node installs its agents into its volume when they are first used.
FROM python:3.12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates git \
    && rm -rf /var/lib/apt/lists/*
COPY sandboxagent-*.whl /tmp/
RUN pip install --no-cache-dir "$(echo /tmp/sandboxagent-*.whl)[fleet]" && rm /tmp/sandboxagent-*.whl \
    && useradd --uid 10001 --create-home agent
USER 10001
WORKDIR /home/agent
ENTRYPOINT ["sandbox-agent"]
