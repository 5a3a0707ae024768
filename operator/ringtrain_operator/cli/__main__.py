"""`python -m ringtrain_operator.cli`: the command `dtj`."""

from .main import main

if __name__ == "__main__":
    main(prog_name="dtj")
