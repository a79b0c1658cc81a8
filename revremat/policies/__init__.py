"""What to propose for a residual, and how to decide."""

from revremat.policies._candidates import PRESETS as PRESETS
from revremat.policies._candidates import Candidate as Candidate
from revremat.policies._candidates import candidates as candidates
from revremat.policies._candidates import preset as preset
from revremat.policies._greedy import choose_greedily as choose_greedily
from revremat.policies._greedy import smallest_bytes as smallest_bytes
from revremat.policies._milp import Choice as Choice
from revremat.policies._milp import Menu as Menu
from revremat.policies._milp import Price as Price
from revremat.policies._milp import choose as choose
from revremat.policies._milp import predict_bytes as predict_bytes
