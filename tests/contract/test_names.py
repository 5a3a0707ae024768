"""Names in the code of both distributions: nothing private is used from another module, one class has one name."""

import ast
import functools
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = {
    "runtime": ROOT / "worker_image",
    "operator": ROOT / "operator" / "ringtrain_operator",
    "client": ROOT / "client",
    "plugins": ROOT / "plugins",
}
# Of libraries, which offer no other way.
FOREIGN = {
    "_BatchNorm",  # torch: the base of what SyncBatchNorm replaces
    "_C",  # torch: who else shares a tensor's memory
    "_cdata",
    "_Options",  # torch: of gloo's process group; its address and timeout have no other names
    "_devices",
    "_timeout",
    "_will_engine_execute_node",  # torch: whether a backward pass adds to a gradient, or autograd.grad asks for it
    "_current_frames",  # sys: where threads stand that Python has not started
    "_plugins",  # torch: process groups that others have registered
    "_DistributedBackendOptions",
    "_allgather_base",  # torch: into one tensor; the public one takes a list
    "_src",  # JAX: the kinds of cluster that it knows, and their order, have no public name
    "_cluster_types",
    "_create_all_weights",  # Keras 2: makes an optimizer's variables outside a branch
    "_compute_current_learning_rate",  # Keras 2: of a schedule, which `learning_rate` then has
    "_use_weight_decay",  # Keras: which variables `exclude_from_weight_decay` left
    "_log_exporter",  # OpenTelemetry: logs are stable on the wire, and not yet so named in Python
    "_logs",
    "_exit",  # os: the documented way for a forked child
    "_jsc",  # PySpark: the context in Java, which alone knows how many tasks can run at once
    "_make_wrapper_subclass",  # torch.Tensor: the documented way to a subclass without storage
    "_set_throw_on_mutable_data_ptr",  # torch: dlpack would pass on a null pointer
    "_disable_dynamo",  # torch: as torch.compiler.disable, which costs the import of the compiler
    "_replace",  # of named tuples: public
    "_foreach_copy_",  # torch: many copies in one call
    "_values",  # torch: of a sparse tensor that is not coalesced
    "_version",  # torch: what autograd itself compares
}
# Functions with these prefixes answer a question, so they return bool.
PREDICATE = re.compile(r"_*(is|has|can|should|are|was|were|does|did|may|must)_")
QUESTION = re.compile(r"(What|Where|Who|Whose|How|When|Why|Which)\b")
# Pairs that users import: the same thing for arrays and for a framework.
SHARED = {"HostOptimizer", "DistributedOptimizer", "DiLoCo"}


@functools.cache
def modules(distribution: str) -> list[tuple[Path, ast.Module]]:
    """Return every module that people write, without generated ones."""
    root = PRODUCT[distribution]
    # A `build` folder is setuptools' output, except in the operator, which has a package of that name.
    skipped = {"gen", "tests"} | ({"build"} if distribution != "operator" else set())
    paths = [path for path in sorted(root.rglob("*.py")) if not skipped & set(path.relative_to(root).parts)]
    return [(path.relative_to(root), ast.parse(path.read_text())) for path in paths]


def all_modules() -> list[tuple[Path, ast.Module]]:
    """Return the modules of all distributions, with paths from the root of the repository."""
    return [(PRODUCT[name].relative_to(ROOT) / path, tree) for name in PRODUCT for path, tree in modules(name)]


