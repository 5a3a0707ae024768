"""Write both sides' contract modules and the tables of docs/contract.md from proto/contract.toml, and copies.

`python proto/generate_contract.py [FOLDER]`, called by `make generate`. Operator and runtime never import each
other; what they agree on stands in one file all the same.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any

MODULES = {
    "operator": "operator/ringtrain_operator/contract.py",
    "runtime": "worker_image/ringtrain/shared/contract.py",
}
# Modules of the runtime that the operator has as they are, by the path of its copy.
COPIES = {
    "operator/ringtrain_operator/spec/launcher_words.py": "worker_image/ringtrain_job/cli/launchers.py",
    "operator/ringtrain_operator/spec/metrics_rule.py": "worker_image/ringtrain_job/logs/metrics_rule.py",
}
COPIED = "# Generated from {}: operator and runtime never import each other.\n"
PAGE = "docs/contract.md"
_RUNTIME = Path(__file__).parents[1] / "worker_image" / "pyproject.toml"
_LONGEST_LINE = 115
HEAD = '"""Names, ports and exit codes that operator and runtime share. Generated from proto/contract.toml."""\n'


def module(contract: dict[str, Any], side: str) -> str:
    """The contract module of `side`: constants in the order of the file, a blank line between sections."""
    parts = [HEAD, "from typing import Final\n"]
    if side == "runtime":  # ranks compare it, and to read the installed distribution's takes 44 ms
        version = tomllib.loads(_RUNTIME.read_text())["project"]["version"]
        parts.append(f'RELEASE: Final = "{version}"\n')
    for section in contract["constants"]:
        lines = [_constant(entry) for entry in section["entries"] if side in entry.get("sides", section["sides"])]
        parts += ["\n".join(lines) + "\n"] if lines else []
    for table in contract["environment"]:
        lines = [
            f'{constant_of(row["name"])}: Final = "{row["name"]}"'
            for row in table["rows"]
            if side in row.get("sides", table["sides"])
        ]
        parts += ["\n".join(lines) + "\n"] if lines else []
    parts.append(_fields_of_spec(contract) if side == "operator" else _plugins_of_variables(contract))
    return "\n".join(parts)


def _fields_of_spec(contract: dict[str, Any]) -> str:
    """Return the code of two tables of variables that are a field of the spec: the launcher's and the workers'."""
    rows = [row for table in contract["environment"] for row in table["rows"] if "field" in row]
    lines = ["# Variables that are a field of the spec, by the role of the pod."]
    for role in ("launcher", "worker"):
        named = [row for row in rows if row["on"].split(",")[0].split(" ")[0] in ("both", role)]
        entries = [f'    ({constant_of(row["name"])}, "{row["field"]}"),' for row in named]
        lines += [f"{role.upper()}_FIELDS: Final = (", *entries, ")"]
    return "\n".join(lines) + "\n"


def _plugins_of_variables(contract: dict[str, Any]) -> str:
    """Return the code of the table of variables that only a plugin reads, with the plugin of each."""
    rows = [row for table in contract["environment"] for row in table["rows"] if "plugin" in row]
    entries = [f'    {constant_of(row["name"])}: "{row["plugin"]}",' for row in rows]
    head = "# Variables that only a plugin reads, with its name."
    return "\n".join([head, "PLUGIN_VARIABLES: Final = {", *entries, "}"]) + "\n"


def constant_of(variable: str) -> str:
    """The constant's name: ENV_RANK for RINGTRAIN_RANK."""
    return "ENV_" + variable.removeprefix("RINGTRAIN_")


def _constant(entry: dict[str, Any]) -> str:
    value = entry["value"]
    if isinstance(value, list):
        line = f"{entry['name']}: Final = ({', '.join(_literal(one) for one in value)})"
        if len(line) <= _LONGEST_LINE:
            return line
        return "\n".join([f"{entry['name']}: Final = (", *(f"    {_literal(one)}," for one in value), ")"])
    return f"{entry['name']}: Final = {_literal(value)}"


def _literal(value: Any) -> str:
    if not isinstance(value, str):
        return repr(value)
    return f"'{value}'" if '"' in value else f'"{value}"'


def page_table(table: dict[str, Any]) -> str:
    """The table of the page: a row a variable, or several variables that are explained together."""
    has_pods = any("on" in row for row in table["rows"])
    head = "| name | on | value |\n| --- | --- | --- |" if has_pods else "| name | value |\n| --- | --- |"
    lines = [head]
    rows = [row for row in table["rows"] if "text" in row]
    for row in rows:
        names = ", ".join(f"`{name}`" for name in [row["name"], *row.get("also", [])])
        text = row["text"] + (f" Needs the plugin `{row['plugin']}`." if "plugin" in row else "")
        cells = [names, row["on"], text] if has_pods else [names, text]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_tables(page: str, contract: dict[str, Any]) -> str:
    """`page` with the text between each table's markers made anew. Raises ValueError for a missing marker."""
    for table in contract["environment"]:
        begin, end = f"<!-- generated: {table['id']} -->\n", "\n<!-- end -->"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{PAGE}: no marker {begin.strip()} with an end")
        page = before + begin + page_table(table) + end + after
    return page


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    contract = tomllib.loads((root / "proto/contract.toml").read_text())
    for side, path in MODULES.items():
        (root / path).write_text(module(contract, side))
    for path, source in COPIES.items():
        (root / path).write_text(COPIED.format(source) + (root / source).read_text())
    page = root / PAGE
    page.write_text(with_tables(page.read_text(), contract))


if __name__ == "__main__":
    main()
