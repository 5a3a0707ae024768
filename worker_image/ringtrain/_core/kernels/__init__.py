"""Compiled inner loops: `native/` in C, built when ringtrain is installed where there is a compiler.

Everything here has the same bits as the numpy code that it stands in for: no contraction of multiplication and
addition, no reordering.
"""
