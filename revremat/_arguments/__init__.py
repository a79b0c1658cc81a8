"""What a function is given: taken apart into arrays, and what it writes into it."""

from revremat._arguments._arguments import Arguments as Arguments
from revremat._arguments._arguments import Leaf as Leaf
from revremat._arguments._arguments import has_modules as has_modules
from revremat._arguments._arguments import take_apart as take_apart
from revremat._arguments._closed_over import (
    modules_are_arguments as modules_are_arguments,
)
from revremat._arguments._closed_over import watched as watched
from revremat._arguments._outcome import Outcome as Outcome
from revremat._arguments._outcome import outcome_of as outcome_of
