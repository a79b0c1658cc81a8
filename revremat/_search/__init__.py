"""The search: passes over an immutable state, and an oracle that measures programs.

`_run.py` says which passes there are, in which order and why. `State` is all that is
known, `Space` what is fixed, `Heuristics` every number that decides.
"""

from revremat._measure import Failure as Failure
from revremat._search._answer import answer as answer
from revremat._search._asking import Asking as Asking
from revremat._search._asking import Progress as Progress
from revremat._search._asking import RequestOracle as RequestOracle
from revremat._search._begin import begin as begin
from revremat._search._begin import compiler as compiler
from revremat._search._begin import run as run
from revremat._search._heuristics import Effort as Effort
from revremat._search._heuristics import Heuristics as Heuristics
from revremat._search._keys import BASELINE as BASELINE
from revremat._search._keys import ProbeKey as ProbeKey
from revremat._search._keys import ProgramKey as ProgramKey
from revremat._search._keys import Request as Request
from revremat._search._oracle import CompilerOracle as CompilerOracle
from revremat._search._oracle import step_of as step_of
from revremat._search._pass import Ask as Ask
from revremat._search._pass import Pass as Pass
from revremat._search._result import Dropped as Dropped
from revremat._search._result import Fit as Fit
from revremat._search._result import Row as Row
from revremat._search._result import why_it_does_not_fit as why_it_does_not_fit
from revremat._search._run import DECIDE as DECIDE
from revremat._search._run import FIRST as FIRST
from revremat._search._run import PROFILE as PROFILE
from revremat._search._run import REQUIRED as REQUIRED
from revremat._search._run import decide as decide
from revremat._search._run import name_of as name_of
from revremat._search._run import profile as profile
from revremat._search._run import profile_all as profile_all
from revremat._search._run import run_all as run_all
from revremat._search._space import Space as Space
from revremat._search._state import State as State
from revremat._search._state import best_of as best_of
from revremat._search._timed import run_step as run_step
from revremat._search.passes._ask import refine as refine
from revremat._search.passes._ask import try_assignments as try_assignments
