"""Measuring: a step is compiled for a target, and what its compiler says is read."""

from revremat._measure._measure import assert_fits as assert_fits
from revremat._measure._measure import measure as measure
from revremat._measure._measure import with_unexpected as with_unexpected
from revremat._measure._read import REMAT_PASS_OFF as REMAT_PASS_OFF
from revremat._measure._read import read_artifact as read_artifact
from revremat._measure._read import remarks as remarks
from revremat._measure._steps import Compiles as Compiles
from revremat._measure._steps import Failure as Failure
from revremat._measure._steps import Oracle as Oracle
from revremat._measure._steps import Step as Step
from revremat._measure._steps import ask_each as ask_each
from revremat._measure._steps import measure_each as measure_each
from revremat._measure._steps import name_of as name_of
from revremat._measure._steps import read_step as read_step
from revremat._measure._steps import step_to_run as step_to_run
from revremat._measure._steps import try_each as try_each
from revremat._measure._stopwatch import Runnable as Runnable
from revremat._measure._stopwatch import step_us as step_us
