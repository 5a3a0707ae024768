"""Access to plugins under names in `ringtrain`: `ringtrain.NAME` is the installed package `ringtrain_NAME`."""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from types import CodeType, ModuleType
from typing import Any


def provide(alias: str, package: str) -> None:
    """Make the module `alias` and its submodules other names of `package`, a plugin's package.

    Call it from the module `alias` itself. Raises ModuleNotFoundError that says what to install if the plugin is not
    installed.
    """
    distribution = package.partition(".")[0]
    if importlib.util.find_spec(distribution) is None:
        raise ModuleNotFoundError(missing_plugin_text(alias.replace("_", ".", 1), distribution), name=distribution)
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder())
    _packages[alias] = package
    sys.modules[alias] = importlib.import_module(package)


def entry_points_of(group: str) -> list[EntryPoint]:
    """Return the entry points of `group`, sorted by name. Each process reads the installed packages once, which takes
    10 ms or more."""
    return sorted(_all_entry_points().select(group=group), key=lambda point: point.name)


@functools.cache
def _all_entry_points() -> Any:
    return entry_points()


def missing_plugin_text(need: str, package: str) -> str:
    """Return a line that says how to install the plugin with `package`, which `need` needs."""
    folder = package.partition("_")[2]
    extra = folder.replace("_", "-")
    return (
        f"{need} needs the plugin ringtrain-{extra}, which is not installed: pip install 'ringtrain[{extra}]', or from "
        f"a clone pip install ./worker_image ./plugins/{folder}"
    )


def load_on_use(module: str, **places: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for `module` that imports the names in `places` from other modules on first use.

    For names that need another plugin: `module` can then be imported without that plugin.
    """

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(places[name]), name)

    return load


_packages: dict[str, str] = {}  # by alias


class _AliasFinder(MetaPathFinder, Loader):
    """Import hook that finds `ringtrain.NAME.rest` as `ringtrain_NAME.rest`, so that no module is loaded twice."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        real = _real_name(fullname)
        if real is None or importlib.util.find_spec(real) is None:
            return None
        return ModuleSpec(fullname, self, origin=real)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(str(spec.origin))
        spec.loader_state = module.__spec__
        return module

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the module's code, which `python -m` needs."""
        found = importlib.util.find_spec(str(_real_name(fullname)))
        loader: Any = None if found is None else found.loader
        code: CodeType | None = None if found is None else loader.get_code(found.name)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which the import system has replaced by the spec of the alias."""
        alias_spec = module.__spec__
        assert alias_spec is not None
        module.__spec__ = alias_spec.loader_state


def _real_name(fullname: str) -> str | None:
    for alias, package in _packages.items():
        if fullname.startswith(f"{alias}."):
            return package + fullname.removeprefix(alias)
    return None
