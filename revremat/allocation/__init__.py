"""Where in memory: safe reuse and optimal offsets for buffers with known lifetimes."""

from revremat.allocation._allocate import Progress as Progress
from revremat.allocation._allocate import allocate as allocate
from revremat.allocation._csv import read_problem as read_problem
from revremat.allocation._csv import write_offsets as write_offsets
from revremat.allocation._dependencies import Wait as Wait
from revremat.allocation._dependencies import join_streams as join_streams
from revremat.allocation._dependencies import read_waits as read_waits
from revremat.allocation._problem import AllocationProblem as AllocationProblem
from revremat.allocation._problem import Buffer as Buffer
from revremat.allocation._relation import Relation as Relation
from revremat.allocation._safety import Operator as Operator
from revremat.allocation._safety import Tensor as Tensor
from revremat.allocation._safety import safe_problem as safe_problem
from revremat.allocation._sections import Section as Section
from revremat.allocation._sections import lower_bound as lower_bound
from revremat.allocation._solution import Allocation as Allocation
from revremat.allocation._solution import Answer as Answer
from revremat.allocation._solution import Infeasible as Infeasible
from revremat.allocation._solution import Undecided as Undecided
from revremat.allocation._streams import Scheduled as Scheduled
from revremat.allocation._streams import split_streams as split_streams
from revremat.allocation._svg import draw as draw
from revremat.allocation._svg import write_drawing as write_drawing
from revremat.allocation._validate import InvalidAllocation as InvalidAllocation
from revremat.allocation._validate import validate as validate
