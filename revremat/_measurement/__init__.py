"""Measurement: what the target's compiler says of a program."""

from revremat._measurement._collectives import Collective as Collective
from revremat._measurement._measurement import PHASES as PHASES
from revremat._measurement._measurement import Buffer as Buffer
from revremat._measurement._measurement import Buffers as Buffers
from revremat._measurement._measurement import Measurement as Measurement
from revremat._measurement._measurement import Memory as Memory
from revremat._measurement._measurement import Packing as Packing
from revremat._measurement._measurement import Time as Time
from revremat._measurement._measurement import categories as categories
