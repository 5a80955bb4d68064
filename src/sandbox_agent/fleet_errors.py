"""Failures of a fleet, as gateways name them. `errors` draws them in its tree."""

from sandbox_agent.errors import RpcError, SandboxAgentError


class MissingNode(SandboxAgentError):
    slug, title, status, rpc_code = "missing-node", "Missing Node", 400, -32602

    def __init__(self, nodes: int) -> None:
        super().__init__(f"the fleet has {nodes} nodes; say which one: `node`, or the `sessionId` of a session there")


class NoNode(SandboxAgentError):
    slug, title, status = "no-node", "No Node", 503

    def __init__(self, wanted: str) -> None:
        super().__init__(f"{wanted}; GET /v1/nodes lists the nodes that are there")


class NodeUnreachable(SandboxAgentError):
    slug, title, status = "node-unreachable", "Node Unreachable", 503

    def __init__(self, node: str, reason: str) -> None:
        again = "repeat the request when it is back; GET /v1/nodes lists the nodes that are there"
        super().__init__(f"the node {node} {reason}; {again}", node=node)


class FleetUnreachable(SandboxAgentError):
    slug, title, status = "fleet-unreachable", "Fleet Unreachable", 503

    def __init__(self) -> None:
        super().__init__(
            "this gateway cannot reach the NATS servers, and so no node; go to another gateway, "
            "or see that the servers which --join names run and can be reached: then it goes on by itself"
        )


class NodeLost(RpcError):
    slug, title = "node-lost", "Node Lost"

    def __init__(self, node: str) -> None:
        super().__init__(f"the node {node}, which had this request, is gone; send it again when it is back", node=node)
