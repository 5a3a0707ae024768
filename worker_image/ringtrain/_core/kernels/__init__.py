"""Compiled inner loops: `native/` in C, built at installation if there is a compiler.

All results are bitwise equal to the numpy code that they replace: no contraction of multiplication and addition, no
reordering.
"""
