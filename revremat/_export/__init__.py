"""Plans in the words of other libraries."""

from revremat._export._export import Export as Export
from revremat._export._export import export as export
