"""Inner loops in C (`native/`), compiled at installation if there is a compiler; numpy code replaces missing ones.

All results are bitwise equal to the numpy code that they replace: no contraction of multiplication and addition, no
reordering.
"""
