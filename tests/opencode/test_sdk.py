"""OpenCode's SDK on the bridge, in both of its forms; and every answer and event as OpenCode's own document has it."""

from pathlib import Path

import pytest

from tests.opencode.document import document
from tests.opencode.host import Host
from tests.opencode.suite import Suite, faults_of


@pytest.fixture(scope="module", params=["v1", "v2"])
def suite(request: pytest.FixtureRequest, host: Host, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    Path(host.directory, "poem.txt").write_text("roses are red")
    return Suite(request.param, host, tmp_path_factory.mktemp("sdk"))


def test_the_suite_passes(suite: Suite) -> None:
    assert suite.done.returncode == 0, suite.done.stdout + suite.done.stderr


def test_every_answer_and_event_is_as_the_document_of_opencode_says(suite: Suite, host: Host) -> None:
    if host.is_opencode_itself:
        pytest.skip("its own answers need not be so: the branch of no repository is null")
    faults = list(dict.fromkeys(faults_of(suite.record, document())))

    assert suite.record
    assert not faults, "\n".join(faults)
