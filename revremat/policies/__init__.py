"""What to propose for a residual, and how to decide."""

from revremat.policies._bans import bans as bans
from revremat.policies._candidates import PRESETS as PRESETS
from revremat.policies._candidates import Candidate as Candidate
from revremat.policies._candidates import candidates as candidates
from revremat.policies._candidates import preset as preset
from revremat.policies._greedy import choose_greedily as choose_greedily
from revremat.policies._greedy import smallest as smallest
from revremat.policies._greedy import smallest_bytes as smallest_bytes
from revremat.policies._joint import Cost as Cost
from revremat.policies._joint import Joint as Joint
from revremat.policies._joint import Rates as Rates
from revremat.policies._maxima import without_maxima as without_maxima
from revremat.policies._milp import Choice as Choice
from revremat.policies._milp import Menu as Menu
from revremat.policies._milp import Price as Price
from revremat.policies._milp import choose as choose
from revremat.policies._milp import predict_bytes as predict_bytes
from revremat.policies._mincut import Cut as Cut
from revremat.policies._mincut import Weights as Weights
from revremat.policies._mincut import cut as cut
from revremat.policies._mincut import front as front
from revremat.policies._named import NAMED as NAMED
from revremat.policies._named import layers as layers
from revremat.policies._named import named as named
from revremat.policies._named import roles as roles
from revremat.policies._stakes import shortlist as shortlist
