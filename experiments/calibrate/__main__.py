"""Measures this machine's first device; see the package."""

import argparse
import sys
from pathlib import Path

import experiments.calibrate
from experiments.calibrate.runner import Options, run


def main(arguments: list[str] | None = None) -> int:
    """Runs the jobs that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.calibrate",
        description=experiments.calibrate.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the files")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all of it")
    parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a dry run")
    parser.add_argument("--only", nargs="*", default=[], help="jobs by name or kind")
    parser.add_argument(
        "--absent",
        action="store_true",
        help="without the device: its figures and estimates from a run's records",
    )
    parser.add_argument("--cards", type=Path, help="where reports look for its figures")
    return run(_options(parser.parse_args(arguments)))


def _options(words: argparse.Namespace) -> Options:
    return Options(
        out=words.out,
        seconds=words.seconds,
        platform=words.platform,
        quick=words.quick,
        only=tuple(words.only),
        cards=words.cards,
        absent=words.absent,
    )


if __name__ == "__main__":
    sys.exit(main())
