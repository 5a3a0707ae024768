"""Entry point of `python -m ringtrain_client.cli`: the command `dtj`."""

from .main import main

if __name__ == "__main__":
    main(prog_name="dtj")
