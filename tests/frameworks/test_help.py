"""Completion, signatures and docstrings in a shell, for the modules with Horovod's names."""

import json

import pytest
from frameworks.warm_python import shared_python
from support.commands import completed
from support.needs import need

DESCRIBE = """
import importlib, inspect, json, sys
shown = {}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    named = [(key, getattr(module, key)) for key in module.__all__]
    functions = [(key, item) for key, item in named if inspect.isfunction(item)]
    documented = [(key, item) for key, item in named if inspect.isfunction(item) or inspect.isclass(item)]
    shown[name] = {
        "dir": sorted(dir(module)),
        "all": sorted(module.__all__),
        "annotations": {key: [str(a) for a in inspect.get_annotations(item).values()] for key, item in functions},
        "undocumented": [key for key, item in documented if not item.__doc__],
    }
print(json.dumps(shown))
"""
MODULES = {
    "jax": ["ringtrain.jax"],
    "torch": ["ringtrain.torch"],
    "keras": ["ringtrain.tensorflow", "ringtrain.tensorflow.keras", "ringtrain.keras"],
}


@pytest.mark.parametrize("framework", MODULES)
def test_a_shell_shows_the_public_api(framework: str) -> None:
    """Completion offers public names alone, `help()` shows short types, and everything has a docstring."""
    need(framework)
    done = completed([shared_python(framework), "-c", DESCRIBE, *MODULES[framework]], check=True)
    for name, shown in json.loads(done.stdout.splitlines()[-1]).items():
        assert shown["dir"] == shown["all"], name
        assert shown["undocumented"] == [], name
        long = {key: types for key, types in shown["annotations"].items() if any("ringtrain." in t for t in types)}
        assert long == {}, name
