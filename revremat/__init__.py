"""revremat: reversible networks and rematerialization for JAX."""

from revremat._plan import INVERT as INVERT
from revremat._plan import OFFLOAD as OFFLOAD
from revremat._plan import RECOMPUTE as RECOMPUTE
from revremat._plan import SAVE as SAVE
from revremat._plan import Action as Action
from revremat.program._api import name as name
from revremat.program._api import stack as stack
