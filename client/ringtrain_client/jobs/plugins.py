"""The error for a plugin that is not installed."""

from importlib.util import find_spec


def plugin_missing(need: str, package: str) -> ModuleNotFoundError:
    """Return the error that says how to install the plugin with `package`, which `need` needs."""
    plugin, folder = package.replace("_", "-"), package.partition("_")[2]
    return ModuleNotFoundError(
        f"{need} needs the plugin {plugin}, which is not installed: pip install {plugin}, or from a clone pip install "
        f"./operator ./client ./plugins/{folder}",
        name=package,
    )


def require_plugin(need: str, package: str) -> None:
    """Raise ModuleNotFoundError if the plugin with `package`, which `need` needs, is not installed."""
    if find_spec(package) is None:
        raise plugin_missing(need, package)
