"""`python -m ringtrain_operator.cli`: the command `dtj`."""

from ringtrain_operator.cli.main import main

if __name__ == "__main__":
    main(prog_name="dtj")
