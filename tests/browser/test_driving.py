"""The browser itself: what goes wrong on a page is noticed."""

import pytest

from tests.browser.conftest import BUNDLED
from tests.browser.driving import Context, Failed

pytestmark = pytest.mark.xdist_group("browser")


def test_an_unhandled_rejection_fails_the_test(context: Context, origin: str) -> None:
    with pytest.raises(AssertionError, match="nobody looks"), context.page(origin + BUNDLED) as page:
        page.run("void Promise.reject(new Error('nobody looks'));")


def test_what_a_page_throws_comes_with_its_message(context: Context, origin: str) -> None:
    with context.page(origin + BUNDLED) as page, pytest.raises(Failed, match="seven is odd"):
        page.run("throw new Error(`${number} is odd`);", number="seven")
