"""Reports: nouns as text, as pages, as locks; knows every noun."""

# They register how these are printed.
from revremat._report import _fits as _fits
from revremat._report import _measurements as _measurements
