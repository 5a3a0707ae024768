"""`python -m ringtrain_operator`: run the operator."""

from .command import operator

if __name__ == "__main__":
    operator()
