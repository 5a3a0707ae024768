"""The structures that Python and the compiled library share have the same size on both sides."""

import ctypes

import pytest

from ringtrain._core.kernels import structures
from ringtrain._core.kernels.library import native_library

library = native_library()
pytestmark = pytest.mark.skipif(library is None, reason="ringtrain was installed without a C compiler")


def test_a_library_of_this_version_has_the_same_layout() -> None:
    assert library is not None
    assert structures.differing_layout(library) == ""


def test_another_layout_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the sizes of both sides."""
    assert library is not None
    expected = (*structures.STRUCT_BYTES[:-1], 4)
    monkeypatch.setattr(structures, "STRUCT_BYTES", expected)
    assert f"expected {expected}" in structures.differing_layout(library)


def test_a_library_that_tells_no_sizes_is_of_another_version() -> None:
    """As those before the table are."""
    assert structures.differing_layout(ctypes.CDLL(None)) == "it has no table of structure sizes"
