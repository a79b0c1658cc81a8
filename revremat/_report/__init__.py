"""Reports: results as text, as pages, as locks; knows every result."""

# They register how these are printed.
from revremat._report import _fits as _fits
from revremat._report import _measurements as _measurements
