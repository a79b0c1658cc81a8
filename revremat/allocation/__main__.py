"""`python -m revremat.allocation FILE.csv ...`."""

import sys

import tyro

from revremat.allocation._command import AllocateOptions, run

if __name__ == "__main__":
    sys.exit(run(tyro.cli(AllocateOptions, prog="python -m revremat.allocation")))
