"""The command line, a file a command."""

from revremat._cli._main import main as main
