"""revremat: reversible networks and rematerialization for JAX.

A training step keeps values of the forward pass for the backward pass, and memory runs
out because of them. Each such residual has one question put to it: how do you come
back? It stayed (`SAVE`), from host memory (`OFFLOAD`), from what was kept
(`RECOMPUTE`), or through the block's inverse (`INVERT`). A `Plan` answers for all of
them; revremat finds one for a budget, applies it, and proves with the target's own
compiler that it holds:

    problem --trace--> Graph --search(budget)--> Plan --apply--> loss'
                                                                   |
             render <-- Measurement <--measure(target)-- step <----+

Stages are functions; what flows between them are frozen dataclasses.
"""

from revremat import reversible as reversible
from revremat import xla as _xla
from revremat._action import INVERT as INVERT
from revremat._action import OFFLOAD as OFFLOAD
from revremat._action import RECOMPUTE as RECOMPUTE
from revremat._action import SAVE as SAVE
from revremat._action import Action as Action
from revremat._apply import apply as apply
from revremat._errors import DoesNotFit as DoesNotFit
from revremat._errors import UserError as UserError
from revremat._export import Export as Export
from revremat._export import export as export
from revremat._fit import Fit as Fit
from revremat._fit import fit as fit
from revremat._fit import frontier as frontier
from revremat._fit import search as search
from revremat._format import format_bytes as format_bytes
from revremat._format import format_us as format_us
from revremat._frontier import Frontier as Frontier
from revremat._graph import Graph as Graph
from revremat._graph import Operation as Operation
from revremat._graph import Unit as Unit
from revremat._largest import Largest as Largest
from revremat._largest import largest as largest
from revremat._measure import Oracle as Oracle
from revremat._measure import Step as Step
from revremat._measure import assert_fits as assert_fits
from revremat._measure import measure as measure
from revremat._measure import measure_each as measure_each
from revremat._measurement import Buffer as Buffer
from revremat._measurement import Collective as Collective
from revremat._measurement import Measurement as Measurement
from revremat._measurement import Memory as Memory
from revremat._measurement import Time as Time
from revremat._measurement._history import Curve as Curve
from revremat._measurement._history import Span as Span
from revremat._plan import Plan as Plan
from revremat._problem import Problem as Problem
from revremat._read import read as read
from revremat._report._text import render as render
from revremat._report._write import write as write
from revremat._saved import FitRecord as FitRecord
from revremat._saved import load as load
from revremat._trace import trace as trace
from revremat._version import installed_version as _installed_version
from revremat.program._api import block as block
from revremat.program._api import name as name
from revremat.program._api import stack as stack
from revremat.program._head import cross_entropy as cross_entropy
from revremat.xla import Target as Target
from revremat.xla import target as target

__version__ = _installed_version()

_xla.ignore_absent_devices()
