"""The compiled library is there where it can be."""

import shutil

import pytest

from ringtrain._core.kernels.library import native_library


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc"))), reason="no C compiler")
def test_the_library_is_loaded() -> None:
    """A library that is missing or out of date fails here, where others skip. `make venv` builds it."""
    assert native_library() is not None
