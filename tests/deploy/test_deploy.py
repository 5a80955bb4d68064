"""The files of `deploy/`: what can be checked of them without Docker and Kubernetes."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.nats import PROGRAM

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
FLAGS = set(re.findall(r"--[a-z-]+", (ROOT / "docs" / "reference" / "cli.md").read_text()))

Json = dict[str, Any]


def documents() -> list[Json]:
    return [each for path in KUBERNETES for each in yaml.safe_load_all(path.read_text())]


def pods() -> list[Json]:
    return [each["spec"]["template"]["spec"] for each in documents() if each["kind"] in ("StatefulSet", "Deployment")]


def compose() -> Json:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_every_flag_that_is_given_is_one_that_there_is() -> None:
    given = [word for pod in pods() for each in pod["containers"] for word in each["args"]]
    given += [word for each in compose()["services"].values() for word in each["command"]]
    flags = {word.partition("=")[0] for word in given if word.startswith("--")}
    assert {"--join", "--creds", "--replicas", "--node"} <= flags <= FLAGS


def test_nothing_runs_as_root_or_writes_to_its_image() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            own = container["securityContext"]
            assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert {"startupProbe", "livenessProbe"} <= set(container)
    assert re.search(r"^USER \d+$", (DEPLOY / "fleet.Dockerfile").read_text(), re.M)


def test_what_is_mounted_and_selected_is_there() -> None:
    for document in documents():
        if document["kind"] not in ("StatefulSet", "Deployment"):
            continue
        spec = document["spec"]
        pod = spec["template"]["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        volumes = {each["name"] for each in pod["volumes"]}
        volumes |= {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", [])}
        assert {each["name"] for container in pod["containers"] for each in container["volumeMounts"]} == volumes
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in documents() if "template" in each["spec"]]
    assert all(each["spec"]["selector"] in labels for each in documents() if each["kind"] == "Service")
    whole = compose()
    for service in whole["services"].values():
        assert set(service.get("secrets", [])) <= set(whole["secrets"])
        assert {each.partition(":")[0] for each in service.get("volumes", [])} <= set(whole["volumes"])
        assert set(service.get("depends_on", {})) <= set(whole["services"])
        assert {each["source"] for each in service.get("configs", [])} <= set(whole["configs"])


def test_no_secret_is_in_a_file() -> None:
    assert "Secret" not in {each["kind"] for each in documents()}
    for path in (*KUBERNETES, DEPLOY / "compose.yaml", DEPLOY / "nats.conf"):
        assert not re.search(r"\bS[UA][A-Z2-7]{50}", path.read_text())


@pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not installed")
def test_nats_reads_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "nats.conf").write_text((DEPLOY / "nats.conf").read_text())
    (tmp_path / "authorization.conf").write_text('authorization: {"users": []}\n')
    words = [str(PROGRAM), "-t", "-c", str(tmp_path / "nats.conf")]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "SERVER_NAME": "nats-0"})
    assert done.returncode == 0, done.stderr
