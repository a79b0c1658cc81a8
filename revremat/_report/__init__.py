"""Reports: nouns as text, as pages, as locks; knows every noun."""
