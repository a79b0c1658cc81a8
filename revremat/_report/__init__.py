"""Reports: nouns as text, as pages, as locks; knows every noun."""

from revremat._report import _fits as _fits  # it registers how these are printed