def false_predicates(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of functions that are named as a predicate and do not return bool."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and PREDICATE.match(node.name):
            returned = ast.unparse(node.returns) if node.returns is not None else ""
            if not re.match(r"(bool$|TypeGuard\[|TypeIs\[)", returned):
                yield node.lineno, f"{node.name} -> {returned}"


def questions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and first line of docstrings that begin with a question word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if QUESTION.match(text):
                yield getattr(node, "lineno", 1), text.partition("\n")[0]


def is_private(name: str) -> bool:
    """Whether `name` begins with one underscore."""
    return name.startswith("_") and not name.startswith("__")


def is_own(node: ast.expr) -> bool:
    """Whether `node` is `self`, `cls` or `super()`."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "super")


def defined_in(tree: ast.Module) -> set[str]:
    """The names that a module gives to what is its own: functions, classes, variables, attributes of `self`."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) if is_own(node.value):
                names.add(name)
    return names


def borrowed(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of what is private to another module and used in this one."""
    own = defined_in(tree) | FOREIGN
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if is_private(name) and not is_own(value) and name not in own:
                yield node.lineno, name
            case ast.ImportFrom(module=module, names=names):
                parts = [*(module or "").split("."), *(alias.name for alias in names)]
                yield from ((node.lineno, name) for name in parts if is_private(name) and name not in FOREIGN)


@pytest.mark.parametrize("distribution", PRODUCT)
def test_nothing_private_is_used_from_another_module(distribution: str) -> None:
    """Modules use only public names of other modules. Exception: the package ringtrain uses its `ringtrain._core`."""
    found = [
        f"{path}:{line} {name}"
        for path, tree in modules(distribution)
        for line, name in borrowed(tree)
        if not (name == "_core" and path.parts[0] == "ringtrain")
    ]
    assert found == []


@pytest.mark.parametrize("distribution", PRODUCT)
def test_a_class_name_means_one_thing(distribution: str) -> None:
    """Each class says what it is in its own field, so that a search for its name finds one definition."""
    places = defaultdict(list)
    for path, tree in modules(distribution):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    twice = {name: found for name, found in places.items() if len(found) > 1 and name not in SHARED}
    assert twice == {}


@pytest.mark.parametrize("distribution", PRODUCT)
def test_arguments_are_passed_on_by_name(distribution: str) -> None:
    """Never as `locals()`, which also passes on what a later line adds, and which no type checker reads."""
    found = [
        f"{path}:{node.lineno}"
        for path, tree in modules(distribution)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "locals"
    ]
    assert found == []


def test_a_predicate_returns_bool() -> None:
    """`is_…`, `has_…` and the like are questions with the answers True and False."""
    found = [f"{path}:{line} {name}" for path, tree in all_modules() for line, name in false_predicates(tree)]
    assert found == []


def tracked_modules_with(text: re.Pattern[str]) -> list[tuple[Path, ast.Module]]:
    """Return the modules that git tracks and that have `text`: product, tests, benchmarks, examples and tools."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [Path(line) for line in listed.splitlines() if "gen" not in Path(line).parts and (ROOT / line).is_file()]
    sources = ((path, (ROOT / path).read_text()) for path in paths)
    return [(path, ast.parse(source)) for path, source in sources if text.search(source)]


def test_no_docstring_begins_with_a_question_word() -> None:
    """A docstring begins with a command in the imperative, a noun phrase or, in a test, a statement."""
    possible = tracked_modules_with(re.compile(rf"""["']\s*{QUESTION.pattern}"""))
    found = [f"{path}:{line} {text}" for path, tree in possible for line, text in questions(tree)]
    assert found == []


def test_false_predicates_and_questions_are_found() -> None:
    """Private functions, methods and coroutines, too; words that only begin alike are accepted."""
    source = '''
"""Which one."""
def _is_a() -> str:
    """However."""
class B:
    """Whose."""
    async def has_b(self):
        """Return b."""
    def can_c(self) -> bool:
        """How it can."""
    def island(self) -> str: ...
def is_d(value) -> TypeGuard[int]: ...
'''
    tree = ast.parse(source)
    assert [name for _, name in false_predicates(tree)] == ["_is_a -> str", "has_b -> "]
    assert [text for _, text in questions(tree)] == ["Which one.", "Whose.", "How it can."]


def test_what_is_private_elsewhere_is_found() -> None:
    """Attributes of other objects and imports; not what the module itself defines, nor of `self`."""
    source = """
from a import _b
from c._d import e
class F:
    _g = 1
    def h(self, other): return self._i, other._g, other._j, super()._k, other.__dict__
"""
    assert {name for _, name in borrowed(ast.parse(source))} == {"_b", "_d", "_j"}
