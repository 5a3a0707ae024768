"""Comparison of runs: one row per run, with columns for its results and for settings that differ."""

from collections.abc import Sequence
from typing import Any, Final

from ringtrain_job.cli.runs import Run
from ringtrain_job.logs.about import read_run_description
from ringtrain_page.summary import summarize_page

# Names of columns with a run's results.
RESULT_COLUMNS: Final = frozenset({"name", "state", "ranks", "steps", "loss", "speed", "took", "began"})
# Number of colours that a reader can distinguish.
MOST_COMPARED: Final = 12


def comparison_document(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the data of a page that compares runs: a table of `runs`, and curves with one line per run."""
    documents = [summarize_page(run.files) for run in runs]
    curves: dict[str, dict[str, Any]] = {}
    for run, document in zip(runs, documents, strict=True):
        for curve in document["curves"]:
            into = curves.setdefault(curve["name"], {"name": curve["name"], "of": curve["of"], "series": []})
            line = {"name": run.name, "points": curve["points"], "bad": curve["bad"], "axes": document["axes"]}
            into["series"].append(line)
    settings = differing_settings(runs, config_only=False)
    facts = [run.summary.shown for run in runs]
    return {
        "runs": [run.name for run in runs],
        "columns": [*facts[0], *settings],
        "rows": [[*shown.values(), *(values[at] for values in settings.values())] for at, shown in enumerate(facts)],
        "differ": bool(settings),
        "curves": list(curves.values()),
    }


def differing_settings(runs: Sequence[Run], config_only: bool) -> dict[str, list[str]]:
    """Return the settings in which the runs differ: by name, one value per run, empty where a run has none.

    `config_only`: whether to compare only settings passed to ringtrain.report_config, not command, image, commit and
    versions.
    """
    abouts = [_settings_of(read_run_description(run.files), config_only) for run in runs]
    names = dict.fromkeys(name for about in abouts for name in about)
    rows = {name: [about.get(name, "") for about in abouts] for name in names}
    rows = {name: values for name, values in rows.items() if len(set(values)) > 1}
    return {name: _distinct_words(values) if name == "command" else values for name, values in rows.items()}


def _distinct_words(commands: Sequence[str]) -> list[str]:
    """Return each command without the words at its beginning and end that all commands share. If the first word left is
    an option's value, the option is included."""
    split = [command.split() for command in commands]
    most = min(map(len, split))
    first = next((i for i in range(most) if len({words[i] for words in split}) > 1), most)
    last = next((i for i in range(most - first) if len({words[-1 - i] for words in split}) > 1), most - first)
    first -= bool(first and split[0][first - 1].startswith("-"))
    return [" ".join(words[first : len(words) - last]) for words in split]


def _setting_name(name: str) -> str:
    """Return the name of a setting; it differs from the names of columns that every run has."""
    return f"{name} (setting)" if name in RESULT_COLUMNS else name


def _settings_of(about: dict[str, Any], config_only: bool) -> dict[str, str]:
    """Return a run's settings by name, as texts. `about`: content of the run's run.json.

    `config_only`: whether to return only settings passed to ringtrain.report_config.
    """
    config = {_setting_name(name): str(value) for name, value in about.get("config", {}).items()}
    if config_only:
        return config
    found: dict[str, str] = {
        name: str(about[name]) for name in ("image", "imageID", "directory", "commit") if name in about
    }
    found |= {"command": " ".join(about["command"])} if "command" in about else {}
    found |= {f"version of {name}": str(value) for name, value in about.get("versions", {}).items()}
    return {**config, **found}
