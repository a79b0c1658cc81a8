"""The version, told in one place: the package's metadata."""

from importlib import metadata


def installed_version() -> str:
    """Of the installed package; `0+unknown` where it runs without being installed."""
    try:
        return metadata.version("revremat")
    except metadata.PackageNotFoundError:
        return "0+unknown"
