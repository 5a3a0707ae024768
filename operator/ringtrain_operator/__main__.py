"""`python -m ringtrain_operator`: run the operator."""

from .cli.operator import operator

if __name__ == "__main__":
    operator()
