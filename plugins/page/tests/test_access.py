"""Access to the page."""

import pytest

from ringtrain_page.access import PageAccess, page_token


@pytest.mark.parametrize(
    "others", ['a={"x": 1}', "a=b c", "flag", "=x", "a[b]=1", "path=/x", "a=\xe9"], ids=lambda text: repr(text)
)
def test_cookies_of_others_on_this_host(others: str) -> None:
    """Browsers send them to every port: whatever they hold, the page's own admits, before them or after."""
    access = PageAccess(["secret"], "job")
    own = access.set_cookie(page_token("secret")).partition(";")[0]
    assert access.admits("", f"{others}; {own}")
    assert access.admits("", f"{own}; {others}")
    assert not access.admits("", f"{others}; {own}x")
    assert not access.admits("", others)
