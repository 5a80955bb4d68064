"""Errors of the file system, as clients get them: contract, section 13."""

import errno
import os

import pytest

from sandbox_agent.file_errors import FileProblem
from sandbox_agent.host.paths.confined import Outside
from sandbox_agent.host.paths.refusals import file_problem, file_problems

FAULTLESS = {"EIO", "EMFILE", "ENFILE", "ENOMEM"}
"""What no client can help."""


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (errno.EINVAL, 400),
        (errno.ENAMETOOLONG, 400),
        (errno.ELOOP, 400),
        (errno.EACCES, 403),
        (errno.EROFS, 403),
        (errno.ENOENT, 404),
        (errno.EISDIR, 409),
        (errno.ENOTDIR, 409),
        (errno.ENOTEMPTY, 409),
        (errno.EXDEV, 409),
        (errno.ETXTBSY, 409),
        (errno.EFBIG, 413),
        (errno.ENOSPC, 507),
        (errno.EDQUOT, 507),
        (errno.EIO, 500),
        (errno.EMFILE, 500),
    ],
)
def test_each_errno_has_a_status_and_is_named_with_the_path(number: int, status: int) -> None:
    problem = file_problem(OSError(number, os.strerror(number)), "/a\udcff")
    assert problem.status == status
    assert problem.fields == {"path": "/a\uefff", "errno": errno.errorcode[number]}
    assert os.strerror(number) in str(problem)
    assert (status == 500) == (errno.errorcode[number] in FAULTLESS)


def test_what_leads_out_is_not_told_by_its_number() -> None:
    with pytest.raises(FileProblem) as refused, file_problems("/path"):
        raise Outside(errno.EXDEV, "leads out")
    assert (refused.value.status, refused.value.fields) == (403, {"path": "/path"})
